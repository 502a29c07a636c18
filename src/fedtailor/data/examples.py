"""Examples in flat columns, and splits that say which client has which. Checks: `validation`."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

UNASSIGNED = -1
"""Owner of the examples that no client has."""

MARKED_ROWS = 1 << 20
"""Number of rows of a split that are marked at a time."""


class Split(NamedTuple):
    """Rows of every client: client i has `index[offsets[i]:offsets[i + 1]]`."""

    # [entries] rows of the columns, client after client
    index: NDArray[np.int64]  # type: ignore[assignment]  # hides tuple.index, which is not needed
    offsets: NDArray[np.int64]  # [clients + 1], from 0 to the number of entries

    def compute_sizes(self) -> NDArray[np.int64]:
        """Return the number of examples of each client, [clients]."""
        return np.diff(self.offsets)

    def get_rows(self, client: int) -> NDArray[np.int64]:
        """Return the rows of one client's examples."""
        return self.index[self.offsets[client] : self.offsets[client + 1]]

    def compute_owners(self) -> NDArray[np.int64]:
        """Return the client that each entry of `index` belongs to, [entries]."""
        return np.repeat(np.arange(len(self.offsets) - 1), self.compute_sizes())


class ClientExamples(NamedTuple):
    """Columns of examples, and the splits that assign them to clients."""

    x: Array  # [examples, ...] floating or integer
    y: Array  # [examples] or [examples, ...]
    splits: dict[str, Split]  # "train" and "test"; the server has "train" alone

    @property
    def count(self) -> int:  # type: ignore[override]  # hides tuple.count, which is not needed
        """Number of clients."""
        return len(self.splits["train"].offsets) - 1


def single_client(x: Array, y: Array) -> ClientExamples:
    """Return examples that all belong to one client, the form of the server's own examples."""
    return ClientExamples(x, y, {"train": Split(np.arange(len(x)), np.array([0, len(x)]))})


def mark_rows(splits: Iterable[Split], num_rows: int) -> NDArray[np.bool_]:
    """Return whether each of `num_rows` rows is in one of the splits, [num_rows]."""
    is_marked = np.zeros(num_rows, bool)
    distinct_splits = {id(split): split for split in splits}
    for split in distinct_splits.values():
        for start in range(0, len(split.index), MARKED_ROWS):
            is_marked[split.index[start : start + MARKED_ROWS]] = True
    return is_marked
