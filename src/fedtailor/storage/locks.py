"""Locks that other processes respect."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from fedtailor.errors import InputError

_NO_LOCK_ERRNOS = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP}
"""What disks answer that know no locks."""


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
        if problem.errno not in _NO_LOCK_ERRNOS:
            raise
    try:
        yield lock.is_locked
    finally:
        with suppress(OSError):  # where an open file cannot be removed, its lock file stays
            path.unlink()
        lock.release()
