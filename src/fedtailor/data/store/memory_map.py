"""Advice to the operating system about memory maps."""

import mmap

import numpy as np

from fedtailor.data.examples import Array
from fedtailor.storage.memory import get_memory


def advise_random_access(column: Array) -> None:
    """Switch off read-ahead for a memory-mapped column that may not fit into RAM.

    By default the system reads 128 KB around each row. That pays as long as everything that was
    read stays in RAM, but not when it is dropped before it is needed. Columns that are no memory
    maps are left as they are.
    """
    mapping = _get_mmap(column)
    if mapping is None or not hasattr(mmap, "MADV_RANDOM"):  # Windows has no such advice
        return
    if len(mapping) > get_memory().total // 2:
        mapping.madvise(mmap.MADV_RANDOM)


def advise_read_ahead(column: Array, start: int, length: int) -> None:
    """Start to read a part of a memory-mapped column from the disk, all at once.

    Without it, a column with `advise_random_access` would be read page by page.

    Args:
        column: A memory map.
        start: First byte of the part.
        length: Number of bytes.
    """
    mapping = _get_mmap(column)
    if mapping is None or not hasattr(mmap, "MADV_WILLNEED"):
        return
    page_start = start - start % mmap.PAGESIZE
    mapping.madvise(mmap.MADV_WILLNEED, page_start, start + length - page_start)


def _get_mmap(column: Array) -> mmap.mmap | None:
    base: object = column
    while isinstance(base, np.ndarray):
        base = base.base
    return base if isinstance(base, mmap.mmap) else None
