"""Compiled code of CPUs, kept in files: one library for each list of operations, which loads in a moment.

A library's name is made of everything that its code depends on: the operations with all their numbers and constants,
the kinds of tensors, the processor and its threads, torch, and this project's code that sees stacks. So nothing that
has changed finds old code. A list whose library is there needs no compiler, of which the import alone takes seconds.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from fedtailor.native import PLACE, hashed, place, processor

_LIBRARY = "step.so"
_LOADS = "yes"
_LOADING = (
    "import importlib, sys, torch; list(map(importlib.import_module, sys.argv[2:])); "
    "torch._C._aoti.AOTIModelContainerRunnerCpu(sys.argv[1], 1)"
)
_FORGOTTEN_S = 30 * 24 * 3600
"""Libraries that nobody has loaded for so long make room for others."""
_HASTE = {
    "aot_inductor.compile_wrapper_opt_level": "O0",  # for what calls the kernels, not for these
    "aot_inductor.enable_line_tables": False,  # since torch 2.13
}
_CODE = Path(__file__).parents[1]
SEES_STACKS = (
    "convolution.py",
    "data/decoding.py",
    "engines/base.py",
    "engines/kept.py",
    "engines/merging.py",
    "engines/programs.py",
    "engines/rewriting.py",
    "engines/tracing.py",
    "engines/zeros.py",
    "keyed.py",
    "models/recurrence.py",
    "products.py",
    "sharing.py",
)
"""Code that may do otherwise for another number of clients, or has a say in what operations come down to."""


def list_name(graph: GraphModule, given: Sequence[Tensor]) -> str:
    """A name that no other list of operations on such tensors has."""
    return hashed((*_operations(graph), *_kinds(given)))


def library(name: str, given: Sequence[Tensor], follow: Callable[[], GraphModule]) -> Path:
    """The library for such tensors of a list that is known by a name, and followed if there is none yet."""
    _refuse_if_none_loads()
    at = place() / "steps" / hashed((name.encode(), *_kinds(given), *_surroundings()))
    if not (at / _LIBRARY).exists():
        _make(follow(), given, at)
    return at / _LIBRARY


def _refuse_if_none_loads() -> None:
    """Raises where libraries have been found not to load.

    Loading ends the process where the compiler gives each library a C++ standard library of its own, beside torch's.
    """
    verdict = _verdict()
    if verdict.exists() and verdict.read_text() != _LOADS:
        raise RuntimeError("compiled code does not load from files here")


def _try_out(library: Path) -> None:
    """Finds out once, with the first library that is made, whether a process survives loading it."""
    if not (verdict := _verdict()).exists():
        end = _end_of(library)
        verdict.write_text(_LOADS if end in (0, 1) else f"no: {end}")  # 1: an exception, which is no harm


def _end_of(library: Path) -> int:
    """What a process that loads a library ends with; it needs this project's operations, or would not come so far."""
    ours = [name for name in sys.modules if name.startswith("fedtailor.") and name != "fedtailor.__main__"]
    return subprocess.run([sys.executable, "-c", _LOADING, str(library), *ours], capture_output=True).returncode


def _verdict() -> Path:
    return place() / f"loads-{hashed([repr((torch.__version__, processor())).encode()])}"


def loaded(library: Path) -> Callable[[Sequence[Tensor]], object]:
    """What a library does."""
    os.utime(library.parent)
    runner: Any = torch._C._aoti.AOTIModelContainerRunnerCpu(str(library), 1)
    run: Callable[[Sequence[Tensor]], object] = runner.run
    return run


def _make(graph: GraphModule, given: Sequence[Tensor], at: Path) -> None:
    """Compiles into a folder that appears when it is whole; if another process was faster, its own is as good."""
    import torch._inductor  # here: it takes seconds, which nobody else should wait for

    at.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=at.parent) as room:
        made = Path(room) / "made"
        made.mkdir()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of torch, about itself
            known = torch._inductor.config.get_config_copy()
            haste = {name: value for name, value in _HASTE.items() if name in known}
            options = haste | {"aot_inductor.output_path": str(made / _LIBRARY)}
            torch._inductor.aot_compile(graph, tuple(given), options=options)
        for calls in made.glob("*.wrapper.json"):
            # where a library looks for operations that torch lacks
            calls.rename((made / _LIBRARY).with_suffix(".json"))
        _try_out(made / _LIBRARY)
        _refuse_if_none_loads()
        if not at.exists():
            shutil.move(made, at)
    _forget(at.parent)


def _forget(steps: Path) -> None:
    """Removes what nobody uses any more."""
    for each in steps.iterdir():
        with suppress(FileNotFoundError):  # another process was faster
            if time.time() - each.stat().st_mtime > _FORGOTTEN_S:
                shutil.rmtree(each)


def _operations(graph: GraphModule) -> Iterator[bytes]:
    """A list's operations and the constants in it."""
    yield graph.code.encode()
    for node in graph.graph.nodes:
        if node.op == "get_attr":
            constant = attrgetter(node.target)(graph)
            yield from _operations(constant) if isinstance(constant, GraphModule) else _contents(constant)


def _contents(constant: Tensor) -> Iterator[bytes]:
    yield from _kinds([constant])
    yield constant.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def _kinds(tensors: Iterable[Tensor]) -> Iterator[bytes]:
    return (repr((each.dtype, tuple(each.shape), each.stride())).encode() for each in tensors)


def _surroundings() -> Iterator[bytes]:
    """What code depends on besides the operations."""
    machine = processor(), torch.get_num_threads()
    told = sorted((name, value) for name, value in os.environ.items() if _counts(name))
    yield repr((torch.__version__, machine, told)).encode()
    yield _own_code()


def _counts(variable: str) -> bool:
    """Whether a variable of the environment may change what the compiler does."""
    return variable != PLACE and variable.startswith(("TORCHINDUCTOR_", "AOT_INDUCTOR_", "TORCH_COMPILE", "CXX"))


@cache
def _own_code() -> bytes:
    """What a list of operations for a whole stack does not tell: this project's code that sees stacks."""
    return hashed((_CODE / name).read_bytes() for name in SEES_STACKS).encode()
