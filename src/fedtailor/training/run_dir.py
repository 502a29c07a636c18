"""The folder of a run.

OUT/config.json    the whole specification, written before anything slow begins
OUT/record.json    everything; written before the first round, when the run is stopped and at the end
OUT/rounds.jsonl   a line per round, as they end
OUT/model.safetensors, OUT/report.html    at the end
"""

import json
import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from fedtailor.errors import require
from fedtailor.storage.atomic import write_bytes
from fedtailor.storage.files import read_json, write_json
from fedtailor.storage.locks import hold_lock
from fedtailor.training.command_lines import format_resume_command
from fedtailor.training.config import RunConfig
from fedtailor.training.overrides import validate_run_config

FORMAT = 1


CUSTOM_MODEL_FILE = "own_model.py"
"""A copy of the file that makes the user's model, so that the folder is whole by itself."""


_PARTIAL_FILES = {CUSTOM_MODEL_FILE, f".{CUSTOM_MODEL_FILE}.new", ".config.json.new"}
"""All that a folder holds if the process was killed before the run was there to be resumed."""


_REQUIRED_KEYS = {"status", "config", "versions", "choices", "data"}
"""Entries of a record without which a run cannot be gone on with."""


class RunDir:
    """A run's folder."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def create(self, config: RunConfig) -> None:
        """Makes the folder for a run, and refuses one that holds anything; if it fails, nothing is left of it."""
        self._check_unused()
        is_new = not self.path.exists()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            if ":" in config.model:
                write_bytes(
                    self.path / CUSTOM_MODEL_FILE,
                    Path(config.model.rpartition(":")[0]).read_bytes(),
                )
            write_json(
                self._config_path, {"format": FORMAT, "config": config.model_dump(mode="json")}
            )
        except BaseException:
            if self.path.is_dir():
                for name in (*_PARTIAL_FILES, self._config_path.name):
                    (self.path / name).unlink(missing_ok=True)
                if is_new:
                    self.path.rmdir()
            raise

    def _check_unused(self) -> None:
        require(
            not self.path.exists() or self.path.is_dir(),
            f"'{self.path}' is a file; choose another folder.",
        )
        require(
            not self._config_path.exists(),
            f"'{self.path}' holds another run already; go on with it by: {format_resume_command(self.path)}",
        )
        others = (
            {each.name for each in self.path.iterdir()} - _PARTIAL_FILES
            if self.path.exists()
            else ()
        )
        require(not others, f"'{self.path}' holds something already; choose another folder.")

    def read_config(self) -> RunConfig:
        """The specification of the run that is in the folder."""
        require(
            self._config_path.exists(),
            f"'{self.path}' holds no run: there is no config.json in it.",
        )
        return read_config_file(self._config_path)

    def lock(self) -> AbstractContextManager[bool]:
        """Keep other processes from working on the same run."""
        message = (
            f"The run in '{self.path}' is being worked on by another process; wait for its end."
        )
        return hold_lock(self.path / "lock", message)

    def write_record(self, record: Mapping[str, Any]) -> None:
        """Replaces the record."""
        write_json(self.path / "record.json", record)

    def read_record(self) -> dict[str, Any]:
        """The record, with the rounds of a run that is still going on."""
        require(
            self._config_path.exists(),
            f"'{self.path}' holds no run: there is no config.json in it.",
        )
        require(
            (self.path / "record.json").exists(), f"The run in '{self.path}' has not begun yet."
        )
        record: dict[str, Any] = read_json(self.path / "record.json")
        is_complete = (
            isinstance(record, dict)
            and record.get("format") == FORMAT
            and {*record} >= _REQUIRED_KEYS
        )
        require(
            is_complete,
            f"'{self.path}/record.json' is not a record of format {FORMAT}, which this fedtailor reads.",
        )
        return record if record["status"] == "finished" else record | {"rounds": self.read_rounds()}

    def has_record(self) -> bool:
        """Whether choices have been made and written."""
        return (self.path / "record.json").exists()

    def read_rounds(self) -> list[dict[str, Any]]:
        """The rounds that have ended; a line that was being written when the run was killed is left out."""
        path = self.path / "rounds.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [entry for line in lines if (entry := _parse_round(line)) is not None]

    def truncate_rounds(self, last_round: int) -> None:
        """Forgets the rounds after one, which will be done again."""
        kept = [entry for entry in self.read_rounds() if entry["round"] <= last_round]
        is_complete = [entry["round"] for entry in kept] == list(range(1, last_round + 1))
        require(
            is_complete,
            f"'{self.path}/rounds.jsonl' lacks rounds up to {last_round}; bring the file back to go on.",
        )
        write_bytes(
            self.path / "rounds.jsonl", "".join(json.dumps(entry) + "\n" for entry in kept).encode()
        )

    def append_round(self, entry: Mapping[str, Any], should_sync: bool) -> None:
        """Add a line for a round that has ended; with `should_sync`, it and those before are on the disk then."""
        with (self.path / "rounds.jsonl").open("a") as file:
            file.write(json.dumps(entry, allow_nan=False) + "\n")
            file.flush()
            if should_sync:
                os.fsync(file.fileno())

    @property
    def _config_path(self) -> Path:
        return self.path / "config.json"


def _parse_round(line: str) -> dict[str, Any] | None:
    try:
        entry = json.loads(line)
    except json.JSONDecodeError:
        return None
    return entry if isinstance(entry, dict) and "round" in entry else None


def read_config_file(path: Path) -> RunConfig:
    """The specification in a JSON file that also says its format."""
    content = read_json(path)
    found_format = content.get("format") if isinstance(content, dict) else None
    require(
        found_format == FORMAT,
        f"'{path}' has format {found_format}, but this fedtailor reads format {FORMAT}.",
    )
    return validate_run_config(content.get("config"), path)
