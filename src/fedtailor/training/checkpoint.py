"""Checkpoints: the server's state and every client's state after a round, whole or not at all.

    OUT/checkpoints/000010/manifest.json      format, round, and the checksum of every file that belongs to it
                           state.safetensors  the server state's tensors, numbered
    OUT/client_state/000010-*.safetensors     the client states that changed since the checkpoint before

Client states are a log: a checkpoint names the segments that make them up, oldest first, and only what has changed is
written. The log is rewritten as one segment when it has grown to twice what it holds. The last two checkpoints are
kept. One that is damaged is skipped, and goes when the next one is whole.
"""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fedtailor.core import trees
from fedtailor.core.types import ServerState, Tree
from fedtailor.engines.client_state import ClientStateStore
from fedtailor.errors import InputError, require
from fedtailor.storage.atomic import replace_folder
from fedtailor.storage.checksums import compute_sha256
from fedtailor.storage.files import read_json, read_tensors, write_json, write_tensors

FORMAT = 1
NUM_KEPT = 2


class RestoredCheckpoint(NamedTuple):
    """A checkpoint that was read back."""

    state: ServerState
    rounds_done: int  # of rounds done
    skipped: tuple[str, ...]  # damaged ones, with the reason


class CheckpointManager:
    """The checkpoints of one run."""

    def __init__(self, out: Path) -> None:
        self._checkpoint_dir, self._client_state_dir = out / "checkpoints", out / "client_state"
        self._log: list[dict[str, Any]] = []
        self._damaged: set[Path] = set()

    def save(self, rounds_done: int, state: ServerState, client_states: ClientStateStore) -> None:
        """Writes a checkpoint; once it returns, the run can go on from here."""
        self._client_state_dir.mkdir(parents=True, exist_ok=True)
        log = self._write_log(rounds_done, client_states)
        tensors = {f"{path:04}": leaf for path, leaf in enumerate(trees.leaves(tuple(state)))}
        path = self._checkpoint_dir / f"{rounds_done:06}"
        with replace_folder(path) as temp_dir:
            state_checksum = write_tensors(temp_dir / "state.safetensors", tensors)
            manifest = {
                "format": FORMAT,
                "round": rounds_done,
                "state": state_checksum,
                "client_state": log,
            }
            write_json(
                temp_dir / "manifest.json", manifest | {"checksum": _compute_checksum(manifest)}
            )
        self._log = log
        self._damaged.discard(path)
        client_states.changed.zero_()
        self._prune()

    def restore_latest(
        self, server_template: ServerState, client_states: ClientStateStore, client_template: Tree
    ) -> RestoredCheckpoint | None:
        """Read the newest whole checkpoint: states like `server_template` and `client_template`."""
        skipped: list[str] = []
        for folder in reversed(self._list_checkpoints()):
            try:
                return self._restore(
                    folder, server_template, client_states, client_template, skipped
                )
            except _UnsupportedFormatError:
                raise
            except (
                InputError,
                OSError,
                KeyError,
                ValueError,
                TypeError,
                AttributeError,
            ) as problem:
                self._damaged.add(folder)
                skipped.append(
                    f"checkpoint {folder.name} is damaged and was passed over: {problem}"
                )
        require(
            not skipped,
            f"No checkpoint in '{self._checkpoint_dir}' is whole, so start the run anew in another folder: "
            f"{'; '.join(each.rstrip('.') for each in skipped)}.",
        )
        return None

    def _restore(
        self,
        folder: Path,
        server_template: ServerState,
        client_states: ClientStateStore,
        client_template: Tree,
        skipped: list[str],
    ) -> RestoredCheckpoint:
        manifest = read_json(folder / "manifest.json")
        if manifest["format"] != FORMAT:
            raise _UnsupportedFormatError(
                f"'{folder}' was written in format {manifest['format']}, but this fedtailor reads format {FORMAT}; "
                "go on with the version that wrote it."
            )
        expected = manifest.pop("checksum")
        is_intact = expected == _compute_checksum(manifest) and manifest["round"] == int(
            folder.name
        )
        require(is_intact, "'manifest.json' is not what was written.")
        _verify_checksum(folder / "state.safetensors", manifest["state"])
        for segment in manifest["client_state"]:
            _verify_checksum(self._client_state_dir / segment["file"], segment["checksum"])
        leaves = list(read_tensors(folder / "state.safetensors").items())
        tensors = [
            tensor.to(old.device)
            for (_, tensor), old in zip(
                sorted(leaves), trees.leaves(tuple(server_template)), strict=True
            )
        ]
        for segment in manifest["client_state"]:
            self._replay(segment, client_states, client_template)
        client_states.changed.zero_()
        self._log = manifest["client_state"]
        return RestoredCheckpoint(
            ServerState(*trees.unflatten(tuple(server_template), tensors)),
            int(manifest["round"]),
            tuple(skipped),
        )

    def _replay(
        self, segment: dict[str, Any], client_states: ClientStateStore, client_template: Tree
    ) -> None:
        tensors = read_tensors(self._client_state_dir / segment["file"])
        rows = tensors.pop("clients")
        client_states.restore(
            rows.numpy(), [tensors[name] for name in sorted(tensors)], client_template
        )

    def _write_log(self, rounds_done: int, client_states: ClientStateStore) -> list[dict[str, Any]]:
        """The log with what has changed, or all of it anew."""
        changed, initialized = (
            torch.nonzero(client_states.changed).flatten(),
            torch.nonzero(client_states.initialized).flatten(),
        )
        if not len(changed):
            return self._log
        if sum(segment["clients"] for segment in self._log) + len(changed) > 2 * len(initialized):
            return [self._write_segment(rounds_done, client_states, initialized, "whole")]
        return [*self._log, self._write_segment(rounds_done, client_states, changed, "changed")]

    def _write_segment(
        self, rounds_done: int, client_states: ClientStateStore, rows: torch.Tensor, kind: str
    ) -> dict[str, Any]:
        name = f"{rounds_done:06}-{kind}.safetensors"
        leaves = {
            f"{index:04}": leaf for index, leaf in enumerate(client_states.read_rows(rows.numpy()))
        }
        digest = write_tensors(self._client_state_dir / name, {"clients": rows, **leaves})
        return {"file": name, "checksum": digest, "clients": len(rows)}

    def _list_checkpoints(self) -> list[Path]:
        return sorted(
            path for path in self._checkpoint_dir.glob("*") if path.is_dir() and path.name.isdigit()
        )

    def _prune(self) -> None:
        """Removes damaged and half-written checkpoints, those beyond the last two, and pieces that none names."""
        kept = [folder for folder in self._list_checkpoints() if folder not in self._damaged][
            -NUM_KEPT:
        ]
        for path in self._checkpoint_dir.iterdir():
            if path.is_dir() and path not in kept:
                shutil.rmtree(path)
        used = {name for folder in kept for name in _list_segment_files(folder)}
        for path in self._client_state_dir.iterdir():
            if path.is_file() and path.name not in used:
                path.unlink()


class _UnsupportedFormatError(InputError):
    """A checkpoint that another version wrote."""


def _list_segment_files(folder: Path) -> list[str]:
    """The pieces of memory that a checkpoint names; none if it is damaged."""
    try:
        return [segment["file"] for segment in read_json(folder / "manifest.json")["client_state"]]
    except (InputError, KeyError, TypeError):
        return []


def _compute_checksum(manifest: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _verify_checksum(path: Path, expected: str) -> None:
    require(path.exists(), f"'{path.name}' is missing.")
    require(compute_sha256(path) == expected, f"'{path.name}' is not what was written.")
