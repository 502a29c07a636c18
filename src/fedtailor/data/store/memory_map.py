"""Memory maps as the system sees them."""

import mmap
import os

import numpy as np

from fedtailor.data.examples import Array


def advise_random_access(column: Array) -> None:
    """Has the system read nothing but the rows asked for, if the file that a column is a map of may not stay in RAM.

    It reads 128 KB around each of them otherwise. That pays as long as everything read can stay, and not when it is
    thrown away again before it is wanted. Columns in RAM are let be.
    """
    mapped = _get_mmap(column)
    if mapped is not None and hasattr(mmap, "MADV_RANDOM") and len(mapped) > _get_ram_bytes() // 2:
        mapped.madvise(mmap.MADV_RANDOM)


def _get_mmap(column: Array) -> mmap.mmap | None:
    base: object = column
    while isinstance(base, np.ndarray):
        base = base.base
    return base if isinstance(base, mmap.mmap) else None


def _get_ram_bytes() -> int:
    """Bytes of RAM of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
