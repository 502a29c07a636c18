"""Folders in the data directory, built all or nothing and by one process at a time.

In all of these functions `name` is the data set that a folder belongs to; messages begin with it.
"""

import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

from fedtailor.errors import InputError, require
from fedtailor.storage.atomic import (
    NEW_SUFFIX,
    OLD_SUFFIX,
    PREVIOUS_SUFFIX,
    explain_disk_errors,
    hidden_path,
    replace_folder,
    restore_folder,
    scratch_folder,
)
from fedtailor.storage.locks import hold_lock
from fedtailor.storage.paths import DATA_DIR_ENV

_LOCK_SUFFIX = "lock"
_REMEDY = f"make room there, or set {DATA_DIR_ENV} to another folder."


def require_free_space(name: str, needed_bytes: int, folder: Path) -> None:
    """Raise an InputError if the disk has no room for what is about to be written.

    Args:
        name: The data set.
        needed_bytes: Number of bytes that will be written.
        folder: An existing folder on that disk.
    """
    free_bytes = shutil.disk_usage(folder).free
    require(
        needed_bytes <= free_bytes,
        f"{name}: {_format_size(needed_bytes)} are needed, but '{folder}' has "
        f"{_format_size(free_bytes)} free; {_REMEDY}",
    )


def translate_write_errors(name: str, path: Path) -> AbstractContextManager[None]:
    """Return a context that turns an OSError into an InputError, which says what to do."""
    return explain_disk_errors(path, _REMEDY, f"{name}: ")


@contextmanager
def build_folder(name: str, path: Path, wait: bool = False) -> Iterator[Path]:
    """Yield an empty folder that takes the place of the one at `path` when the block ends.

    If the block fails, the old folder stays and nothing of the new one is left.

    Args:
        name: The data set.
        path: Where the folder goes.
        wait: Whether to wait for another process that has the folder's lock, or to raise an
            InputError.
    """
    error_context = partial(translate_write_errors, name, path.parent)
    with lock_folder(name, path, wait), replace_folder(path, error_context) as new_path:
        yield new_path


@contextmanager
def open_scratch_folder(name: str, path: Path) -> Iterator[Path]:
    """Yield an empty folder beside `path` that only this process uses, and remove it at the end."""
    error_context = partial(translate_write_errors, name, path.parent)
    with lock_folder(name, path), scratch_folder(path, error_context) as new_path:
        yield new_path


@contextmanager
def lock_folder(name: str, path: Path, wait: bool = False) -> Iterator[None]:
    """Keep other processes from building or removing a folder until the end of the block.

    Leftovers beside the folder, of processes that died, are removed first, or put back if they are
    a folder that was about to be replaced.

    Args:
        name: The data set.
        path: The folder, which need not exist.
        wait: Whether to wait for another process that has the lock, or to raise an InputError.
    """
    refusal = f"{name}: another process is at work on '{path}'; wait until it has finished."
    with ExitStack() as stack:
        with translate_write_errors(name, path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
            _remove_stale_neighbors(path)
            stack.enter_context(hold_lock(hidden_path(path, _LOCK_SUFFIX), refusal, wait))
        _remove_leftovers(path)
        yield


def restore_if_replaced(name: str, path: Path) -> None:
    """Put a folder back that a process was about to replace when it died, if that is possible."""
    if path.exists() or not hidden_path(path, PREVIOUS_SUFFIX).exists():
        return
    with suppress(InputError), lock_folder(name, path, wait=True):
        pass  # taking the lock restores it


def _remove_stale_neighbors(path: Path) -> None:
    """Remove leftovers of other folders beside `path` whose lock no live process holds."""
    suffixes = (_LOCK_SUFFIX, NEW_SUFFIX, OLD_SUFFIX, PREVIOUS_SUFFIX)
    hidden = [entry for entry in path.parent.glob(".*.*") if entry.suffix[1:] in suffixes]
    neighbors = {entry.with_name(entry.stem[1:]) for entry in hidden} - {path}
    for neighbor in neighbors:
        lock = hold_lock(hidden_path(neighbor, _LOCK_SUFFIX))
        with suppress(InputError, OSError), lock as is_held:
            if is_held:
                _remove_leftovers(neighbor)


def _remove_leftovers(path: Path) -> None:
    restore_folder(path)
    for suffix in (NEW_SUFFIX, OLD_SUFFIX):
        shutil.rmtree(hidden_path(path, suffix), ignore_errors=True)


def _format_size(num_bytes: int) -> str:
    if num_bytes >= 1e8:  # from 0.1 GB on
        return f"{num_bytes / 1e9:.1f} GB"
    return f"{num_bytes / 1e6:.1f} MB"
