"""The folder of a run. This is the only place that reads and writes its JSON files.

OUT/manifest.json  size and SHA-256 of config.json, record.json, own_model.py, model.safetensors
OUT/config.json    the whole specification, written before anything slow begins
OUT/record.json    everything; written before the first round, when the run stops and at its end;
                   its specification is the one that counts, as `resume` may change some keys
OUT/rounds.jsonl   a line per round, as they end, with checksums of its own
OUT/model.safetensors, OUT/report.html    at the end
"""

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import BaseModel
from torch import Tensor

from fedtailor.errors import DivergedError, FedtailorError, InputError, LostRankError, require
from fedtailor.storage.atomic import explain_disk_errors, make_folder
from fedtailor.storage.files import encode_tensors
from fedtailor.storage.locks import hold_lock
from fedtailor.storage.manifest import MANIFEST_FILE, ListedFolder
from fedtailor.storage.trusted_code import trust_code
from fedtailor.storage.typed_json import encode_model, parse_versioned
from fedtailor.training.config import RunConfig
from fedtailor.training.record.schema import FORMAT, RecordPart, RoundEntry, RunRecord, Status
from fedtailor.training.round_log import RoundLog
from fedtailor.training.shell_commands import format_resume_command, quote_path

CONFIG_FILE = "config.json"
RECORD_FILE = "record.json"
ROUNDS_FILE = "rounds.jsonl"
MODEL_FILE = "model.safetensors"
CUSTOM_MODEL_FILE = "own_model.py"
"""A copy of the file that makes the user's model, so that the folder is complete by itself."""

RUN_KIND = "run"
"""What the manifest says that the folder holds."""

_LOCK_FILE = "lock"
_PARTIAL_FILES = {
    CUSTOM_MODEL_FILE,
    MANIFEST_FILE,
    _LOCK_FILE,
    *(f".{name}.new" for name in (CUSTOM_MODEL_FILE, MANIFEST_FILE, CONFIG_FILE)),
}
"""What a folder may hold if the process was killed before the run could be resumed."""


class ConfigFile(RecordPart):
    """The content of `config.json`."""

    format: Literal[4] = FORMAT
    config: RunConfig


class RecordHead(BaseModel):
    """The first fields of `record.json`; the others are not validated, which is fast."""

    format: Literal[4] = FORMAT
    status: Status
    config: RunConfig


_File = TypeVar("_File", bound=BaseModel)


class RunDir:
    """The folder of a run, which may not exist yet.

    What it reads is verified: a file that is not what was written is an InputError.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        quoted_path = quote_path(Path(path))
        self._folder = ListedFolder(
            self.path,
            "put back the file that was written; to go on with a run for longer there is "
            f"`fedtailor resume {quoted_path} rounds=500`, to start a new one from its weights "
            f"`fedtailor run --from {quoted_path} lr=0.3 out=NEW`.",
        )

    @contextmanager
    def create(self, config: RunConfig) -> Iterator[None]:
        """Make the folder for a new run, and lock it until the end of the block.

        A folder that holds anything is refused. If the block fails before a round has ended,
        nothing is left of the folder, or of what was written to an empty one, unless the model
        diverged, another rank was lost or an unexpected error was raised.
        """
        self._check_unused()
        not_begun = explain_disk_errors(
            self.path, "nothing has begun, so fix that and run it again."
        )
        with not_begun, make_folder(self.path), self.lock():
            self._check_unused()  # since the lock another process cannot begin here
            try:
                self._write_config(config)
                yield
            except Exception as problem:
                if not self._is_worth_resuming(problem):
                    self._clear()
                    raise
                with self.explain_disk_errors():
                    raise

    def check_new(self) -> None:
        """Raise an `InputError` unless a new run can be written here; nothing is written yet."""
        text = str(self.path)
        require("\0" not in text, f"out must be a path without null bytes, got {text!a}.")
        with explain_disk_errors(self.path, "choose another folder."):
            self._check_unused()
            parent = next(
                path for path in (self.path, *self.path.absolute().parents) if path.exists()
            )
        can_write = parent.is_dir() and os.access(parent, os.W_OK | os.X_OK)
        require(
            can_write,
            f"'{self.path}' could not be written, as '{parent}' is no folder that may be written "
            "to; choose another folder.",
        )

    def _check_unused(self) -> None:
        if not self.path.exists():
            return
        require(self.path.is_dir(), f"'{self.path}' is a file; choose another folder.")
        require(
            not self.exists(),
            f"'{self.path}' holds another run already; resume it with: "
            f"{format_resume_command(self.path)}",
        )
        other_files = {path.name for path in self.path.iterdir()} - _PARTIAL_FILES
        require(not other_files, f"'{self.path}' is not empty; choose another folder.")

    def _write_config(self, config: RunConfig) -> None:
        contents = {}
        if ":" in config.model:
            source = Path(config.model.rpartition(":")[0]).read_bytes()
            trust_code(source)
            contents[CUSTOM_MODEL_FILE] = source
        contents[CONFIG_FILE] = encode_model(ConfigFile(config=config))
        self._folder.create(RUN_KIND, contents)

    def _is_worth_resuming(self, problem: Exception) -> bool:
        """Return whether a run that has failed stays.

        Rounds have ended, or it can go on, or the failure is no refusal of what was asked for.
        """
        if not isinstance(problem, FedtailorError | OSError):
            return True
        is_kept = isinstance(problem, DivergedError | LostRankError) and self.has_record()
        return is_kept or bool(self.open_round_log().entries)

    def _clear(self) -> None:
        """Remove all that the folder holds but its lock."""
        for path in self.path.iterdir():
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            elif path.name != _LOCK_FILE:
                with suppress(OSError):
                    path.unlink()

    def exists(self) -> bool:
        """Return whether the folder holds a run: its specification has been written."""
        return (self.path / CONFIG_FILE).exists()

    def lock(self) -> AbstractContextManager[bool]:
        """Keep other processes from working on the same run."""
        return hold_lock(
            self.path / _LOCK_FILE,
            f"Another process is working on the run in '{self.path}'; wait until it has ended.",
        )

    def explain_disk_errors(self) -> AbstractContextManager[None]:
        """Return a context that turns an OSError of a run into an InputError."""
        command = format_resume_command(self.path)
        hint = f"the last checkpoint is intact, so fix that and resume with: {command}"
        return explain_disk_errors(self.path, hint)

    def read_config(self) -> RunConfig:
        """Return the specification of the run, as it was started or resumed last."""
        self._require_run()
        config = self._read(CONFIG_FILE, ConfigFile).config
        if self.has_record():
            return self._read(RECORD_FILE, RecordHead).config
        return config

    def read_config_bytes(self) -> bytes:
        """Return the content of the specification's file."""
        self._require_run()
        return self._folder.read(CONFIG_FILE)

    def compute_config_checksum(self) -> str:
        """Return the SHA-256 of the specification's file, which records and checkpoints name."""
        return hashlib.sha256(self.read_config_bytes()).hexdigest()

    def _require_run(self) -> None:
        require(
            self.exists(),
            f"'{self.path}' holds no run: there is no {CONFIG_FILE} in it.",
        )

    def write_record(self, record: RunRecord, model: dict[str, Tensor] | None = None) -> None:
        """Replace the record, at the end of the run together with the model."""
        contents = {}
        if model is not None:
            contents[MODEL_FILE] = encode_tensors(model)
        contents[RECORD_FILE] = encode_model(record)  # the last one: then the run has finished
        self._folder.write(contents)

    def settle(self) -> None:
        """Finish what a process has begun that was killed while it wrote the record."""
        with self.lock():
            self._folder.settle()

    def read_record(self) -> RunRecord:
        """Return the record, with the rounds so far of a run that has not finished."""
        record = self.read_stored_record()
        if record.status == "finished":
            return record
        rounds = self.read_rounds()
        require(
            len(rounds) >= len(record.rounds),
            f"The run in '{self.path}' is damaged: '{ROUNDS_FILE}' has {len(rounds)} of "
            f"{len(record.rounds)} rounds; put back the file that was written.",
        )
        return record.model_copy(update={"rounds": rounds})

    def read_stored_record(self) -> RunRecord:
        """Return the record as it was written last, and that of the specification in the folder.

        A run that has not finished may lack rounds in it.
        """
        self._require_run()
        require(self.has_record(), f"The run in '{self.path}' has not begun yet.")
        record = self.read_record_file()
        require(
            record.checksums.config == self.compute_config_checksum(),
            f"'{self.path / RECORD_FILE}' is not the record of the run that {CONFIG_FILE} "
            "specifies; put back the files that were written.",
        )
        return record

    def read_record_file(self) -> RunRecord:
        """Return the content of the file of the record, whatever the specification is."""
        return self._read(RECORD_FILE, RunRecord)

    def read_status(self) -> Status | None:
        """Return the status in the record; None if the run has not begun."""
        if not self.has_record():
            return None
        return self._read(RECORD_FILE, RecordHead).status

    def has_record(self) -> bool:
        """Return whether the run has begun: its choices have been made and written."""
        return self.exists() and self._folder.has(RECORD_FILE)

    def remove_model(self) -> None:
        """Remove the model of a run that has finished before and goes on."""
        if self._folder.has(MODEL_FILE):
            self._folder.remove(MODEL_FILE)

    def find_problems(self) -> dict[str, str]:
        """Return what is wrong with each file that the manifest lists; "" with intact ones."""
        return self._folder.find_problems()

    def _read(self, name: str, model_class: type[_File]) -> _File:
        return parse_versioned(self.path / name, self._folder.read(name), model_class)

    def open_round_log(self) -> RoundLog:
        """Return the log of rounds, as far as it is intact."""
        return RoundLog(self.path / ROUNDS_FILE, self._find_written_config_checksum())

    def _find_written_config_checksum(self) -> str:
        """Return the checksum of the specification's file as it was written.

        Where the manifest is damaged or not written yet, it is that of the file as it is; without a
        file "".
        """
        try:
            digests = self._folder.read_manifest().list_accepted(CONFIG_FILE)
        except InputError:
            digests = []
        for digest in filter(None, digests):
            return digest.sha256
        path = self.path / CONFIG_FILE
        return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""

    def read_rounds(self) -> list[RoundEntry]:
        """Return the rounds that have ended; one whose line was cut off by a kill is left out."""
        round_log = self.open_round_log()
        if round_log.damage:
            raise InputError(
                f"The run in '{self.path}' is damaged: {round_log.damage}; put the file back, or "
                "go on from the last checkpoint before that line, if there is one, with: "
                f"{format_resume_command(self.path)}"
            )
        return round_log.entries

    @property
    def scratch_path(self) -> Path:
        """The folder for temporary files of a run under way."""
        return self.path / "scratch"


def find_runs(folder: Path) -> list[RunDir]:
    """Return the runs of a folder: itself, or those of a comparison in the order they began."""
    if RunDir(folder).exists():
        return [RunDir(folder)]
    config_paths = sorted(folder.glob(f"*/{CONFIG_FILE}"), key=lambda path: path.stat().st_mtime_ns)
    require(bool(config_paths), f"'{folder}' holds no run.")
    return [RunDir(path.parent) for path in config_paths]
