"""Checkpoints: damage is skipped, the log of client states has the right rows, nothing is left."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedtailor.core import trees
from fedtailor.core.types import ServerState
from fedtailor.engines.client_state import ClientStateStore
from fedtailor.errors import InputError
from fedtailor.storage.manifest import ListedFolder
from fedtailor.training.checkpoint import CheckpointManager, RestoredCheckpoint
from fedtailor.training.record.schema import FORMAT
from fedtailor.training.round_log import RoundLog
from fedtailor.training.run_dir import RunDir
from fedtailor.training.runner import resume_run, start_run
from interruptions import left, litter, small

CLIENTS = 8
ONE = {"weight": torch.zeros(3), "count": torch.zeros((), dtype=torch.int64)}


def state(number: int) -> ServerState:
    draws = torch.Generator().manual_seed(number)
    shared = torch.rand(2, 3, generator=draws)
    key = torch.tensor([number, 7])
    return ServerState(
        {"a": shared, "b": shared},
        torch.tensor(number),
        key,
        ({"m": torch.rand(4, generator=draws)}, ()),
    )


def scatter(memory: ClientStateStore, who: list[int], value: int) -> None:
    rows = torch.arange(len(who) * 3).reshape(-1, 3) + 100.0 * value
    memory.scatter(np.array(who), {"weight": rows, "count": torch.full((len(who),), value)})


def same(one: Any, other: Any) -> bool:
    pairs = zip(trees.leaves(one), trees.leaves(other), strict=True)
    return all(torch.equal(a, b) and a.dtype == b.dtype for a, b in pairs)


def make_checkpoints(out: Path) -> CheckpointManager:
    """Return the checkpoints of a run whose log has no rounds."""
    return CheckpointManager(out, RoundLog(out / "rounds.jsonl"))


def read(
    out: Path, folder: Path | None = None
) -> tuple[RestoredCheckpoint | None, ClientStateStore]:
    memory = ClientStateStore(CLIENTS, folder)
    return make_checkpoints(out).restore_latest(state(0), memory, ONE), memory


def rows(memory: ClientStateStore) -> dict[int, list[Tensor]]:
    known = np.flatnonzero(memory.initialized.numpy())
    leaves = memory.read_rows(known)
    return {int(client): [leaf[at] for leaf in leaves] for at, client in enumerate(known)}


def write_some(
    out: Path, rounds: int, folder: Path | None = None
) -> dict[int, dict[int, list[Tensor]]]:
    """A checkpoint a round, with memories of random clients; returns what each ought to hold."""
    memory, checkpoints, draws = (
        ClientStateStore(CLIENTS, folder),
        make_checkpoints(out),
        np.random.default_rng(0),
    )
    held: dict[int, dict[int, list[Tensor]]] = {}
    for number in range(1, rounds + 1):
        scatter(memory, draws.permutation(CLIENTS)[: draws.integers(1, 4)].tolist(), number)
        checkpoints.save(number, state(number), memory)
        held[number] = rows(memory)
    return held


@pytest.mark.parametrize("kept_in", ["RAM", "files"])
def test_what_was_saved_is_read_back(kept_in: str, tmp_path: Path) -> None:
    for number in range(1, 13):
        out = tmp_path / str(number)
        held = write_some(out, number, out / "scratch" if kept_in == "files" else None)[number]
        found, memory = read(out, out / "again" if kept_in == "files" else None)
        assert found is not None
        assert (found.rounds_done, found.skipped) == (number, ())
        assert same(found.state, state(number))
        assert same(rows(memory), held)
        assert not memory.changed.any()


def test_the_log_stays_small_and_only_what_is_named_stays(tmp_path: Path) -> None:
    compacted = 0
    for number in range(1, 25):
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        held = write_some(tmp_path / "out", number)
        manifests = [
            json.loads(path.read_text())
            for path in sorted(tmp_path.glob("out/checkpoints/*/manifest.json"))
        ]
        assert [each["round"] for each in manifests] == [n for n in (number - 1, number) if n]
        log = manifests[-1]["client_state"]
        assert sum(piece["clients"] for piece in log) <= 2 * len(held[number])
        compacted += "whole" in log[-1]["file"]
        named = {piece["file"] for each in manifests for piece in each["client_state"]}
        assert {path.name for path in (tmp_path / "out" / "client_state").iterdir()} == named
    assert compacted > 2


def test_what_has_not_changed_is_not_written_again(tmp_path: Path) -> None:
    memory, checkpoints = (
        ClientStateStore(CLIENTS),
        CheckpointManager(tmp_path, RoundLog(tmp_path / "rounds.jsonl")),
    )
    scatter(memory, [1, 2], 1)
    checkpoints.save(1, state(1), memory)
    checkpoints.save(2, state(2), memory)
    assert [path.name for path in (tmp_path / "client_state").iterdir()] == [
        "000001-changed.safetensors"
    ]
    found, again = read(tmp_path)
    assert found is not None
    assert same(rows(again), rows(memory))


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def other_json(path: Path) -> None:
    path.write_text("[1, 2]")


def other_round(path: Path) -> None:
    path.write_text(path.read_text().replace('"round": 6', '"round": 5'))


DAMAGE: list[tuple[str, Callable[[Path], None], str]] = [
    (
        "checkpoints/000006/state.safetensors",
        truncate,
        "'state.safetensors' is not what was written.",
    ),
    ("checkpoints/000006/state.safetensors", flip, "'state.safetensors' is not what was written."),
    ("checkpoints/000006/state.safetensors", Path.unlink, "'state.safetensors' is missing."),
    ("checkpoints/000006/manifest.json", Path.unlink, "There is no file '"),
    ("checkpoints/000006/manifest.json", truncate, "'"),
    ("checkpoints/000006/manifest.json", empty, "'"),
    ("checkpoints/000006/manifest.json", other_json, ""),
    ("checkpoints/000006/manifest.json", other_round, "'manifest.json' is not what was written."),
    ("client_state/000006-*.safetensors", truncate, "'000006-"),
    ("client_state/000006-*.safetensors", flip, "'000006-"),
    ("client_state/000006-*.safetensors", Path.unlink, "'000006-"),
]
DAMAGES = pytest.mark.parametrize(
    ("place", "damage", "reason"),
    DAMAGE,
    ids=[f"{row[0][-16:]} {row[1].__name__}" for row in DAMAGE],
)
RUN = ["method=local", "when=sampled", "rounds=8", "checkpoint_every=2", "evaluate_every=8"]


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with checkpoints after rounds 4 and 6."""
    out = tmp_path_factory.mktemp("stopped") / "out"
    assert not start_run(
        small(*RUN), out, should_stop=iter([False] * 5 + [True]).__next__
    ).is_finished
    return out


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("whole") / "out"
    start_run(small(*RUN), out)
    return left(out)


@DAMAGES
def test_a_damaged_checkpoint_is_skipped_and_a_note_says_so(
    place: str,
    damage: Callable[[Path], None],
    reason: str,
    stopped: Path,
    whole: dict[str, Any],
    tmp_path: Path,
) -> None:
    out = shutil.copytree(stopped, tmp_path / "out")
    (path,) = out.glob(place)
    damage(path)
    for name in ("checkpoints/.000007.new", "checkpoints/.000006.new"):
        (out / name).mkdir()
    (out / "client_state" / ".000007-changed.safetensors.new").write_bytes(b"half")
    record = resume_run(out).record
    (note,) = record.choices.notes
    assert note.startswith(f"checkpoint 000006 was skipped: {reason}")
    assert left(out) == whole
    assert litter(out) == []


def test_every_flipped_byte_of_a_manifest_is_noticed(tmp_path: Path) -> None:
    write_some(tmp_path, 3)
    path = tmp_path / "checkpoints" / "000003" / "manifest.json"
    content, refused = path.read_bytes(), []
    for at in range(len(content)):
        path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        try:
            found, _ = read(tmp_path)
        except InputError as problem:
            refused.append(str(problem))
            continue
        assert found is not None
        blank = not content[at : at + 1].strip()
        assert found.rounds_done == 2 or (blank and same(found.state, state(3)))
    (sentence,) = refused
    assert "was written in format 2, but this fedtailor reads format 3" in sentence


def test_the_damaged_one_goes_when_the_next_is_whole(stopped: Path, tmp_path: Path) -> None:
    out = shutil.copytree(stopped, tmp_path / "out")
    flip(out / "checkpoints" / "000006" / "state.safetensors")
    resume_run(out, should_stop=lambda: True)
    assert sorted(path.name for path in (out / "checkpoints").iterdir()) == ["000004", "000005"]


def test_no_checkpoint_is_intact(stopped: Path, tmp_path: Path) -> None:
    out = shutil.copytree(stopped, tmp_path / "out")
    for path in out.glob("checkpoints/*/state.safetensors"):
        flip(path)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    with pytest.raises(InputError) as caught:
        resume_run(out)
    assert re.fullmatch(
        r"No checkpoint in '.*/checkpoints' can be used, so put back the files that were written, "
        r"or start the run again in another folder: "
        r"checkpoint 000006 was skipped: "
        r"'state.safetensors' is not what was written; "
        r"checkpoint 000004 was skipped: "
        r"'state.safetensors' is not what was written\.",
        str(caught.value),
    )
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_another_format_is_refused(stopped: Path, tmp_path: Path) -> None:
    out = shutil.copytree(stopped, tmp_path / "out")
    manifest = out / "checkpoints" / "000006" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"format": 3', '"format": 2'))
    with pytest.raises(
        InputError,
        match=r"was written in format 2, but this fedtailor reads format 3; use the version that ",
    ):
        resume_run(out)
    content = json.loads((out / "config.json").read_text())
    assert content["format"] == FORMAT
    newer_config = json.dumps(content | {"format": FORMAT + 1}).encode()
    ListedFolder(out).write({"config.json": newer_config})
    with pytest.raises(
        InputError,
        match=r"^'.*config.json' was written in format 5, but this fedtailor reads format 4; use ",
    ):
        resume_run(out)


def test_lost_rounds_are_noticed(stopped: Path, tmp_path: Path) -> None:
    out = shutil.copytree(stopped, tmp_path / "out")
    lines = (out / "rounds.jsonl").read_text().splitlines(keepends=True)
    (out / "rounds.jsonl").write_text("".join(lines[:2] + lines[3:]))
    with pytest.raises(
        InputError,
        match=r"^No checkpoint in '.*' can be used, .*: checkpoint 000006 was skipped: line 3 of "
        r"'rounds.jsonl' is not what was written, so the rounds up to this checkpoint are not known"
        r"; checkpoint 000004 was skipped: line 3 of .* are not known\.$",
    ):
        resume_run(out)


def test_a_half_written_line_is_left_out(
    stopped: Path, whole: dict[str, Any], tmp_path: Path
) -> None:
    out = shutil.copytree(stopped, tmp_path / "out")
    with (out / "rounds.jsonl").open("a") as file:
        file.write('{"round": 7, "bytes')
    assert len(RunDir(out).read_rounds()) == 6
    resume_run(out)
    assert left(out) == whole
