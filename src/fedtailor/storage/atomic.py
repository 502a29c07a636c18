"""What reaches the disk: whole or not at all, there when it is said to be, and by one process at a time."""

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path

from fedtailor.errors import InputError

NEW_SUFFIX = "new"


OLD_SUFFIX = "old"


def write_bytes(path: Path, content: bytes) -> None:
    """Replace a file by new content, all or nothing, on the disk when it returns."""
    new_path = hidden_path(path, NEW_SUFFIX)
    try:
        with new_path.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        new_path.replace(path)
    except BaseException:
        new_path.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


@contextmanager
def replace_folder(
    path: Path, error_context: Callable[[], AbstractContextManager[None]] = nullcontext
) -> Iterator[Path]:
    """Yield a folder to fill, which takes its place, all or nothing, when it has been filled.

    What was there goes. The folder itself is handled within `trouble`, what the caller does with it is not.
    """
    with scratch_folder(path, error_context) as new_path:
        yield new_path
        with error_context():
            sync_folder(new_path)
            remove_folder(path)
            new_path.replace(path)
            sync_folder(path.parent)


@contextmanager
def scratch_folder(
    path: Path, error_context: Callable[[], AbstractContextManager[None]] = nullcontext
) -> Iterator[Path]:
    """Yield an empty folder beside a path, and remove it afterwards if it is still there."""
    new_path = hidden_path(path, NEW_SUFFIX)
    shutil.rmtree(new_path, ignore_errors=True)
    try:
        with error_context():
            new_path.mkdir(parents=True)
        yield new_path
    finally:
        shutil.rmtree(new_path, ignore_errors=True)


def remove_folder(path: Path) -> None:
    """Remove a folder, which other processes see whole or not at all; those that have it open keep it."""
    old = hidden_path(path, OLD_SUFFIX)
    with suppress(FileNotFoundError):
        path.replace(old)
    shutil.rmtree(old, ignore_errors=True)


@contextmanager
def explain_disk_errors(path: Path, remedy: str, prefix: str = "") -> Iterator[None]:
    """Turn a failing write into one sentence that ends with what to do."""
    try:
        yield
    except OSError as problem:
        asked = Path(problem.filename or path)
        if asked.name.startswith(".") and asked.suffix == f".{NEW_SUFFIX}":
            asked = asked.with_name(asked.stem[1:])
        what = problem.strerror or str(problem)
        raise InputError(f"{prefix}'{asked}' could not be written: {what}; {remedy}") from problem


def hidden_path(path: Path, suffix: str) -> Path:
    """Return where something beside a path is: its lock, or what is to take its place."""
    return path.with_name(f".{path.name}.{suffix}")


def sync_folder(folder: Path) -> None:
    """Return when the names in a folder are on the disk, where the system can tell."""
    if hasattr(os, "O_DIRECTORY"):  # Windows opens no folders
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def compute_sha256(path: Path) -> str:
    """Return the SHA-256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
