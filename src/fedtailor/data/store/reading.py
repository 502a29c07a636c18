"""Opening a store by its name: nothing but its manifest is read, everything else is mapped."""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtailor.data.holders import Array, Holders, Split
from fedtailor.data.store import files
from fedtailor.data.store.files import File, MadeFrom
from fedtailor.data.store.manifest import MANIFEST, again, damaged, read_manifest
from fedtailor.data.store.runs import runs
from fedtailor.disk import discard
from fedtailor.errors import InputError, require

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*", re.ASCII)


@dataclass(frozen=True, eq=False)
class Stored:
    """A data set on disk. Its arrays are memory maps that cannot be written to."""

    name: str
    folder: Path
    attributes: dict[str, Any]  # as its builder gave them: classes, scale, tokens, about, ...
    made_from: MadeFrom
    columns: dict[str, Array]  # [rows, ...] each, the clients' rows one client after another
    offsets: NDArray[np.int64]  # client i has the rows offsets[i] to offsets[i + 1] - 1
    ids: NDArray[np.str_]  # the clients' own names, read when asked for
    files: tuple[File, ...]

    @property
    def clients(self) -> int:
        """How many clients there are."""
        return len(self.ids)

    @property
    def rows(self) -> int:
        """How many examples there are."""
        return int(self.offsets[-1])

    @property
    def identity(self) -> str:
        """The same for stores with the same content."""
        return hashlib.sha256("".join(file.sha256 for file in self.files).encode()).hexdigest()

    def everything(self) -> Split:
        """Everybody has all of their own rows; nothing is copied."""
        return runs(self.offsets[:-1], np.diff(self.offsets))

    def holders(self, splits: dict[str, Split]) -> Holders:
        """The columns "x" and "y", not copied, and who holds which of their rows."""
        have = ", ".join(self.columns)
        require({"x", "y"} <= set(self.columns), f"{self.name}: holders need columns x and y, but there are {have}.")
        return Holders(self.columns["x"], self.columns["y"], splits)

    def verify(self) -> None:
        """Reads everything, and refuses a store whose content is not what was written."""
        for file in self.files:
            try:
                found = files.fingerprint(self.folder / file.name)
            except OSError as problem:
                raise damaged(self.name, f"'{file.name}' cannot be read: {problem.strerror}") from None
            if found != file:
                raise damaged(self.name, f"'{file.name}' is not what was written")

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process maps the same files instead of being sent a copy."""
        return _open, (self.name, self.folder, None)


def opened(name: str, builder: str | None = None) -> Stored:
    """The store of that name; refuses one built by another version of its builder, if that is given."""
    return _open(name, located(name), builder)


def names() -> list[str]:
    """The stores there are, damaged ones too."""
    return sorted(path.parent.name for path in files.stores().glob(f"[!.]*/{MANIFEST}"))


def remove(name: str) -> None:
    """Removes a store and its scenarios, if it is there; whoever has it open keeps it as long as they do."""
    path = located(name)
    if path.exists():
        with files.alone(name, path), files.trouble(name, path):
            discard(path)


def located(name: str) -> Path:
    """Where the store of that name is, or would be."""
    fits = bool(_NAME.fullmatch(name))
    require(fits, f"A store's name must be letters, digits, '.', '_' and '-', not beginning with a sign, got {name!r}.")
    return files.stores() / name


def _open(name: str, folder: Path, builder: str | None) -> Stored:
    manifest = read_manifest(name, folder)
    made = manifest.made_from.builder
    if builder is not None and made != builder:
        raise InputError(f"{name}: '{folder}' was built by version {made}, not {builder}; {again(name)}")
    for file in manifest.files():
        _check_size(name, folder, file)
    try:
        columns = {column: each.mapped(folder) for column, each in manifest.columns.items()}
        offsets, ids = manifest.offsets.mapped(folder), manifest.ids.mapped(folder)
    except (OSError, ValueError, TypeError) as problem:
        raise damaged(name, f"it cannot be mapped: {problem}") from None
    fits = len(offsets) == len(ids) + 1 == manifest.clients + 1 and offsets[-1] == manifest.rows
    if not fits or any(len(column) != manifest.rows for column in columns.values()):
        raise damaged(name, f"its files are not of {manifest.clients} clients and {manifest.rows} rows")
    return Stored(name, folder, manifest.attributes, manifest.made_from, columns, offsets, ids, manifest.files())


def _check_size(name: str, folder: Path, file: File) -> None:
    try:
        size = (folder / file.name).stat().st_size
    except OSError:
        raise damaged(name, f"'{file.name}' is missing") from None
    if size != file.bytes:
        raise damaged(name, f"'{file.name}' has {size} bytes instead of {file.bytes}")
