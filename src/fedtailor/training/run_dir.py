"""The folder of a run. This is the only place that reads and writes its JSON files.

OUT/config.json    the whole specification, written before anything slow begins
OUT/record.json    everything; written before the first round, when the run stops and at its end
OUT/rounds.jsonl   a line per round, as they end
OUT/model.safetensors, OUT/report.html    at the end
"""

import json
import os
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ValidationError

from fedtailor.errors import InputError, require
from fedtailor.storage.atomic import write_bytes
from fedtailor.storage.files import read_json, write_json
from fedtailor.storage.locks import hold_lock
from fedtailor.training.command_lines import format_resume_command
from fedtailor.training.config import RunConfig
from fedtailor.training.record import FORMAT, RecordPart, RoundEntry, RunRecord

CUSTOM_MODEL_FILE = "own_model.py"
"""A copy of the file that makes the user's model, so that the folder is complete by itself."""

_PARTIAL_FILES = {CUSTOM_MODEL_FILE, f".{CUSTOM_MODEL_FILE}.new", ".config.json.new"}
"""What a folder may hold if the process was killed before the run could be resumed."""

File = TypeVar("File", bound=BaseModel)


class ConfigFile(RecordPart):
    """The content of `config.json`."""

    format: Literal[2] = 2
    config: RunConfig


class RunDir:
    """Reads and writes a run's folder."""

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
                model_file = Path(config.model.rpartition(":")[0])
                write_bytes(self.path / CUSTOM_MODEL_FILE, model_file.read_bytes())
            write_json(self._config_path, ConfigFile(config=config).model_dump(mode="json"))
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
            not self._config_path.exists(),
            f"'{self.path}' holds another run already; resume it with: "
            f"{format_resume_command(self.path)}",
        )
        other_files = {each.name for each in self.path.iterdir()} - _PARTIAL_FILES
        require(not other_files, f"'{self.path}' is not empty; choose another folder.")

    def read_config(self) -> RunConfig:
        """Return the specification of the run."""
        self._require_run()
        return read_versioned(self._config_path, ConfigFile).config

    def _require_run(self) -> None:
        require(
            self._config_path.exists(),
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
        write_json(self._record_path, record.model_dump(mode="json"))

    def read_record(self) -> RunRecord:
        """Return the record, with the rounds so far of a run that has not finished."""
        self._require_run()
        require(self.has_record(), f"The run in '{self.path}' has not begun yet.")
        record = read_versioned(self._record_path, RunRecord)
        if record.status == "finished":
            return record
        return record.model_copy(update={"rounds": self.read_rounds()})

    def has_record(self) -> bool:
        """Return whether the run has begun: its choices have been made and written."""
        return self._record_path.exists()

    def read_rounds(self) -> list[RoundEntry]:
        """Return the rounds that have ended; a line that was cut off when the run was killed is
        left out.
        """
        if not self._rounds_path.exists():
            return []
        entries = map(_parse_round, self._rounds_path.read_text().splitlines())
        return [entry for entry in entries if entry is not None]

    def truncate_rounds(self, last_round: int) -> None:
        """Remove the rounds after `last_round`, which will be run again."""
        kept = [entry for entry in self.read_rounds() if entry.round <= last_round]
        is_complete = [entry.round for entry in kept] == list(range(1, last_round + 1))
        require(
            is_complete,
            f"'{self._rounds_path}' lacks rounds up to {last_round}; restore the file to resume.",
        )
        lines = [_format_round(entry) for entry in kept]
        write_bytes(self._rounds_path, "".join(lines).encode())

    def append_round(self, entry: RoundEntry, should_sync: bool) -> None:
        """Add a line for a round; with `should_sync`, it and those before are on the disk on
        return.
        """
        with self._rounds_path.open("a") as file:
            file.write(_format_round(entry))
            file.flush()
            if should_sync:
                os.fsync(file.fileno())

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


def _format_round(entry: RoundEntry) -> str:
    return json.dumps(entry.model_dump(mode="json"), allow_nan=False) + "\n"


def _parse_round(line: str) -> RoundEntry | None:
    try:
        return RoundEntry.model_validate_json(line)
    except ValidationError:
        return None


def read_versioned(path: Path, file_class: type[File]) -> File:
    """Return the typed content of a JSON file of the current format.

    Raises:
        InputError: The file has another format, or content that its type does not allow.
    """
    content: Any = read_json(path)
    found_format = content.get("format") if isinstance(content, dict) else None
    require(
        found_format == FORMAT,
        f"'{path}' has format {found_format}, but this fedtailor reads format {FORMAT}.",
    )
    try:
        return file_class.model_validate(content)
    except ValidationError as problem:
        location = ".".join(map(str, problem.errors()[0]["loc"]))
        message = f"'{path}' is damaged: {location or 'its content'} is not what was written."
        raise InputError(message) from None
