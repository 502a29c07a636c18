"""Which examples are equal to which, by content: columns are read block by block, as they may be larger than memory."""

import numpy as np
from numpy.typing import NDArray

from fedtailor.data.examples import Array
from fedtailor.data.validation import hash_rows

BLOCK_ROWS = 4096  # examples that are looked at together

Rows = NDArray[np.int64]


def hash_examples(x: Array, rows: Rows) -> NDArray[np.uint64]:
    """A number for each of these rows of x, the same for equal ones."""
    blocks = range(0, len(rows), BLOCK_ROWS)
    found = [hash_rows(x[rows[start : start + BLOCK_ROWS]]) for start in blocks]
    return np.concatenate(found) if found else np.zeros(0, np.uint64)


def is_duplicate(x: Array, rows: Rows, hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Which of these rows of x are equal to one that has one of these numbers."""
    known, found = np.unique(hashes), np.zeros(len(rows), bool)
    for start in range(0, len(rows), BLOCK_ROWS):
        block = slice(start, start + BLOCK_ROWS)
        found[block] = np.isin(hash_rows(x[rows[block]]), known)
    return found
