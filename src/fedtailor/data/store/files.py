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

from fedtailor.data.examples import Array
from fedtailor.errors import InputError, require
from fedtailor.storage.atomic import (
    NEW_SUFFIX,
    OLD_SUFFIX,
    compute_sha256,
    explain_disk_errors,
    hidden_path,
    replace_folder,
    scratch_folder,
)
from fedtailor.storage.locks import hold_lock
from fedtailor.storage.paths import data_dir

_LOCK = "lock"
_REMEDY = "make room there, or set FEDTAILOR_DATA to another folder."
_SYNC_BYTES = 1 << 27  # bytes that gather before the disk is told to begin with them


class File(NamedTuple):
    """A file and what was in it."""

    name: str
    bytes: int
    sha256: str


class Provenance(NamedTuple):
    """What a data set was built from, and by which version of its builder."""

    builder: str
    files: tuple[File, ...] = ()


def get_stores_dir() -> Path:
    """The folder of all stores."""
    return data_dir() / "stores"


def fingerprint(path: Path) -> File:
    """A file's name, size and checksum; reads all of it."""
    return File(path.name, path.stat().st_size, compute_sha256(path))


class FileWriter:
    """Writes one file from its beginning to its end, and its checksum with it.

    The checksum is made beside the writing, and the disk begins early, so that there is little to wait for at the end.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._bytes, self._synced_bytes, self._hash = path, 0, 0, hashlib.sha256()
        self._file: IO[bytes] = path.open("wb")
        self._executor = ThreadPoolExecutor(2)
        self._sync_future: Future[None] | None = None

    def add(self, rows: Array | bytes) -> None:
        """Writes contiguous rows behind what has been written."""
        view = rows if isinstance(rows, bytes) else rows.data
        hashed = self._executor.submit(self._hash.update, view)
        self._bytes += self._file.write(view)
        hashed.result()
        if self._bytes - self._synced_bytes >= _SYNC_BYTES and (
            self._sync_future is None or self._sync_future.done()
        ):
            self._wait_for_sync()
            self._synced_bytes, self._sync_future = (
                self._bytes,
                self._executor.submit(os.fsync, self._file.fileno()),
            )

    def finish(self) -> File:
        """Returns when all of the file is on the disk."""
        self._wait_for_sync()
        self._file.flush()
        os.fsync(self._file.fileno())
        self.close()
        return File(self._path.name, self._bytes, self._hash.hexdigest())

    def close(self) -> None:
        """Lets go of the file, whole or not; what could not be written is not tried again."""
        self._executor.shutdown()
        with suppress(OSError):
            self._file.close()

    def _wait_for_sync(self) -> None:
        """Waits for what was sent to the disk ahead; a disk says only once that it could not take it."""
        if self._sync_future is not None:
            self._sync_future.result()


def write(path: Path, content: bytes | Array) -> File:
    """Writes a file in one go."""
    writer = FileWriter(path)
    try:
        writer.add(content)
        return writer.finish()
    finally:
        writer.close()


def require_free_space(name: str, needed: int, path: Path) -> None:
    """Refuses to begin what the disk has no room for."""
    free = shutil.disk_usage(path).free
    short = f"{name}: {_format_size(needed)} are needed, but '{path}' has {_format_size(free)} free; {_REMEDY}"
    require(needed <= free, short)


def translate_write_errors(name: str, path: Path) -> AbstractContextManager[None]:
    """Turn a failing write into one sentence that ends with what to do."""
    return explain_disk_errors(path, _REMEDY, f"{name}: ")


@contextmanager
def build_folder(name: str, path: Path, wait: bool = False) -> Iterator[Path]:
    """Yield a folder to fill, which takes its place, all or nothing, when it has been filled; what was there goes.

    Only one process at a time may fill it; another waits, or is refused with a sentence. What processes that died left
    behind beside it is cleared away.
    """
    with (
        lock_folder(name, path, wait),
        replace_folder(path, partial(translate_write_errors, name, path.parent)) as fresh,
    ):
        yield fresh


@contextmanager
def open_scratch_folder(name: str, path: Path) -> Iterator[Path]:
    """Yield a folder to fill that is removed afterwards; what processes that died left behind beside it is, too."""
    with (
        lock_folder(name, path),
        scratch_folder(path, partial(translate_write_errors, name, path.parent)) as fresh,
    ):
        yield fresh


@contextmanager
def lock_folder(name: str, path: Path, wait: bool = False) -> Iterator[None]:
    """Keep other processes from building or removing a folder, and clear away what those that died had begun."""
    taken = f"{name}: another process is at work on '{path}'; wait until it has finished."
    with ExitStack() as stack:
        with translate_write_errors(name, path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
            _clear_stale_folders(path)
            stack.enter_context(hold_lock(hidden_path(path, _LOCK), taken, wait))
        _clear_leftovers(path)
        yield


def _clear_stale_folders(path: Path) -> None:
    """Clear away what processes that died left beside a folder; what the living are building stays."""
    left = [
        each
        for each in path.parent.glob(".*.*")
        if each.suffix[1:] in (_LOCK, NEW_SUFFIX, OLD_SUFFIX)
    ]
    for other in {path.with_name(each.stem[1:]) for each in left} - {path}:
        with suppress(InputError, OSError), hold_lock(hidden_path(other, _LOCK)) as sure:
            if sure:
                _clear_leftovers(other)


def _clear_leftovers(path: Path) -> None:
    for left in (NEW_SUFFIX, OLD_SUFFIX):
        shutil.rmtree(hidden_path(path, left), ignore_errors=True)


def _format_size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"
