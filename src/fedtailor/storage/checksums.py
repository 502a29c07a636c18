"""Checksums of files, and files that are written together with theirs."""

import hashlib
import os
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

from numpy.typing import NDArray

_SYNC_BYTES = 1 << 27
"""Bytes that are written before the disk is told to begin with them."""


class FileRecord(NamedTuple):
    """The name, the size and the checksum of a file."""

    name: str
    bytes: int
    sha256: str


def compute_sha256(path: Path) -> str:
    """Return the SHA-256 of a file's content as hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fingerprint(path: Path) -> FileRecord:
    """Return a file's name, size and checksum, for which all of it is read."""
    return FileRecord(path.name, path.stat().st_size, compute_sha256(path))


class FileWriter:
    """Write one file from beginning to end and compute its checksum on the way.

    Hashing runs beside writing, and the disk begins early, so that `finish` has little to wait for.
    The file is not replaced atomically: write into a folder that is.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._hash = hashlib.sha256()
        self._num_bytes = 0
        self._num_synced_bytes = 0  # told to the disk so far
        self._file: IO[bytes] = path.open("wb")
        self._executor = ThreadPoolExecutor(2)
        self._sync: Future[None] | None = None  # runs beside writing

    def add(self, content: NDArray[Any] | bytes) -> None:
        """Append bytes, or the bytes of a contiguous array."""
        view = content if isinstance(content, bytes) else content.data
        hashing = self._executor.submit(self._hash.update, view)
        self._num_bytes += self._file.write(view)
        hashing.result()
        if self._should_sync():
            self._wait_for_sync()
            self._num_synced_bytes = self._num_bytes
            self._sync = self._executor.submit(os.fsync, self._file.fileno())

    def finish(self) -> FileRecord:
        """Close the file and return its checksum when all of it is on the disk."""
        self._wait_for_sync()
        self._file.flush()
        os.fsync(self._file.fileno())
        self.close()
        return FileRecord(self._path.name, self._num_bytes, self._hash.hexdigest())

    def close(self) -> None:
        """Close the file, complete or not; what could not be written is not tried again."""
        self._executor.shutdown()
        with suppress(OSError):
            self._file.close()

    def _should_sync(self) -> bool:
        if self._num_bytes - self._num_synced_bytes < _SYNC_BYTES:
            return False
        return self._sync is None or self._sync.done()

    def _wait_for_sync(self) -> None:
        """Wait for the last sync and raise its error: a disk reports only once that it is full."""
        if self._sync is not None:
            self._sync.result()


def write_file(path: Path, content: NDArray[Any] | bytes) -> FileRecord:
    """Write a file, not atomically, and return its checksum when all of it is on the disk."""
    writer = FileWriter(path)
    try:
        writer.add(content)
        return writer.finish()
    finally:
        writer.close()
