"""What a store says of itself: one JSON file, by which it is told whole from stale and damaged."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedtailor.data.examples import Array
from fedtailor.errors import InputError
from fedtailor.storage.checksums import FileRecord
from fedtailor.storage.paths import data_dir

FORMAT = 1
MANIFEST = "manifest.json"


class Provenance(NamedTuple):
    """The files that a store was built from, and the version of its builder."""

    builder: str
    files: tuple[FileRecord, ...] = ()


class ColumnFile(NamedTuple):
    """A file of numbers, or of names, one row after another."""

    dtype: str
    shape: tuple[int, ...]  # of all rows together
    file: FileRecord

    def open_memmap(self, folder: Path) -> Array:
        """The rows, to be read and not written."""
        rows = np.memmap(folder / self.file.name, np.dtype(self.dtype), "r", shape=self.shape)
        if rows.nbytes != self.file.bytes:
            raise ValueError(f"{list(self.shape)} of {self.dtype} are not {self.file.bytes} bytes")
        return rows


class Manifest(NamedTuple):
    """A store's name, whatever its builder wants to be known of it, where it came from, and its files."""

    name: str
    attributes: dict[str, Any]
    made_from: Provenance
    clients: int
    rows: int
    columns: dict[str, ColumnFile]
    offsets: ColumnFile
    ids: ColumnFile

    def list_files(self) -> tuple[FileRecord, ...]:
        """The files there must be."""
        return tuple(each.file for each in (*self.columns.values(), self.offsets, self.ids))

    def to_json(self) -> bytes:
        """The content of the JSON file."""
        content = {
            "format": FORMAT,
            **self._asdict(),
            "made_from": {
                "builder": self.made_from.builder,
                "files": [f._asdict() for f in self.made_from.files],
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
    """The manifest of the store in a folder, or a sentence."""
    try:
        content = json.loads((folder / MANIFEST).read_bytes())
        found = content.pop("format")
        if found != FORMAT:
            raise InputError(
                f"{name}: '{folder}' is in format {found}, not {FORMAT}; {format_rebuild_hint(name)}"
            )
        return _parse_manifest(content)
    except OSError as problem:
        if folder.exists():
            raise make_damage_error(
                name, f"'{MANIFEST}' cannot be read ({problem.strerror})"
            ) from None
        missing = f"{name}: there is no such data set in '{folder.parent}'"
        raise InputError(f"{missing}; add it with `fedtailor data add {name}`.") from None
    except (KeyError, TypeError, AttributeError, UnicodeDecodeError, json.JSONDecodeError):
        raise make_damage_error(name, f"'{MANIFEST}' is not a manifest") from None


def make_damage_error(name: str, how: str) -> InputError:
    """What to say of a store that cannot be used."""
    return InputError(f"{name}: the store is damaged, {how}; {format_rebuild_hint(name)}")


def format_rebuild_hint(name: str) -> str:
    """What to do about a store that cannot be used."""
    return f"build it again with `fedtailor data add {name}`."


def _parse_manifest(content: dict[str, Any]) -> Manifest:
    made = content.pop("made_from")
    return Manifest(
        made_from=Provenance(made["builder"], tuple(FileRecord(**each) for each in made["files"])),
        columns={name: _parse_column(**each) for name, each in content.pop("columns").items()},
        offsets=_parse_column(**content.pop("offsets")),
        ids=_parse_column(**content.pop("ids")),
        **content,
    )


def _parse_column(dtype: str, shape: list[int], file: dict[str, Any]) -> ColumnFile:
    return ColumnFile(dtype, tuple(shape), FileRecord(**file))


def _column_to_json(column: ColumnFile) -> dict[str, Any]:
    return {"dtype": column.dtype, "shape": column.shape, "file": column.file._asdict()}
