"""Locks between processes."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from fedtailor.errors import InputError

_NO_LOCK_ERRNOS = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EROFS}
"""Errors of file systems that do not support locks, or are read-only and need none."""


@contextmanager
def hold_lock(path: Path, refusal: str = "", wait: bool = False) -> Iterator[bool]:
    """Hold a lock between processes until the end of the block, or until this process dies.

    Yields whether the lock is held: on a file system without support for locks, such as some
    network disks, the block runs without one.

    Args:
        path: The lock file, which exists while the lock is held.
        refusal: Message of the InputError that is raised if another process holds the lock.
        wait: Whether to wait for the other process instead of raising.
    """
    lock = FileLock(path)
    try:
        lock.acquire(timeout=-1 if wait else 0)
    except Timeout:
        raise InputError(refusal) from None
    except OSError as problem:
        if problem.errno not in _NO_LOCK_ERRNOS:
            raise
    try:
        yield lock.is_locked
    finally:
        with suppress(OSError):  # where open files cannot be removed, the lock file stays
            path.unlink()
        lock.release()
