"""JSON Lines files whose lines carry checksums, each chained to the line before.

The first one is chained to what the file belongs to. So a line that was changed, removed, repeated
or moved is noticed, and so is the file of another owner. A line without an end is left out: it is
cut off when a process is killed while writing.
"""

import hashlib
from pathlib import Path
from typing import Generic, NamedTuple

from pydantic import ValidationError

from fedtailor.storage.typed_json import Model, format_line

_CHECKSUM_KEY = ', "checksum": '


class ChainedLine(NamedTuple, Generic[Model]):
    """A line of a file."""

    text: str  # with its end
    entry: Model
    checksum: str  # of the line and those before it


class ChainedLines(NamedTuple, Generic[Model]):
    """The lines of a file up to the first one that is not what was written."""

    lines: list[ChainedLine[Model]]
    damaged_line: int | None  # the number of that line, from 1; None if all lines are intact


def chain_line(entry: Model, last_checksum: str) -> ChainedLine[Model]:
    """Return the line of an entry behind that of a checksum, or the owner's for the first one."""
    body = format_line(entry).removesuffix("}\n")
    checksum = _compute_checksum(body, last_checksum)
    return ChainedLine(f'{body}{_CHECKSUM_KEY}"{checksum}"}}\n', entry, checksum)


def read_chained_lines(path: Path, model_class: type[Model], owner: str) -> ChainedLines[Model]:
    """Return the typed lines of a file; none if there is no file.

    Args:
        path: The file.
        model_class: The type of a line.
        owner: What the file belongs to: any text that tells it from others.
    """
    if not path.exists():
        return ChainedLines([], None)
    lines: list[ChainedLine[Model]] = []
    last_checksum = owner
    text = path.read_bytes().decode(errors="replace")
    *ended_lines, _ = text.split("\n")
    for number, line in enumerate(ended_lines, start=1):
        body, _, end = line.rpartition(_CHECKSUM_KEY)
        checksum = _compute_checksum(body, last_checksum)
        if end != f'"{checksum}"}}':
            return ChainedLines(lines, number)
        try:
            entry = model_class.model_validate_json(body + "}")
        except ValidationError:
            return ChainedLines(lines, number)
        lines.append(ChainedLine(line + "\n", entry, checksum))
        last_checksum = checksum
    return ChainedLines(lines, None)


def _compute_checksum(body: str, last_checksum: str) -> str:
    return hashlib.sha256((last_checksum + body).encode()).hexdigest()
