"""Files and folders that are replaced all or nothing and synced to disk before a call returns.

New content is written under a hidden name beside its path and renamed to the path in one step.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path

from fedtailor.errors import InputError

NEW_SUFFIX = "new"
"""Suffix of the hidden name of a file or folder that is being written."""

OLD_SUFFIX = "old"
"""Suffix of the hidden name of a folder that is being removed."""

PREVIOUS_SUFFIX = "previous"
"""Suffix of the hidden name of a folder while another takes its place."""


class DiskError(InputError):
    """Failure to write a file or folder, such as on a full disk."""


def write_bytes(path: Path, content: bytes, should_sync_folder: bool = True) -> None:
    """Replace the content of a file, all or nothing, and sync it to disk.

    Without `should_sync_folder` the old content may be back after a power failure.
    """
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
    if should_sync_folder:
        sync_folder(path.parent)


@contextmanager
def replace_folder(
    path: Path, error_context: Callable[[], AbstractContextManager[None]] = nullcontext
) -> Iterator[Path]:
    """Yield an empty folder that takes the place of the one at `path` when the block ends.

    If the block fails, the old folder stays and the new one is removed. A process that dies between
    the two renames at the end leaves the old folder to `restore_folder`.

    Args:
        path: Where the folder goes.
        error_context: Returns a context in which the folder itself is created, synced and renamed,
            such as one that translates errors. Errors of the block are raised outside of it.
    """
    with scratch_folder(path, error_context) as new_path:
        yield new_path
        with error_context():
            sync_folder(new_path)
            previous_path = hidden_path(path, PREVIOUS_SUFFIX)
            shutil.rmtree(previous_path, ignore_errors=True)
            with suppress(FileNotFoundError):
                path.replace(previous_path)
            try:
                new_path.replace(path)
            except BaseException:
                restore_folder(path)
                raise
            sync_folder(path.parent)
            shutil.rmtree(previous_path, ignore_errors=True)


@contextmanager
def scratch_folder(
    path: Path, error_context: Callable[[], AbstractContextManager[None]] = nullcontext
) -> Iterator[Path]:
    """Yield an empty hidden folder beside `path`, and remove it if it is still there at the end.

    Args:
        path: The neighbor of the folder, which need not exist.
        error_context: Returns a context in which the folder is created.
    """
    new_path = hidden_path(path, NEW_SUFFIX)
    shutil.rmtree(new_path, ignore_errors=True)
    try:
        with error_context():
            new_path.mkdir(parents=True)
        yield new_path
    finally:
        shutil.rmtree(new_path, ignore_errors=True)


@contextmanager
def make_folder(path: Path) -> Iterator[None]:
    """Make a folder, with its parents, that is there until the end of the block.

    Those of them that are new and still empty then are removed.
    """
    new_folders = [folder for folder in (path, *path.parents) if not folder.exists()]
    try:
        path.mkdir(parents=True, exist_ok=True)
        yield
    finally:
        for folder in new_folders:
            with suppress(OSError):  # it is not empty, or was not made
                folder.rmdir()


def restore_folder(path: Path) -> None:
    """Put a folder back that was not replaced to the end; if it was, remove what is left of it."""
    previous_path = hidden_path(path, PREVIOUS_SUFFIX)
    if not path.exists():
        with suppress(FileNotFoundError):
            previous_path.replace(path)
    shutil.rmtree(previous_path, ignore_errors=True)


def remove_folder(path: Path) -> None:
    """Remove a folder if it exists, so that other processes see all of it or nothing.

    Files that are open or mapped in other processes stay readable there.
    """
    old_path = hidden_path(path, OLD_SUFFIX)
    with suppress(FileNotFoundError):
        path.replace(old_path)
    shutil.rmtree(old_path, ignore_errors=True)


@contextmanager
def explain_disk_errors(path: Path, remedy: str, prefix: str = "") -> Iterator[None]:
    """Turn an OSError into a `DiskError` of one sentence that says what to do.

    Args:
        path: The file or folder to name if the error itself names none.
        remedy: End of the sentence, which says what to do.
        prefix: Beginning of the sentence, for example the name of a data set.
    """
    try:
        yield
    except OSError as problem:
        failed_path = _get_visible_path(Path(problem.filename or path))
        reason = problem.strerror or str(problem)
        message = f"{prefix}'{failed_path}' could not be written: {reason}; {remedy}"
        raise DiskError(message) from problem


def _get_visible_path(path: Path) -> Path:
    """Return the path that the user knows, if `path` is the hidden one of its new content."""
    if path.name.startswith(".") and path.suffix == f".{NEW_SUFFIX}":
        return path.with_name(path.stem[1:])
    return path


def hidden_path(path: Path, suffix: str) -> Path:
    """Return the hidden path beside `path` for its lock, its new content or its old content."""
    return path.with_name(f".{path.name}.{suffix}")


def sync_folder(folder: Path) -> None:
    """Sync the names of a folder's entries to disk, so that a rename survives a power failure."""
    if not hasattr(os, "O_DIRECTORY"):  # Windows cannot open folders
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
