"""What reaches the disk: whole or not at all, there when it is said to be, and by one process at a time."""

import errno
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from fedtailor.errors import InputError

NEW = "new"
OLD = "old"
_NO_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP}
"""What disks answer that know no locks."""


def write_bytes(path: Path, content: bytes) -> None:
    """Replace a file by new content, all or nothing, on the disk when it returns."""
    fresh = hidden(path, NEW)
    try:
        with fresh.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


@contextmanager
def replace_folder(path: Path, trouble: Callable[[], AbstractContextManager[None]] = nullcontext) -> Iterator[Path]:
    """Yield a folder to fill, which takes its place, all or nothing, when it has been filled.

    What was there goes. The folder itself is handled within `trouble`, what the caller does with it is not.
    """
    with scratch_folder(path, trouble) as fresh:
        yield fresh
        with trouble():
            sync_folder(fresh)
            discard(path)
            fresh.replace(path)
            sync_folder(path.parent)


@contextmanager
def scratch_folder(path: Path, trouble: Callable[[], AbstractContextManager[None]] = nullcontext) -> Iterator[Path]:
    """Yield an empty folder beside a path, and remove it afterwards if it is still there."""
    fresh = hidden(path, NEW)
    shutil.rmtree(fresh, ignore_errors=True)
    try:
        with trouble():
            fresh.mkdir(parents=True)
        yield fresh
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def discard(path: Path) -> None:
    """Remove a folder, which other processes see whole or not at all; those that have it open keep it."""
    old = hidden(path, OLD)
    with suppress(FileNotFoundError):
        path.replace(old)
    shutil.rmtree(old, ignore_errors=True)


@contextmanager
def hold_lock(path: Path, refusal: str = "", wait: bool = False) -> Iterator[bool]:
    """Hold a lock for as long as this process lives, at most until the end of the block.

    Wait for another process that has it, or refuse with a sentence. Yield whether it is held: some network disks know
    no locks, and work there is better than none.
    """
    lock = FileLock(path)
    try:
        lock.acquire(timeout=-1 if wait else 0)
    except Timeout:
        raise InputError(refusal) from None
    except OSError as problem:
        if problem.errno not in _NO_LOCKS:
            raise
    try:
        yield lock.is_locked
    finally:
        with suppress(OSError):  # where an open file cannot be removed, its lock file stays
            path.unlink()
        lock.release()


@contextmanager
def disk_trouble(place: Path, remedy: str, about: str = "") -> Iterator[None]:
    """Turn a failing write into one sentence that ends with what to do."""
    try:
        yield
    except OSError as problem:
        asked = Path(problem.filename or place)
        if asked.name.startswith(".") and asked.suffix == f".{NEW}":
            asked = asked.with_name(asked.stem[1:])
        what = problem.strerror or str(problem)
        raise InputError(f"{about}'{asked}' could not be written: {what}; {remedy}") from problem


def hidden(path: Path, what: str) -> Path:
    """Return where something beside a path is: its lock, or what is to take its place."""
    return path.with_name(f".{path.name}.{what}")


def sync_folder(folder: Path) -> None:
    """Return when the names in a folder are on the disk, where the system can tell."""
    if hasattr(os, "O_DIRECTORY"):  # Windows opens no folders
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def checksum(path: Path) -> str:
    """Return the SHA-256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
