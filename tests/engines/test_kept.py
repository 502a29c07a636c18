"""Compiled code in files: found again for the same list of operations, and for no other."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx import GraphModule

from fedtailor import native
from fedtailor.convolution import Window, convolved
from fedtailor.engines import kept, tracing
from fedtailor.engines.tracing import compiled, followed

needs_a_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")


@pytest.fixture(autouse=True)
def a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(native.PLACE, str(tmp_path))


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The libraries that were made; nothing is compiled."""
    found: list[Path] = []

    def make(graph: GraphModule, given: Any, at: Path) -> None:
        at.mkdir(parents=True)
        (at / "step.so").touch()
        found.append(at)

    monkeypatch.setattr(kept, "_make", make)
    monkeypatch.setattr(kept, "loaded", lambda library: len)
    monkeypatch.setattr(tracing, "_have_draws_fused", lambda: None)
    return found


def _grown(by: float, room: Tensor) -> None:
    room.copy_(room * by + torch.tensor([by, 1.0]))


def test_the_same_list_is_compiled_once(made: list[Path]) -> None:
    for _ in range(3):
        compiled(partial(_grown, 2.0), (torch.ones(2),))
    assert len(made) == 1


def _with_constant(constant: Tensor, room: Tensor) -> None:
    room.copy_(room * constant)


@pytest.mark.parametrize(
    ("function", "room"),
    [
        (partial(_grown, 3.0), torch.ones(2)),
        (partial(_grown, 2.0), torch.ones(4)[::2]),
        (partial(_grown, 2.0), torch.ones(3, 2)),
        (partial(_grown, 2.0), torch.ones(2, dtype=torch.float64)),
        (partial(_with_constant, torch.tensor([1.0, 2.0])), torch.ones(2)),
        (partial(_with_constant, torch.tensor([1.0, 3.0])), torch.ones(2)),
    ],
    ids=["number", "strides", "shape", "type", "operations", "constant"],
)
def test_another_list_is_another_library(made: list[Path], function: Callable[..., None], room: Tensor) -> None:
    compiled(partial(_grown, 2.0), (torch.ones(2),))
    compiled(partial(_with_constant, torch.tensor([1.0, 4.0])), (torch.ones(2),))
    compiled(function, (room,))
    assert len(set(made)) == 3


@pytest.mark.parametrize("what", ["threads", "torch", "processor", "variable", "code"])
def test_other_surroundings_find_no_old_code(made: list[Path], what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled(partial(_grown, 2.0), (torch.ones(2),))
    changes: dict[str, Callable[[], None]] = {
        "threads": lambda: monkeypatch.setattr(torch, "get_num_threads", lambda: 77),
        "torch": lambda: monkeypatch.setattr(torch, "__version__", "77"),
        "processor": lambda: monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"cpu_name": "another"}),
        "variable": lambda: monkeypatch.setenv("TORCHINDUCTOR_FREEZING", "1"),
        "code": lambda: monkeypatch.setattr(kept, "_own_code", lambda: b"changed"),
    }
    changes[what]()
    compiled(partial(_grown, 2.0), (torch.ones(2),))
    assert len(set(made)) == 2


def test_own_code_is_all_that_sees_stacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, rules = kept._CODE, ("register_vmap", "def vmap(")
    found = {
        path.relative_to(home).as_posix() for path in home.rglob("*.py") if any(map(path.read_text().count, rules))
    }
    assert found
    assert found <= set(kept.SEES_STACKS)
    shutil.copytree(home, tmp_path / "code")
    monkeypatch.setattr(kept, "_CODE", tmp_path / "code")
    names = {kept._own_code.__wrapped__()}
    for name in kept.SEES_STACKS:
        (tmp_path / "code" / name).write_text("changed = True")
        names.add(kept._own_code.__wrapped__())
    assert len(names) == 1 + len(kept.SEES_STACKS)


def test_a_named_function_is_followed_only_to_be_compiled(made: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    times = []
    monkeypatch.setattr(tracing, "followed", lambda *given: times.append(1) or followed(*given))  # type: ignore[func-returns-value]
    for _ in range(3):
        compiled(partial(_grown, 2.0), (torch.ones(2),), "a name")
    assert len(times) == len(made) == 1
    compiled(partial(_grown, 2.0), (torch.ones(4, 2),), "a name")
    compiled(partial(_grown, 2.0), (torch.ones(2),), "another")
    assert len(set(made)) == 3


@needs_a_compiler
def test_code_from_a_file_does_the_same_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for _ in range(2):
        room = torch.tensor([1.0, 5.0])
        go_on = compiled(partial(_grown, 2.0), (room,))
        go_on()
        go_on()
        found.append(room.tolist())
        monkeypatch.setattr(kept, "_make", None)
    assert found == [[10.0, 23.0]] * 2


def test_a_list_that_no_library_can_be_made_of_is_code_of_this_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch._inductor

    def failing(graph: GraphModule, given: Any, options: dict[str, Any]) -> None:
        Path(options["aot_inductor.output_path"]).write_text("half of it")
        raise RuntimeError("an operation has no such code")

    monkeypatch.setattr(torch._inductor, "aot_compile", failing)
    monkeypatch.setattr(tracing, "_compiled_here", lambda graph, leaves: graph.forward)
    room = torch.tensor([1.0, 5.0])
    compiled(partial(_grown, 2.0), (room,))()
    assert room.tolist() == [4.0, 11.0]
    assert list((tmp_path / "steps").iterdir()) == []


@pytest.fixture
def asked_for(monkeypatch: pytest.MonkeyPatch) -> list[GraphModule]:
    """The libraries that torch was asked for; each is an empty file, and lists are gone through instead."""
    import torch._inductor

    found: list[GraphModule] = []

    def empty(graph: GraphModule, given: Any, options: dict[str, Any]) -> None:
        Path(options["aot_inductor.output_path"]).touch()
        found.append(graph)

    monkeypatch.setattr(torch._inductor, "aot_compile", empty)
    monkeypatch.setattr(tracing, "_compiled_here", lambda graph, leaves: graph.forward)
    return found


def test_where_a_process_does_not_survive_loading_nothing_is_loaded(
    tmp_path: Path, asked_for: list[GraphModule], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "_LOADING", "import os; os.abort()")
    monkeypatch.setattr(kept, "loaded", None)
    for size in (2, 4):
        room = torch.ones(size, 2)
        compiled(partial(_grown, 2.0), (room,))()
        assert room.tolist() == [[4.0, 3.0]] * size
    assert len(asked_for) == 1  # and not once more for the other size
    assert list((tmp_path / "steps").iterdir()) == []


def test_loading_is_tried_out_once(asked_for: list[GraphModule], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "_LOADING", "pass")
    monkeypatch.setattr(kept, "loaded", lambda library: len)
    compiled(partial(_grown, 2.0), (torch.ones(2),))
    monkeypatch.setattr(kept, "_LOADING", "import os; os.abort()")
    compiled(partial(_grown, 2.0), (torch.ones(4, 2),))
    assert len(asked_for) == 2


def _convolved(room: Tensor, w: Tensor) -> None:
    room.copy_(convolved(room, w, (2, 2), Window()))


@needs_a_compiler
def test_the_process_that_tries_a_library_out_knows_this_projects_operations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found, end_of = list[int](), kept._end_of

    def spied(library: Path) -> int:
        found.append(end_of(library))
        return found[-1]

    monkeypatch.setattr(kept, "_end_of", spied)
    compiled(_convolved, (torch.ones(1, 1, 2, 2, 3), torch.ones(1, 3, 1, 1, 3)))()
    assert found != [1]  # which is what an exception ends with: it would have come no further than to our operation
    assert (found == [0]) == (kept._verdict().read_text() == kept._LOADS)


def test_libraries_that_nobody_loads_make_room(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    for each in (old, new):
        each.mkdir()
        (each / "step.so").touch()
    os.utime(old, (0, 0))
    kept._forget(tmp_path)
    assert list(tmp_path.iterdir()) == [new]


def test_engines_are_imported_without_a_compiler() -> None:
    code = "import sys, fedtailor.engines; sys.exit('torch._dynamo' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
