"""What a store says of itself: one JSON file, by which it is told whole from stale and damaged."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedtailor.data.holders import Array
from fedtailor.data.store.files import File, MadeFrom
from fedtailor.errors import InputError

FORMAT = 1
MANIFEST = "manifest.json"


class Column(NamedTuple):
    """A file of numbers, or of names, one row after another."""

    dtype: str
    shape: tuple[int, ...]  # of all rows together
    file: File

    def mapped(self, folder: Path) -> Array:
        """The rows, to be read and not written."""
        rows = np.memmap(folder / self.file.name, np.dtype(self.dtype), "r", shape=self.shape)
        if rows.nbytes != self.file.bytes:
            raise ValueError(f"{list(self.shape)} of {self.dtype} are not {self.file.bytes} bytes")
        return rows


class Manifest(NamedTuple):
    """A store's name, whatever its builder wants to be known of it, where it came from, and its files."""

    name: str
    attributes: dict[str, Any]
    made_from: MadeFrom
    clients: int
    rows: int
    columns: dict[str, Column]
    offsets: Column
    ids: Column

    def files(self) -> tuple[File, ...]:
        """The files there must be."""
        return tuple(each.file for each in (*self.columns.values(), self.offsets, self.ids))

    def written(self) -> bytes:
        """The content of the JSON file."""
        content = {
            "format": FORMAT,
            **self._asdict(),
            "made_from": {"builder": self.made_from.builder, "files": [f._asdict() for f in self.made_from.files]},
            "columns": {name: _entry(column) for name, column in self.columns.items()},
            "offsets": _entry(self.offsets),
            "ids": _entry(self.ids),
        }
        return (json.dumps(content, indent=1, allow_nan=False) + "\n").encode()


def read_manifest(name: str, folder: Path) -> Manifest:
    """The manifest of the store in a folder, or a sentence."""
    try:
        content = json.loads((folder / MANIFEST).read_bytes())
        found = content.pop("format")
        if found != FORMAT:
            raise InputError(f"{name}: '{folder}' is in format {found}, not {FORMAT}; {again(name)}")
        return _read(content)
    except OSError as problem:
        if folder.exists():
            raise damaged(name, f"'{MANIFEST}' cannot be read ({problem.strerror})") from None
        missing = f"{name}: there is no such data set in '{folder.parent}'"
        raise InputError(f"{missing}; add it with `fedtailor data add {name}`.") from None
    except (KeyError, TypeError, AttributeError, UnicodeDecodeError, json.JSONDecodeError):
        raise damaged(name, f"'{MANIFEST}' is not a manifest") from None


def damaged(name: str, how: str) -> InputError:
    """What to say of a store that cannot be used."""
    return InputError(f"{name}: the store is damaged, {how}; {again(name)}")


def again(name: str) -> str:
    """What to do about a store that cannot be used."""
    return f"build it again with `fedtailor data add {name}`."


def _read(content: dict[str, Any]) -> Manifest:
    made = content.pop("made_from")
    return Manifest(
        made_from=MadeFrom(made["builder"], tuple(File(**each) for each in made["files"])),
        columns={name: _column(**each) for name, each in content.pop("columns").items()},
        offsets=_column(**content.pop("offsets")),
        ids=_column(**content.pop("ids")),
        **content,
    )


def _column(dtype: str, shape: list[int], file: dict[str, Any]) -> Column:
    return Column(dtype, tuple(shape), File(**file))


def _entry(column: Column) -> dict[str, Any]:
    return {"dtype": column.dtype, "shape": column.shape, "file": column.file._asdict()}
