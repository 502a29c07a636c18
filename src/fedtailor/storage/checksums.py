"""Checksums of files and of their blocks, and a writer that computes them while it writes."""

import hashlib
import os
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

_SYNC_BYTES = 1 << 27
"""Number of new bytes after which a sync to disk is started in the background."""


class FileRecord(NamedTuple):
    """Name, size in bytes and checksum of a file."""

    name: str
    bytes: int
    sha256: str


def compute_sha256(path: Path) -> str:
    """Return the SHA-256 of a file's content as hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fingerprint(path: Path) -> FileRecord:
    """Return the name, size and checksum of a file, reading all of it."""
    return FileRecord(path.name, path.stat().st_size, compute_sha256(path))


class BlockHasher:
    """Checksums of consecutive blocks of equal size, of which the last may be shorter."""

    def __init__(self, block_bytes: int) -> None:
        self._block_bytes = block_bytes
        self._checksums: list[str] = []
        self._hash = hashlib.sha256()
        self._num_bytes = 0  # of the block that has begun

    def update(self, content: memoryview) -> None:
        """Append bytes, of any number."""
        start = 0
        while start < len(content):
            end = min(len(content), start + self._block_bytes - self._num_bytes)
            self._hash.update(content[start:end])
            self._num_bytes += end - start
            start = end
            if self._num_bytes == self._block_bytes:
                self._end_block()

    def finish(self) -> tuple[str, ...]:
        """Return the SHA-256 of each block as hexadecimal digits."""
        if self._num_bytes > 0:
            self._end_block()
        return tuple(self._checksums)

    def _end_block(self) -> None:
        self._checksums.append(self._hash.hexdigest())
        self._hash = hashlib.sha256()
        self._num_bytes = 0


class FileWriter:
    """Writer of one file, from beginning to end, which computes its checksums on the way.

    Hashing and syncing run in threads beside writing, so that `finish` has little to wait for. The
    file is not replaced atomically; write it into a folder that is.

    Args:
        path: The file.
        block_bytes: Size of the blocks that `finish_blocks` returns checksums of; None: there are
            none.
    """

    def __init__(self, path: Path, block_bytes: int | None = None) -> None:
        self._path = path
        self._hash = hashlib.sha256()
        self._block_hasher = None if block_bytes is None else BlockHasher(block_bytes)
        self._num_bytes = 0
        self._num_synced_bytes = 0  # covered by the last sync that was started
        self._file: IO[bytes] = path.open("wb")
        self._executor = ThreadPoolExecutor(3)
        self._sync: Future[None] | None = None  # the last sync that was started

    def add(self, content: NDArray[Any] | bytes) -> None:
        """Append bytes, or the bytes of a contiguous array."""
        view = _view_bytes(content)
        hashing = [self._executor.submit(self._hash.update, view)]
        if self._block_hasher is not None:
            hashing.append(self._executor.submit(self._block_hasher.update, view))
        self._num_bytes += self._file.write(view)
        for future in hashing:
            future.result()
        if self._should_sync():
            self._wait_for_sync()
            self._num_synced_bytes = self._num_bytes
            self._sync = self._executor.submit(os.fsync, self._file.fileno())

    def finish(self) -> FileRecord:
        """Sync the file to disk, close it, and return its checksum."""
        self._wait_for_sync()
        self._file.flush()
        os.fsync(self._file.fileno())
        self.close()
        return FileRecord(self._path.name, self._num_bytes, self._hash.hexdigest())

    def finish_blocks(self) -> tuple[str, ...]:
        """Return the SHA-256 of each block of the file as hexadecimal digits."""
        return () if self._block_hasher is None else self._block_hasher.finish()

    def close(self) -> None:
        """Close the file, complete or not, without a second try to write what failed."""
        self._executor.shutdown()
        with suppress(OSError):
            self._file.close()

    def _should_sync(self) -> bool:
        if self._num_bytes - self._num_synced_bytes < _SYNC_BYTES:
            return False
        return self._sync is None or self._sync.done()

    def _wait_for_sync(self) -> None:
        """Wait for the last sync and raise its error: a full disk may report it only once."""
        if self._sync is not None:
            self._sync.result()


def _view_bytes(content: NDArray[Any] | bytes) -> memoryview:
    if isinstance(content, bytes):
        return memoryview(content)
    return content.reshape(-1).view(np.uint8).data


def write_file(path: Path, content: NDArray[Any] | bytes) -> FileRecord:
    """Write a file, not atomically, sync it to disk, and return its checksum."""
    writer = FileWriter(path)
    try:
        writer.add(content)
        return writer.finish()
    finally:
        writer.close()
