"""The manifest of a store: one JSON file that says what it holds, and which files it consists of.

A store without a readable manifest is damaged; one of another format or builder is stale.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedtailor.data.examples import Array
from fedtailor.errors import InputError
from fedtailor.storage.checksums import FileRecord
from fedtailor.storage.paths import data_dir

FORMAT = 1
"""Version of the manifest and of the files that it describes."""

MANIFEST = "manifest.json"


class Provenance(NamedTuple):
    """What a store was built from."""

    builder: str  # version of what made blocks of the files
    files: tuple[FileRecord, ...] = ()


class ColumnFile(NamedTuple):
    """A file of numbers or names, row by row without a header."""

    dtype: str
    shape: tuple[int, ...]  # [rows, ...]
    file: FileRecord

    def open_memmap(self, folder: Path) -> Array:
        """Return a read-only memory map of the rows, or raise what NumPy raises.

        A file of another size than its type and shape need is a ValueError.
        """
        rows = np.memmap(folder / self.file.name, np.dtype(self.dtype), "r", shape=self.shape)
        if rows.nbytes != self.file.bytes:
            raise ValueError(f"{list(self.shape)} of {self.dtype} are not {self.file.bytes} bytes")
        return rows


class Manifest(NamedTuple):
    """The content of a manifest; the names of the fields are those of the JSON file."""

    name: str
    attributes: dict[str, Any]  # as they were given to the builder
    made_from: Provenance
    clients: int  # number of clients
    rows: int  # number of rows
    columns: dict[str, ColumnFile]
    offsets: ColumnFile  # [clients + 1] int64: first row of each client, then the number of rows
    ids: ColumnFile  # [clients] names

    def list_files(self) -> tuple[FileRecord, ...]:
        """Return all files of the store but the manifest."""
        columns = (*self.columns.values(), self.offsets, self.ids)
        return tuple(column.file for column in columns)

    def to_json(self) -> bytes:
        """Return the content of the JSON file."""
        content = {
            "format": FORMAT,
            **self._asdict(),
            "made_from": {
                "builder": self.made_from.builder,
                "files": [file._asdict() for file in self.made_from.files],
            },
            "columns": {name: _column_to_json(column) for name, column in self.columns.items()},
            "offsets": _column_to_json(self.offsets),
            "ids": _column_to_json(self.ids),
        }
        return (json.dumps(content, indent=1, allow_nan=False) + "\n").encode()


def get_stores_dir() -> Path:
    """Return the folder of all stores."""
    return data_dir() / "stores"


def read_manifest(name: str, folder: Path) -> Manifest:
    """Read the manifest of the store in a folder; `name` is what errors call the store."""
    try:
        content = json.loads((folder / MANIFEST).read_bytes())
        file_format = content.pop("format")
        if file_format != FORMAT:
            raise InputError(
                f"{name}: '{folder}' is in format {file_format}, not {FORMAT}; "
                f"{format_rebuild_hint(name)}"
            )
        return _parse_manifest(content)
    except OSError as problem:
        if folder.exists():
            damage = f"'{MANIFEST}' cannot be read ({problem.strerror})"
            raise make_damage_error(name, damage) from None
        raise InputError(
            f"{name}: there is no such data set in '{folder.parent}'; "
            f"add it with `fedtailor data add {name}`."
        ) from None
    except (KeyError, TypeError, AttributeError, UnicodeDecodeError, json.JSONDecodeError):
        raise make_damage_error(name, f"'{MANIFEST}' is not a manifest") from None


def make_damage_error(name: str, damage: str) -> InputError:
    """Return the error for a store whose files are not those that were written."""
    return InputError(f"{name}: the store is damaged, {damage}; {format_rebuild_hint(name)}")


def format_rebuild_hint(name: str) -> str:
    """Return the end of an error about a store that cannot be used: what to do about it."""
    return f"build it again with `fedtailor data add {name}`."


def _parse_manifest(content: dict[str, Any]) -> Manifest:
    """Convert JSON to a manifest; unknown or missing keys are a TypeError or a KeyError."""
    made_from = content.pop("made_from")
    files = tuple(FileRecord(**file) for file in made_from["files"])
    columns = content.pop("columns")
    offsets = content.pop("offsets")
    ids = content.pop("ids")
    return Manifest(
        made_from=Provenance(made_from["builder"], files),
        columns={name: _parse_column(**column) for name, column in columns.items()},
        offsets=_parse_column(**offsets),
        ids=_parse_column(**ids),
        **content,
    )


def _parse_column(dtype: str, shape: list[int], file: dict[str, Any]) -> ColumnFile:
    return ColumnFile(dtype, tuple(shape), FileRecord(**file))


def _column_to_json(column: ColumnFile) -> dict[str, Any]:
    return {"dtype": column.dtype, "shape": column.shape, "file": column.file._asdict()}
