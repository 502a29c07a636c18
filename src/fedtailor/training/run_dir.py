"""The folder of a run. This is the only place that reads and writes its JSON files.

OUT/config.json    the whole specification, written before anything slow begins
OUT/record.json    everything; written before the first round, when the run stops and at its end;
                   its specification is the one that counts, as `resume` may change some keys
OUT/rounds.jsonl   a line per round, as they end
OUT/model.safetensors, OUT/report.html    at the end
"""

import os
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Literal

from pydantic import BaseModel

from fedtailor.errors import require
from fedtailor.storage.atomic import write_bytes
from fedtailor.storage.locks import hold_lock
from fedtailor.storage.trusted_code import trust_code
from fedtailor.storage.typed_json import format_line, read_lines, read_versioned, write_model
from fedtailor.training.config import RunConfig
from fedtailor.training.record.schema import FORMAT, RecordPart, RoundEntry, RunRecord, Status
from fedtailor.training.shell_commands import format_resume_command

CUSTOM_MODEL_FILE = "own_model.py"
"""A copy of the file that makes the user's model, so that the folder is complete by itself."""

_PARTIAL_FILES = {CUSTOM_MODEL_FILE, f".{CUSTOM_MODEL_FILE}.new", ".config.json.new"}
"""What a folder may hold if the process was killed before the run could be resumed."""


class ConfigFile(RecordPart):
    """The content of `config.json`."""

    format: Literal[2] = FORMAT
    config: RunConfig


class RecordHead(BaseModel):
    """The first fields of `record.json`; the others are not validated, which is fast."""

    format: Literal[2] = FORMAT
    status: Status
    config: RunConfig


class RunDir:
    """The folder of a run, which may not exist yet."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def create(self, config: RunConfig) -> None:
        """Make the folder for a new run; if that fails, nothing is left of it.

        A folder that holds anything is refused.
        """
        self._check_unused()
        is_new = not self.path.exists()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            if ":" in config.model:
                source = Path(config.model.rpartition(":")[0]).read_bytes()
                trust_code(source)
                write_bytes(self.path / CUSTOM_MODEL_FILE, source)
            write_model(self._config_path, ConfigFile(config=config))
        except BaseException:
            if self.path.is_dir():
                for name in (*_PARTIAL_FILES, self._config_path.name):
                    (self.path / name).unlink(missing_ok=True)
                if is_new:
                    self.path.rmdir()
            raise

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

    def exists(self) -> bool:
        """Return whether the folder holds a run: its specification has been written."""
        return self._config_path.exists()

    def read_config(self) -> RunConfig:
        """Return the specification of the run, as it was started or resumed last."""
        self._require_run()
        config = read_versioned(self._config_path, ConfigFile).config
        if self.has_record():
            return read_versioned(self._record_path, RecordHead).config
        return config

    def _require_run(self) -> None:
        require(
            self.exists(),
            f"'{self.path}' holds no run: there is no config.json in it.",
        )

    def lock(self) -> AbstractContextManager[bool]:
        """Keep other processes from working on the same run."""
        return hold_lock(
            self.path / "lock",
            f"Another process is working on the run in '{self.path}'; wait until it has ended.",
        )

    def write_record(self, record: RunRecord) -> None:
        """Replace the record."""
        write_model(self._record_path, record)

    def read_record(self) -> RunRecord:
        """Return the record, with the rounds so far of a run that has not finished."""
        self._require_run()
        require(self.has_record(), f"The run in '{self.path}' has not begun yet.")
        record = read_versioned(self._record_path, RunRecord)
        if record.status == "finished":
            return record
        return record.model_copy(update={"rounds": self.read_rounds()})

    def read_status(self) -> Status | None:
        """Return the status in the record; None if the run has not begun."""
        if not self.has_record():
            return None
        return read_versioned(self._record_path, RecordHead).status

    def has_record(self) -> bool:
        """Return whether the run has begun: its choices have been made and written."""
        return self._record_path.exists()

    def read_rounds(self) -> list[RoundEntry]:
        """Return the rounds that have ended; one whose line was cut off by a kill is left out."""
        return read_lines(self._rounds_path, RoundEntry)

    def truncate_rounds(self, last_round: int) -> None:
        """Remove the rounds after `last_round`, which will be run again."""
        entries = [entry for entry in self.read_rounds() if entry.round <= last_round]
        is_complete = [entry.round for entry in entries] == list(range(1, last_round + 1))
        require(
            is_complete,
            f"'{self._rounds_path}' lacks rounds up to {last_round}; restore the file to resume.",
        )
        lines = [format_line(entry) for entry in entries]
        write_bytes(self._rounds_path, "".join(lines).encode())

    def append_round(self, entry: RoundEntry, should_sync: bool) -> None:
        """Add a line for a round.

        With `should_sync`, it and the lines before are on the disk when this returns.
        """
        with self._rounds_path.open("a") as file:
            file.write(format_line(entry))
            file.flush()
            if should_sync:
                os.fsync(file.fileno())

    def remove_model(self) -> None:
        """Remove the model of a run that has finished before and goes on."""
        (self.path / "model.safetensors").unlink(missing_ok=True)

    @property
    def scratch_path(self) -> Path:
        """The folder for temporary files of a run under way."""
        return self.path / "scratch"

    @property
    def _config_path(self) -> Path:
        return self.path / "config.json"

    @property
    def _record_path(self) -> Path:
        return self.path / "record.json"

    @property
    def _rounds_path(self) -> Path:
        return self.path / "rounds.jsonl"


def find_runs(folder: Path) -> list[RunDir]:
    """Return the runs of a folder: itself, or those of a comparison in the order they began."""
    if RunDir(folder).exists():
        return [RunDir(folder)]
    config_paths = sorted(folder.glob("*/config.json"), key=lambda path: path.stat().st_mtime_ns)
    require(bool(config_paths), f"'{folder}' holds no run.")
    return [RunDir(path.parent) for path in config_paths]
