"""Opening a store by its name: the manifest and the clients are verified, columns when used."""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from fedtailor.data.examples import Array, ClientExamples, Split
from fedtailor.data.store.attributes import DatasetAttributes
from fedtailor.data.store.manifest import (
    MANIFEST,
    ColumnFile,
    Provenance,
    format_rebuild_hint,
    get_stores_dir,
    make_damage_error,
    read_manifest,
)
from fedtailor.data.store.row_ranges import make_range_split
from fedtailor.data.store.scenario_files import verify_scenarios
from fedtailor.data.store.verified_column import VerifiedColumn
from fedtailor.errors import InputError, require
from fedtailor.storage.atomic import PREVIOUS_SUFFIX, remove_folder
from fedtailor.storage.checksums import FileRecord, compute_sha256
from fedtailor.storage.data_folders import (
    lock_folder,
    restore_if_replaced,
    translate_write_errors,
)

_NAME_PATTERN = re.compile(r"[A-Za-z0-9][\w.-]*", re.ASCII)


@dataclass(frozen=True, eq=False)
class StoredDataset:
    """A data set on disk. Its arrays are read-only memory maps.

    The clients' names and rows are verified when it is opened, columns (`VerifiedColumn`) block by
    block before they are first read.
    """

    name: str
    folder: Path
    attributes: DatasetAttributes  # as its builder gave them
    provenance: Provenance
    columns: dict[str, Array]  # [rows, ...] each, one client's rows after another's
    server_columns: dict[str, Array]  # x and y of the server's own examples; {}: there are none
    num_dropped: int  # examples of the source that its reader left out
    offsets: NDArray[np.int64]  # client i has the rows offsets[i] to offsets[i + 1] - 1
    client_names: NDArray[np.str_]  # [clients]
    files: tuple[FileRecord, ...]  # all but the manifest

    @property
    def num_clients(self) -> int:
        """The number of clients."""
        return len(self.client_names)

    @property
    def num_rows(self) -> int:
        """The number of examples."""
        return int(self.offsets[-1])

    @property
    def content_hash(self) -> str:
        """A hash of the files, which is the same for stores with the same content."""
        return hashlib.sha256("".join(file.sha256 for file in self.files).encode()).hexdigest()

    def get_full_split(self) -> Split:
        """Return the split in which every client has all of its rows; no rows are listed."""
        return make_range_split(self.offsets[:-1], np.diff(self.offsets))

    def to_client_examples(self, splits: dict[str, Split]) -> ClientExamples:
        """Return the columns "x" and "y", which are not copied, with splits of their rows."""
        require(
            {"x", "y"} <= set(self.columns),
            f"{self.name}: the store must have columns x and y, "
            f"but has only {', '.join(self.columns)}.",
        )
        return ClientExamples(self.columns["x"], self.columns["y"], splits)

    def verify(self) -> None:
        """Read everything again, and refuse a store whose content is not what was written.

        The error names the file, of columns also the damaged rows. Its scenarios are read too.
        """
        current = _open_folder(self.name, self.folder, None)
        has_changed = current.files != self.files
        if has_changed:
            raise make_damage_error(self.name, f"'{MANIFEST}' is that of another store")
        for column in (*current.columns.values(), *current.server_columns.values()):
            cast(VerifiedColumn, column).verify_again()
        verify_scenarios(self.name, self.folder)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the path alone: another process maps the same files."""
        return _open_folder, (self.name, self.folder, None)


def open_store(name: str, builder: str | None = None) -> StoredDataset:
    """Open the store of that name; `builder` is the version that must have built it, if given."""
    folder = get_store_path(name)
    restore_if_replaced(name, folder)
    return _open_folder(name, folder, builder)


def list_stores() -> list[str]:
    """Return the names of all stores, damaged ones too."""
    for hidden in get_stores_dir().glob(f".*.{PREVIOUS_SUFFIX}"):
        name = hidden.stem[1:]
        restore_if_replaced(name, hidden.with_name(name))
    return sorted(path.parent.name for path in get_stores_dir().glob(f"[!.]*/{MANIFEST}"))


def remove(name: str) -> None:
    """Remove a store and its scenarios if it exists; where it is open, it can still be read."""
    path = get_store_path(name)
    if path.exists():
        with lock_folder(name, path), translate_write_errors(name, path):
            remove_folder(path)


def get_store_path(name: str) -> Path:
    """Return the folder of the store of that name, which need not exist."""
    is_valid = bool(_NAME_PATTERN.fullmatch(name))
    require(
        is_valid,
        "A store's name must be letters, digits, '.', '_' and '-', not beginning with a sign, "
        f"got {name!r}.",
    )
    return get_stores_dir() / name


def _open_folder(name: str, folder: Path, builder: str | None) -> StoredDataset:
    """Map the files of a store.

    Args:
        name: What errors call the store.
        folder: Its folder.
        builder: Version of the builder that it must have; None: any.
    """
    manifest = read_manifest(name, folder)
    store_builder = manifest.provenance.builder
    if builder is not None and store_builder != builder:
        raise InputError(
            f"{name}: '{folder}' was built by version {store_builder}, not {builder}; "
            f"{format_rebuild_hint(name)}"
        )
    files = manifest.list_files()
    for file in files:
        _check_size(name, folder, file)
    for array_file in (manifest.offsets, manifest.client_names):
        _check_content(name, folder, array_file.file)
    try:
        columns = _open_columns(name, folder, manifest.columns)
        server_columns = _open_columns(name, folder, manifest.server_columns)
        offsets = manifest.offsets.open_memmap(folder)
        client_names = manifest.client_names.open_memmap(folder)
    except (OSError, ValueError, TypeError) as problem:
        raise make_damage_error(name, f"it cannot be mapped: {problem}") from None
    has_all_clients = len(client_names) == manifest.clients and len(offsets) == manifest.clients + 1
    has_all_rows = all(len(column) == manifest.rows for column in columns.values())
    if not (has_all_clients and has_all_rows and offsets[-1] == manifest.rows):
        damage = f"its files are not of {manifest.clients} clients and {manifest.rows} rows"
        raise make_damage_error(name, damage)
    return StoredDataset(
        name=name,
        folder=folder,
        attributes=manifest.attributes,
        provenance=manifest.provenance,
        columns=columns,
        server_columns=server_columns,
        num_dropped=manifest.dropped_rows,
        offsets=offsets,
        client_names=client_names,
        files=files,
    )


def _open_columns(name: str, folder: Path, files: dict[str, ColumnFile]) -> dict[str, Array]:
    return {
        column_name: cast(Array, VerifiedColumn(name, column_name, folder, file))
        for column_name, file in files.items()
    }


def _check_content(name: str, folder: Path, file: FileRecord) -> None:
    try:
        checksum = compute_sha256(folder / file.name)
    except OSError as problem:
        damage = f"'{file.name}' cannot be read: {problem.strerror}"
        raise make_damage_error(name, damage) from None
    if checksum != file.sha256:
        raise make_damage_error(name, f"'{file.name}' is not what was written")


def _check_size(name: str, folder: Path, file: FileRecord) -> None:
    try:
        size = (folder / file.name).stat().st_size
    except OSError:
        raise make_damage_error(name, f"'{file.name}' is missing") from None
    if size != file.bytes:
        raise make_damage_error(name, f"'{file.name}' has {size} bytes instead of {file.bytes}")
