"""Opening a store by its name: nothing but its manifest is read, everything else is mapped."""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtailor.data.examples import Array, ClientExamples, Split
from fedtailor.data.store.manifest import (
    MANIFEST,
    Provenance,
    format_rebuild_hint,
    get_stores_dir,
    make_damage_error,
    read_manifest,
)
from fedtailor.data.store.row_ranges import make_range_split
from fedtailor.errors import InputError, require
from fedtailor.storage.atomic import remove_folder
from fedtailor.storage.checksums import FileRecord, fingerprint
from fedtailor.storage.data_folders import lock_folder, translate_write_errors

_NAME_PATTERN = re.compile(r"[A-Za-z0-9][\w.-]*", re.ASCII)


@dataclass(frozen=True, eq=False)
class StoredDataset:
    """A data set on disk. Its arrays are memory maps that cannot be written to."""

    name: str
    folder: Path
    attributes: dict[str, Any]  # as its builder gave them: classes, scale, tokens, about, ...
    made_from: Provenance
    columns: dict[str, Array]  # [rows, ...] each, the clients' rows one client after another
    offsets: NDArray[np.int64]  # client i has the rows offsets[i] to offsets[i + 1] - 1
    client_names: NDArray[np.str_]  # the clients' own names, read when asked for
    files: tuple[FileRecord, ...]

    @property
    def num_clients(self) -> int:
        """How many clients there are."""
        return len(self.client_names)

    @property
    def num_rows(self) -> int:
        """How many examples there are."""
        return int(self.offsets[-1])

    @property
    def content_hash(self) -> str:
        """The same for stores with the same content."""
        return hashlib.sha256("".join(file.sha256 for file in self.files).encode()).hexdigest()

    def get_full_split(self) -> Split:
        """Everybody has all of their own rows; nothing is copied."""
        return make_range_split(self.offsets[:-1], np.diff(self.offsets))

    def to_client_examples(self, splits: dict[str, Split]) -> ClientExamples:
        """The columns "x" and "y", not copied, and who holds which of their rows."""
        have = ", ".join(self.columns)
        require(
            {"x", "y"} <= set(self.columns),
            f"{self.name}: holders need columns x and y, but there are {have}.",
        )
        return ClientExamples(self.columns["x"], self.columns["y"], splits)

    def verify(self) -> None:
        """Reads everything, and refuses a store whose content is not what was written."""
        for file in self.files:
            try:
                found = fingerprint(self.folder / file.name)
            except OSError as problem:
                raise make_damage_error(
                    self.name, f"'{file.name}' cannot be read: {problem.strerror}"
                ) from None
            if found != file:
                raise make_damage_error(self.name, f"'{file.name}' is not what was written")

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process maps the same files instead of being sent a copy."""
        return _open, (self.name, self.folder, None)


def open_store(name: str, builder: str | None = None) -> StoredDataset:
    """The store of that name; refuses one built by another version of its builder, if that is given."""
    return _open(name, get_store_path(name), builder)


def list_stores() -> list[str]:
    """The stores there are, damaged ones too."""
    return sorted(path.parent.name for path in get_stores_dir().glob(f"[!.]*/{MANIFEST}"))


def remove(name: str) -> None:
    """Removes a store and its scenarios, if it is there; whoever has it open keeps it as long as they do."""
    path = get_store_path(name)
    if path.exists():
        with lock_folder(name, path), translate_write_errors(name, path):
            remove_folder(path)


def get_store_path(name: str) -> Path:
    """Where the store of that name is, or would be."""
    fits = bool(_NAME_PATTERN.fullmatch(name))
    require(
        fits,
        f"A store's name must be letters, digits, '.', '_' and '-', not beginning with a sign, got {name!r}.",
    )
    return get_stores_dir() / name


def _open(name: str, folder: Path, builder: str | None) -> StoredDataset:
    manifest = read_manifest(name, folder)
    made = manifest.made_from.builder
    if builder is not None and made != builder:
        raise InputError(
            f"{name}: '{folder}' was built by version {made}, not {builder}; {format_rebuild_hint(name)}"
        )
    for file in manifest.list_files():
        _check_size(name, folder, file)
    try:
        columns = {column: each.open_memmap(folder) for column, each in manifest.columns.items()}
        offsets, client_names = (
            manifest.offsets.open_memmap(folder),
            manifest.ids.open_memmap(folder),
        )
    except (OSError, ValueError, TypeError) as problem:
        raise make_damage_error(name, f"it cannot be mapped: {problem}") from None
    fits = (
        len(offsets) == len(client_names) + 1 == manifest.clients + 1
        and offsets[-1] == manifest.rows
    )
    if not fits or any(len(column) != manifest.rows for column in columns.values()):
        raise make_damage_error(
            name, f"its files are not of {manifest.clients} clients and {manifest.rows} rows"
        )
    return StoredDataset(
        name,
        folder,
        manifest.attributes,
        manifest.made_from,
        columns,
        offsets,
        client_names,
        manifest.list_files(),
    )


def _check_size(name: str, folder: Path, file: FileRecord) -> None:
    try:
        size = (folder / file.name).stat().st_size
    except OSError:
        raise make_damage_error(name, f"'{file.name}' is missing") from None
    if size != file.bytes:
        raise make_damage_error(name, f"'{file.name}' has {size} bytes instead of {file.bytes}")
