"""What is on the disk, and how it gets there: files with checksums, in folders that appear when they are whole."""

import hashlib
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO, NamedTuple

from fedtailor.data.holders import Array
from fedtailor.disk import (
    NEW,
    OLD,
    checksum,
    disk_trouble,
    hidden,
    hold_lock,
    replace_folder,
    scratch_folder,
)
from fedtailor.errors import InputError, require
from fedtailor.place import folder

_LOCK = "lock"
_REMEDY = "make room there, or set FEDTAILOR_DATA to another folder."
_AHEAD = 1 << 27  # bytes that gather before the disk is told to begin with them


class File(NamedTuple):
    """A file and what was in it."""

    name: str
    bytes: int
    sha256: str


class MadeFrom(NamedTuple):
    """What a data set was built from, and by which version of its builder."""

    builder: str
    files: tuple[File, ...] = ()


def stores() -> Path:
    """The folder of all stores."""
    return folder() / "stores"


def fingerprint(path: Path) -> File:
    """A file's name, size and checksum; reads all of it."""
    return File(path.name, path.stat().st_size, checksum(path))


class Writer:
    """Writes one file from its beginning to its end, and its checksum with it.

    The checksum is made beside the writing, and the disk begins early, so that there is little to wait for at the end.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._bytes, self._reached, self._hash = path, 0, 0, hashlib.sha256()
        self._file: IO[bytes] = path.open("wb")
        self._beside = ThreadPoolExecutor(2)
        self._reaching: Future[None] | None = None

    def add(self, rows: Array | bytes) -> None:
        """Writes contiguous rows behind what has been written."""
        view = rows if isinstance(rows, bytes) else rows.data
        hashed = self._beside.submit(self._hash.update, view)
        self._bytes += self._file.write(view)
        hashed.result()
        if self._bytes - self._reached >= _AHEAD and (self._reaching is None or self._reaching.done()):
            self._require_reached()
            self._reached, self._reaching = self._bytes, self._beside.submit(os.fsync, self._file.fileno())

    def done(self) -> File:
        """Returns when all of the file is on the disk."""
        self._require_reached()
        self._file.flush()
        os.fsync(self._file.fileno())
        self.close()
        return File(self._path.name, self._bytes, self._hash.hexdigest())

    def close(self) -> None:
        """Lets go of the file, whole or not; what could not be written is not tried again."""
        self._beside.shutdown()
        with suppress(OSError):
            self._file.close()

    def _require_reached(self) -> None:
        """Waits for what was sent to the disk ahead; a disk says only once that it could not take it."""
        if self._reaching is not None:
            self._reaching.result()


def write(path: Path, content: bytes | Array) -> File:
    """Writes a file in one go."""
    writer = Writer(path)
    try:
        writer.add(content)
        return writer.done()
    finally:
        writer.close()


def require_room(name: str, needed: int, place: Path) -> None:
    """Refuses to begin what the disk has no room for."""
    free = shutil.disk_usage(place).free
    short = f"{name}: {_size(needed)} are needed, but '{place}' has {_size(free)} free; {_REMEDY}"
    require(needed <= free, short)


def trouble(name: str, place: Path) -> AbstractContextManager[None]:
    """Turn a failing write into one sentence that ends with what to do."""
    return disk_trouble(place, _REMEDY, f"{name}: ")


@contextmanager
def new_folder(name: str, path: Path, wait: bool = False) -> Iterator[Path]:
    """Yield a folder to fill, which takes its place, all or nothing, when it has been filled; what was there goes.

    Only one process at a time may fill it; another waits, or is refused with a sentence. What processes that died left
    behind beside it is cleared away.
    """
    with alone(name, path, wait), replace_folder(path, partial(trouble, name, path.parent)) as fresh:
        yield fresh


@contextmanager
def scratch(name: str, path: Path) -> Iterator[Path]:
    """Yield a folder to fill that is removed afterwards; what processes that died left behind beside it is, too."""
    with alone(name, path), scratch_folder(path, partial(trouble, name, path.parent)) as fresh:
        yield fresh


@contextmanager
def alone(name: str, path: Path, wait: bool = False) -> Iterator[None]:
    """Keep other processes from building or removing a folder, and clear away what those that died had begun."""
    taken = f"{name}: another process is at work on '{path}'; wait until it has finished."
    with ExitStack() as stack:
        with trouble(name, path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
            _clear_others(path)
            stack.enter_context(hold_lock(hidden(path, _LOCK), taken, wait))
        _clear(path)
        yield


def _clear_others(path: Path) -> None:
    """Clear away what processes that died left beside a folder; what the living are building stays."""
    left = [each for each in path.parent.glob(".*.*") if each.suffix[1:] in (_LOCK, NEW, OLD)]
    for other in {path.with_name(each.stem[1:]) for each in left} - {path}:
        with suppress(InputError, OSError), hold_lock(hidden(other, _LOCK)) as sure:
            if sure:
                _clear(other)


def _clear(path: Path) -> None:
    for left in (NEW, OLD):
        shutil.rmtree(hidden(path, left), ignore_errors=True)


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"
