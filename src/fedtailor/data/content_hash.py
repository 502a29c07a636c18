"""Hashes of examples by content, which find equal ones."""

import numpy as np
from numpy.typing import NDArray

from fedtailor.data.examples import Array


def hash_rows(rows: Array) -> NDArray[np.uint64]:
    """Return a 64-bit hash of each row, [rows]; rows of equal numbers have equal hashes.

    The 64-bit words of a row are mixed, multiplied by an odd constant that depends on their
    position, mixed again and added. The first mixing brings high bits down: a product alone would
    carry them out of the word, and flipping the signs of two floats would not change the hash.
    """
    values = np.ascontiguousarray(rows).reshape(len(rows), -1)
    if values.dtype.kind == "f":
        values = values + values.dtype.type(0)  # turns -0.0 into 0.0
    raw = values.view(np.uint8)
    row_bytes = raw.shape[1]
    num_words = -(-row_bytes // 8)
    words = np.zeros((len(raw), num_words), np.uint64)
    words.view(np.uint8)[:, :row_bytes] = raw
    rng = np.random.Generator(np.random.Philox(0))
    odd_constants = rng.integers(0, 1 << 64, num_words, np.uint64) | np.uint64(1)
    words ^= words >> np.uint64(32)
    words *= odd_constants
    words ^= words >> np.uint64(29)
    return np.asarray(words.sum(axis=1, dtype=np.uint64))
