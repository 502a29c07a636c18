"""The log of a run's rounds: a line for each one, as they end."""

import os
from pathlib import Path

from fedtailor.storage.atomic import write_bytes
from fedtailor.storage.chained_lines import chain_line, read_chained_lines
from fedtailor.training.record.schema import RoundEntry


class RoundLog:
    """The rounds of a run that have ended, as far as the lines of the file are intact."""

    def __init__(self, path: Path, owner: str = "") -> None:
        """Read the file, if it exists.

        Args:
            path: The file.
            owner: The checksum of the specification of the run, whose log it must be.
        """
        self.path = path
        self._owner = owner
        self._lines, self._damaged_line = read_chained_lines(path, RoundEntry, owner)

    @property
    def entries(self) -> list[RoundEntry]:
        """The rounds."""
        return [line.entry for line in self._lines]

    @property
    def damage(self) -> str:
        """What is wrong with the file, "" if nothing is."""
        if self._damaged_line is None:
            return ""
        return f"line {self._damaged_line} of '{self.path.name}' is not what was written"

    def get_checksum(self, num_rounds: int) -> str:
        """Return the checksum of the first rounds; "" if one of them is not there."""
        return self._lines[num_rounds - 1].checksum if num_rounds <= len(self._lines) else ""

    def truncate(self, last_round: int) -> None:
        """Remove the rounds after `last_round`, which will be run again, and damaged lines."""
        self._lines = self._lines[:last_round]
        self._damaged_line = None
        write_bytes(self.path, "".join(line.text for line in self._lines).encode())

    def append(self, entry: RoundEntry, should_sync: bool) -> None:
        """Add a round.

        With `should_sync`, it and the rounds before are on the disk when this returns.
        """
        last_checksum = self._lines[-1].checksum if self._lines else self._owner
        line = chain_line(entry, last_checksum)
        with self.path.open("a") as file:
            file.write(line.text)
            file.flush()
            if should_sync:
                os.fsync(file.fileno())
        self._lines.append(line)
