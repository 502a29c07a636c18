"""Checkpoints: the server's state and every client's memory after a round, whole or not at all.

    OUT/checkpoints/000010/manifest.json      format, round, and the checksum of every file that belongs to it
                           state.safetensors  the state's tensors, numbered
    OUT/memory/000010.safetensors             the memories that changed since the checkpoint before, with their clients

Memories are a log: a checkpoint names the pieces that make them up, oldest first, and only what has changed is written.
The log is rewritten as one piece when it has grown to twice what it holds. The last two checkpoints are kept. One that
is damaged is passed over, and goes when the next one is whole.
"""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fedtailor import trees
from fedtailor.disk import checksum, replace_folder
from fedtailor.engines.memory import Memory
from fedtailor.errors import InputError, require
from fedtailor.run.files import read_json, read_tensors, write_json, write_tensors
from fedtailor.types import State, Tree

FORMAT = 1
KEPT = 2


class Found(NamedTuple):
    """A checkpoint that was read back."""

    state: State
    number: int  # of rounds done
    passed_over: tuple[str, ...]  # damaged ones, with the reason


class Checkpoints:
    """The checkpoints of one run."""

    def __init__(self, out: Path) -> None:
        self._folder, self._pieces = out / "checkpoints", out / "memory"
        self._log: list[dict[str, Any]] = []
        self._damaged: set[Path] = set()

    def save(self, number: int, state: State, memory: Memory) -> None:
        """Writes a checkpoint; once it returns, the run can go on from here."""
        self._pieces.mkdir(parents=True, exist_ok=True)
        log = self._written(number, memory)
        tensors = {f"{place:04}": leaf for place, leaf in enumerate(trees.leaves(tuple(state)))}
        place = self._folder / f"{number:06}"
        with replace_folder(place) as fresh:
            state_sum = write_tensors(fresh / "state.safetensors", tensors)
            manifest = {"format": FORMAT, "round": number, "state": state_sum, "memory": log}
            write_json(fresh / "manifest.json", manifest | {"sum": _sum(manifest)})
        self._log = log
        self._damaged.discard(place)
        memory.changed.zero_()
        self._tidy()

    def latest(self, like: State, memory: Memory, one_memory: Tree) -> Found | None:
        """Reads back the newest whole checkpoint: a state shaped like `like`, and memories shaped like `one_memory`."""
        passed_over: list[str] = []
        for folder in reversed(self._found()):
            try:
                return self._read(folder, like, memory, one_memory, passed_over)
            except _OtherFormatError:
                raise
            except (InputError, OSError, KeyError, ValueError, TypeError, AttributeError) as problem:
                self._damaged.add(folder)
                passed_over.append(f"checkpoint {folder.name} is damaged and was passed over: {problem}")
        require(
            not passed_over,
            f"No checkpoint in '{self._folder}' is whole, so start the run anew in another folder: "
            f"{'; '.join(each.rstrip('.') for each in passed_over)}.",
        )
        return None

    def _read(self, folder: Path, like: State, memory: Memory, one_memory: Tree, passed_over: list[str]) -> Found:
        manifest = read_json(folder / "manifest.json")
        if manifest["format"] != FORMAT:
            raise _OtherFormatError(
                f"'{folder}' was written in format {manifest['format']}, but this fedtailor reads format {FORMAT}; "
                "go on with the version that wrote it."
            )
        said = manifest.pop("sum")
        same = said == _sum(manifest) and manifest["round"] == int(folder.name)
        require(same, "'manifest.json' is not what was written.")
        _require_sum(folder / "state.safetensors", manifest["state"])
        for piece in manifest["memory"]:
            _require_sum(self._pieces / piece["file"], piece["sum"])
        leaves = list(read_tensors(folder / "state.safetensors").items())
        tensors = [
            tensor.to(old.device) for (_, tensor), old in zip(sorted(leaves), trees.leaves(tuple(like)), strict=True)
        ]
        for piece in manifest["memory"]:
            self._replay(piece, memory, one_memory)
        memory.changed.zero_()
        self._log = manifest["memory"]
        return Found(State(*trees.rebuild(tuple(like), tensors)), int(manifest["round"]), tuple(passed_over))

    def _replay(self, piece: dict[str, Any], memory: Memory, one_memory: Tree) -> None:
        tensors = read_tensors(self._pieces / piece["file"])
        rows = tensors.pop("clients")
        memory.restore(rows.numpy(), [tensors[name] for name in sorted(tensors)], one_memory)

    def _written(self, number: int, memory: Memory) -> list[dict[str, Any]]:
        """The log with what has changed, or all of it anew."""
        changed, known = torch.nonzero(memory.changed).flatten(), torch.nonzero(memory.known).flatten()
        if not len(changed):
            return self._log
        if sum(piece["clients"] for piece in self._log) + len(changed) > 2 * len(known):
            return [self._write(number, memory, known, "whole")]
        return [*self._log, self._write(number, memory, changed, "changed")]

    def _write(self, number: int, memory: Memory, rows: torch.Tensor, kind: str) -> dict[str, Any]:
        name = f"{number:06}-{kind}.safetensors"
        leaves = {f"{place:04}": leaf for place, leaf in enumerate(memory.rows(rows.numpy()))}
        total = write_tensors(self._pieces / name, {"clients": rows, **leaves})
        return {"file": name, "sum": total, "clients": len(rows)}

    def _found(self) -> list[Path]:
        return sorted(path for path in self._folder.glob("*") if path.is_dir() and path.name.isdigit())

    def _tidy(self) -> None:
        """Removes damaged and half-written checkpoints, those beyond the last two, and pieces that none names."""
        kept = [folder for folder in self._found() if folder not in self._damaged][-KEPT:]
        for path in self._folder.iterdir():
            if path.is_dir() and path not in kept:
                shutil.rmtree(path)
        used = {name for folder in kept for name in _pieces_named(folder)}
        for path in self._pieces.iterdir():
            if path.is_file() and path.name not in used:
                path.unlink()


class _OtherFormatError(InputError):
    """A checkpoint that another version wrote."""


def _pieces_named(folder: Path) -> list[str]:
    """The pieces of memory that a checkpoint names; none if it is damaged."""
    try:
        return [piece["file"] for piece in read_json(folder / "manifest.json")["memory"]]
    except (InputError, KeyError, TypeError):
        return []


def _sum(manifest: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _require_sum(path: Path, expected: str) -> None:
    require(path.exists(), f"'{path.name}' is missing.")
    require(checksum(path) == expected, f"'{path.name}' is not what was written.")
