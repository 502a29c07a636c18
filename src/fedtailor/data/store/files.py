"""What is on the disk, and how it gets there: files with checksums, in folders that appear when they are whole."""

import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, NamedTuple

from fedtailor.data.holders import Array
from fedtailor.disk import sync_folder
from fedtailor.errors import InputError, require
from fedtailor.place import folder

_LOCK, _BUILDING, _OLD = "lock", "building", "old"
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
    with path.open("rb") as file:
        return File(path.name, path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest())


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
    short = f"{name}: {_size(needed)} are needed, but '{place}' has {_size(free)} free; {_remedy()}"
    require(needed <= free, short)


@contextmanager
def disk_trouble(name: str, place: Path) -> Iterator[None]:
    """Turns a failing write into one sentence that ends with what to do."""
    try:
        yield
    except OSError as problem:
        what = problem.strerror or str(problem)
        raise InputError(f"{name}: '{place}' could not be written: {what}; {_remedy()}") from problem


@contextmanager
def new_folder(name: str, path: Path, wait: bool = False) -> Iterator[Path]:
    """A folder to fill, which takes its place, all or nothing, when it has been filled; what was there goes.

    Only one process at a time may fill it; another waits, or is refused with a sentence. What processes that died left
    behind beside it is cleared away.
    """
    with scratch(name, path, wait) as fresh:
        yield fresh
        with disk_trouble(name, path.parent):
            sync_folder(fresh)
            discard(path)
            fresh.replace(path)
            sync_folder(path.parent)


@contextmanager
def scratch(name: str, path: Path, wait: bool = False) -> Iterator[Path]:
    """A folder to fill that is removed afterwards; what processes that died left behind beside it is, too."""
    with disk_trouble(name, path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        _clear(path)
    with alone(name, path, wait):
        fresh = _hidden(path, _BUILDING)
        try:
            with disk_trouble(name, path.parent):
                fresh.mkdir()
            yield fresh
        finally:
            shutil.rmtree(fresh, ignore_errors=True)


def discard(path: Path) -> None:
    """Removes a folder, which is there whole or not at all for everybody else; those who have it open keep it."""
    old = _hidden(path, _OLD)
    with suppress(FileNotFoundError):
        path.replace(old)
    shutil.rmtree(old, ignore_errors=True)


@contextmanager
def alone(name: str, path: Path, wait: bool = False) -> Iterator[None]:
    """Nobody else builds or removes a folder meanwhile; what somebody who died had begun there is cleared away."""
    with disk_trouble(name, path.parent):
        lock = _locked(_hidden(path, _LOCK), wait)
    if lock is None:
        raise InputError(f"{name}: another process is at work on '{path}'; wait until it has finished.")
    with lock:
        try:
            _clear_one(path)
            yield
        finally:
            _hidden(path, _LOCK).unlink(missing_ok=True)


def _locked(path: Path, wait: bool = False, needed: bool = False) -> IO[bytes] | None:
    """The lock file, open and locked, or None if somebody alive has it; locks may be needed, or unknown to the disk."""
    while True:
        file = path.open("ab")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except OSError as problem:
            # Some network disks know no locks, and a store there is better than none.
            if not needed and not isinstance(problem, BlockingIOError):
                return file
            file.close()
            return None
        with suppress(FileNotFoundError):
            if path.stat().st_ino == os.fstat(file.fileno()).st_ino:
                return file
        file.close()  # whoever had it has removed it; another may have made a new one


def _clear(path: Path) -> None:
    """Clears away what processes that died left beside a folder; what the living are building stays."""
    left = [each for each in path.parent.glob(".*.*") if each.suffix[1:] in (_LOCK, _BUILDING, _OLD)]
    for other in {path.with_name(each.stem[1:]) for each in left} - {path}:
        lock = _locked(_hidden(other, _LOCK), needed=True)
        if lock is not None:
            with lock:
                _clear_one(other)
                _hidden(other, _LOCK).unlink(missing_ok=True)


def _clear_one(path: Path) -> None:
    for left in (_BUILDING, _OLD):
        shutil.rmtree(_hidden(path, left), ignore_errors=True)


def _hidden(path: Path, what: str) -> Path:
    return path.with_name(f".{path.name}.{what}")


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"


def _remedy() -> str:
    return "make room there, or set FEDTAILOR_DATA to another folder."
