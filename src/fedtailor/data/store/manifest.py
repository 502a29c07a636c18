"""The manifest of a store: one JSON file that says what it holds, and which files it consists of.

A store without a readable manifest is damaged; one of another format or builder is stale.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import ConfigDict, PlainSerializer, ValidationError

from fedtailor.data.examples import Array
from fedtailor.data.store.attributes import DatasetAttributes
from fedtailor.errors import InputError
from fedtailor.storage.checksums import FileRecord
from fedtailor.storage.manifest import SealedModel
from fedtailor.storage.paths import data_dir

FORMAT = 3
"""Version of the manifest and of the files that it describes."""

MANIFEST = "manifest.json"

StoredFile = Annotated[FileRecord, PlainSerializer(lambda file: file._asdict())]
"""A file's name, size and checksum, which JSON has by name."""


@dataclass(frozen=True)
class Provenance:
    """Origin of a store: the version of its builder, and the files that it was built from."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    builder: str  # version of what made blocks of the files
    files: tuple[StoredFile, ...] = ()


@dataclass(frozen=True)
class ArrayFile:
    """A file of numbers or names, row by row without a header."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    dtype: str
    shape: tuple[int, ...]  # [rows, ...]
    file: StoredFile

    def open_memmap(self, folder: Path) -> Array:
        """Return a read-only memory map of the rows, or raise what NumPy raises.

        A file of another size than its type and shape need is a ValueError.
        """
        rows = np.memmap(folder / self.file.name, np.dtype(self.dtype), "r", shape=self.shape)
        if rows.nbytes != self.file.bytes:
            raise ValueError(f"{list(self.shape)} of {self.dtype} are not {self.file.bytes} bytes")
        return rows


@dataclass(frozen=True)
class ColumnFile(ArrayFile):
    """A file of examples, with checksums of blocks of rows, which are verified one by one."""

    block_rows: int  # rows of each block; the last may have fewer
    block_sha256: tuple[str, ...]


class Manifest(SealedModel):
    """The content of a manifest; the names of the fields are those of the JSON file."""

    format: Literal[3] = 3
    name: str
    attributes: DatasetAttributes
    provenance: Provenance
    clients: int  # number of clients
    rows: int  # number of rows
    dropped_rows: int  # rows of the source that its reader left out
    columns: dict[str, ColumnFile]
    server_columns: dict[str, ColumnFile]  # x and y of the server's own examples, if it has any
    offsets: ArrayFile  # [clients + 1] int64: first row of each client, then the number of rows
    client_names: ArrayFile  # [clients]

    def list_files(self) -> tuple[FileRecord, ...]:
        """Return all files of the store but the manifest."""
        arrays = (*self.columns.values(), self.offsets, self.client_names)
        return tuple(array.file for array in (*arrays, *self.server_columns.values()))


def get_stores_dir() -> Path:
    """Return the folder of all stores."""
    return data_dir() / "stores"


def read_manifest(name: str, folder: Path) -> Manifest:
    """Read the manifest of the store in a folder; `name` is what errors call the store."""
    try:
        raw = (folder / MANIFEST).read_bytes()
    except OSError as problem:
        if folder.exists():
            damage = f"'{MANIFEST}' cannot be read ({problem.strerror})"
            raise make_damage_error(name, damage) from None
        raise InputError(
            f"{name}: there is no such data set in '{folder.parent}'; "
            f"add it with `fedtailor data add {name}`."
        ) from None
    store_format = _read_format(name, raw)
    if store_format != FORMAT:
        raise InputError(
            f"{name}: '{folder}' is in format {store_format}, not {FORMAT}; "
            f"{format_rebuild_hint(name)}"
        )
    try:
        manifest = Manifest.model_validate_json(raw)
    except ValidationError:
        raise _make_manifest_error(name) from None
    if not manifest.is_intact():
        raise _make_manifest_error(name)
    return manifest


def _read_format(name: str, raw: bytes) -> int:
    """Return the format of a manifest; those of other formats may have no checksum."""
    try:
        content = json.loads(raw)
    except (ValueError, RecursionError):
        raise _make_manifest_error(name) from None
    has_format = isinstance(content, dict) and type(content.get("format")) is int
    if not has_format:
        raise _make_manifest_error(name)
    return int(content["format"])


def make_damage_error(name: str, damage: str) -> InputError:
    """Return the error for a store whose files are not those that were written."""
    return InputError(f"{name}: the store is damaged, {damage}; {format_rebuild_hint(name)}")


def format_rebuild_hint(name: str) -> str:
    """Return the end of an error about a store that cannot be used: what to do about it."""
    return f"build it again with `fedtailor data add {name} --replace`."


def _make_manifest_error(name: str) -> InputError:
    return make_damage_error(name, f"'{MANIFEST}' is not a manifest")
