"""Checkpoints: the server's state and every client's after a round, all or nothing.

    OUT/checkpoints/000010/manifest.json      format, round, and the checksums of its files, of the
                                              specification and of the log of rounds up to there
                           state.safetensors  the server state's tensors, numbered
    OUT/client_state/000010-*.safetensors     client states changed since the checkpoint before

Client states are a log: a checkpoint lists the segments that they are made of, oldest first, and
only what has changed is written. The log is rewritten as one segment when it has grown to twice the
states. The last two checkpoints are kept. A damaged one is skipped, and removed when the next one
is complete.
"""

import errno
import shutil
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fedtailor.core import trees
from fedtailor.core.types import ServerState, Tree
from fedtailor.engines.client_state import ClientStateStore
from fedtailor.errors import InputError, require
from fedtailor.storage.atomic import replace_folder
from fedtailor.storage.checksums import compute_sha256
from fedtailor.storage.files import read_tensors, write_tensors
from fedtailor.storage.manifest import MANIFEST_FILE, SealedModel
from fedtailor.storage.typed_json import UnsupportedFormatError, read_versioned, write_model
from fedtailor.training.record.schema import RecordPart
from fedtailor.training.round_log import RoundLog

NUM_KEPT = 2
"""Checkpoints that are kept."""
MAX_LOG_FACTOR = 2
"""States in the log, for each client that has one, beyond which the log is rewritten."""
_FULL_DISK_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors of client states in files that the disk has no room for; the checkpoint is intact."""
_DAMAGE_ERRORS = (InputError, OSError, KeyError, ValueError)
"""Errors that reading a damaged checkpoint may raise."""


class Segment(RecordPart):
    """A file with the states of some clients, as a manifest lists it."""

    file: str
    checksum: str
    clients: int  # number of clients


class CheckpointManifest(SealedModel):
    """The content of a checkpoint's `manifest.json`."""

    format: Literal[3] = 3
    config: str  # checksum of the specification's file
    round: int  # rounds done
    rounds: str  # checksum of the lines of these rounds in the log
    state: str  # checksum of the file with the server's state
    client_state: list[Segment]  # oldest first


class RestoredCheckpoint(NamedTuple):
    """A checkpoint that was read back."""

    state: ServerState
    rounds_done: int
    skipped: tuple[str, ...]  # messages about newer checkpoints that are damaged


class CheckpointManager:
    """The checkpoints of one run: saved, restored and pruned."""

    def __init__(
        self, out: Path, round_log: RoundLog | None, config_checksum: str | None = None
    ) -> None:
        """Take the folder of a run, and what its checkpoints must belong to.

        Args:
            out: The folder.
            round_log: The log of rounds; None where only the state is needed, which is whole
                whatever has happened to the log.
            config_checksum: The checksum of the specification's file; None where that is damaged.
        """
        self._round_log = round_log
        self._config_checksum = config_checksum
        self._checkpoint_dir = out / "checkpoints"
        self._client_state_dir = out / "client_state"
        self._log: list[Segment] = []
        self._damaged: set[Path] = set()

    def save(self, rounds_done: int, state: ServerState, client_states: ClientStateStore) -> None:
        """Write a checkpoint; once this returns, the run can be resumed from here.

        Args:
            rounds_done: Rounds so far, which name the checkpoint.
            state: The server's state.
            client_states: All client states; those marked as changed are written, and unmarked.
        """
        assert self._round_log is not None
        self._client_state_dir.mkdir(parents=True, exist_ok=True)
        log = self._extend_log(rounds_done, client_states)
        leaves = trees.leaves(tuple(state))
        tensors = {f"{index:04}": leaf for index, leaf in enumerate(leaves)}
        path = self._checkpoint_dir / f"{rounds_done:06}"
        with replace_folder(path) as temp_dir:
            manifest = CheckpointManifest(
                config=self._config_checksum or "",
                round=rounds_done,
                rounds=self._round_log.get_checksum(rounds_done),
                state=write_tensors(temp_dir / "state.safetensors", tensors),
                client_state=log,
            )
            write_model(temp_dir / MANIFEST_FILE, manifest.seal())
        self._log = log
        self._damaged.discard(path)
        client_states.changed.zero_()
        self._prune()

    def restore_latest(
        self, server_template: ServerState, client_states: ClientStateStore, client_template: Tree
    ) -> RestoredCheckpoint | None:
        """Read the newest intact checkpoint; None if there are no checkpoints.

        Args:
            server_template: A server state of the same structure.
            client_states: The store that the clients' states are read into.
            client_template: A state of one client, of the same structure.

        Raises:
            InputError: There are checkpoints, but none is intact or one has another format.
        """
        skipped: list[str] = []
        for folder in reversed(self._list_checkpoints()):
            try:
                state = self._restore(folder, server_template, client_states, client_template)
            except UnsupportedFormatError:
                raise
            except _DAMAGE_ERRORS as problem:
                if isinstance(problem, OSError) and problem.errno in _FULL_DISK_ERRNOS:
                    raise
                self._damaged.add(folder)
                skipped.append(f"checkpoint {folder.name} was skipped: {problem}")
            else:
                return RestoredCheckpoint(state, int(folder.name), tuple(skipped))
        reasons = "; ".join(reason.rstrip(".") for reason in skipped)
        require(
            not skipped,
            f"No checkpoint in '{self._checkpoint_dir}' can be used, so put back the files that "
            f"were written, or start the run again in another folder: {reasons}.",
        )
        return None

    def find_last_round(self) -> int:
        """Return the rounds done at the newest checkpoint, intact or not; 0 if there is none."""
        folders = self._list_checkpoints()
        return int(folders[-1].name) if folders else 0

    def find_problems(self) -> dict[int, str]:
        """Return what is wrong with each checkpoint by its round, "" with intact ones."""
        problems: dict[int, str] = {}
        for folder in self._list_checkpoints():
            try:
                self._read_verified_manifest(folder)
                problems[int(folder.name)] = ""
            except InputError as problem:
                problems[int(folder.name)] = str(problem)
        return problems

    def _restore(
        self,
        folder: Path,
        server_template: ServerState,
        client_states: ClientStateStore,
        client_template: Tree,
    ) -> ServerState:
        """Read a checkpoint's client states into the store, and return its server state."""
        segments = self._read_verified_manifest(folder).client_state
        tensors = read_tensors(folder / "state.safetensors")
        old_leaves = trees.leaves(tuple(server_template))
        leaves = [
            tensors[name].to(old.device)
            for name, old in zip(sorted(tensors), old_leaves, strict=True)
        ]
        for segment in segments:
            self._replay(segment, client_states, client_template)
        client_states.changed.zero_()
        self._log = segments
        return ServerState(*trees.unflatten(tuple(server_template), leaves))

    def _read_verified_manifest(self, folder: Path) -> CheckpointManifest:
        """Return a checkpoint's manifest; raise an InputError unless it and its files are intact.

        So must be the lines of the log up to its round, if there is a log.
        """
        manifest = read_versioned(folder / MANIFEST_FILE, CheckpointManifest)
        require(
            manifest.is_intact() and manifest.round == int(folder.name),
            f"'{MANIFEST_FILE}' is not what was written.",
        )
        require(
            self._config_checksum in (None, manifest.config),
            "it is that of another run.",
        )
        _verify_checksum(folder / "state.safetensors", manifest.state)
        for segment in manifest.client_state:
            _verify_checksum(self._client_state_dir / segment.file, segment.checksum)
        if self._round_log is None:
            return manifest
        reason = self._round_log.damage or f"'{self._round_log.path.name}' is not that of this run"
        require(
            manifest.rounds == self._round_log.get_checksum(manifest.round),
            f"{reason}, so the rounds up to this checkpoint are not known.",
        )
        return manifest

    def _replay(
        self, segment: Segment, client_states: ClientStateStore, client_template: Tree
    ) -> None:
        tensors = read_tensors(self._client_state_dir / segment.file)
        client_ids = tensors.pop("clients").numpy()
        leaves = [tensors[name] for name in sorted(tensors)]
        client_states.restore(client_ids, leaves, client_template)

    def _extend_log(self, rounds_done: int, client_states: ClientStateStore) -> list[Segment]:
        """Return the log with the states that have changed, or all of them in one new segment."""
        changed = torch.nonzero(client_states.changed).flatten()
        if not len(changed):
            return self._log
        initialized = torch.nonzero(client_states.initialized).flatten()
        num_logged = sum(segment.clients for segment in self._log)
        if num_logged + len(changed) > MAX_LOG_FACTOR * len(initialized):
            return [self._write_segment(rounds_done, client_states, initialized, "whole")]
        return [*self._log, self._write_segment(rounds_done, client_states, changed, "changed")]

    def _write_segment(
        self, rounds_done: int, client_states: ClientStateStore, client_ids: Tensor, kind: str
    ) -> Segment:
        name = f"{rounds_done:06}-{kind}.safetensors"
        tensors = {"clients": client_ids}
        for index, leaf in enumerate(client_states.read_rows(client_ids.numpy())):
            tensors[f"{index:04}"] = leaf
        checksum = write_tensors(self._client_state_dir / name, tensors)
        return Segment(file=name, checksum=checksum, clients=len(client_ids))

    def _list_checkpoints(self) -> list[Path]:
        return sorted(
            path for path in self._checkpoint_dir.glob("*") if path.is_dir() and path.name.isdigit()
        )

    def _prune(self) -> None:
        """Remove damaged, partial and old checkpoints, and segments that no kept one lists."""
        intact = [folder for folder in self._list_checkpoints() if folder not in self._damaged]
        remaining = intact[-NUM_KEPT:]
        for path in self._checkpoint_dir.iterdir():
            if path.is_dir() and path not in remaining:
                shutil.rmtree(path)
        used = {name for folder in remaining for name in _list_segment_files(folder)}
        for path in self._client_state_dir.iterdir():
            if path.is_file() and path.name not in used:
                path.unlink()


def _list_segment_files(folder: Path) -> list[str]:
    """Return the files of client states that a checkpoint lists; none if it is damaged."""
    try:
        manifest = read_versioned(folder / MANIFEST_FILE, CheckpointManifest)
    except InputError:
        return []
    return [segment.file for segment in manifest.client_state]


def _verify_checksum(path: Path, expected: str) -> None:
    require(path.exists(), f"'{path.name}' is missing.")
    require(compute_sha256(path) == expected, f"'{path.name}' is not what was written.")
