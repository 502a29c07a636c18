"""Which examples are equal to which, by content: columns are read block by block, as they may be larger than memory."""

import numpy as np
from numpy.typing import NDArray

from fedtailor.data.checks import row_hashes
from fedtailor.data.holders import Array

BLOCK = 4096  # examples that are looked at together

Rows = NDArray[np.int64]


def hashes(x: Array, rows: Rows) -> NDArray[np.uint64]:
    """A number for each of these rows of x, the same for equal ones."""
    blocks = range(0, len(rows), BLOCK)
    found = [row_hashes(x[rows[start : start + BLOCK]]) for start in blocks]
    return np.concatenate(found) if found else np.zeros(0, np.uint64)


def among(x: Array, rows: Rows, others: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Which of these rows of x are equal to one that has one of these numbers."""
    known, found = np.unique(others), np.zeros(len(rows), bool)
    for start in range(0, len(rows), BLOCK):
        block = slice(start, start + BLOCK)
        found[block] = np.isin(row_hashes(x[rows[block]]), known)
    return found
