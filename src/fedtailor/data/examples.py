"""Examples in flat columns and which client has which: nothing here is checked, see `dataset`."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class Split(NamedTuple):
    """Which examples each holder has: holder i has `index[offsets[i]:offsets[i + 1]]`."""

    index: NDArray[np.int64]  # type: ignore[assignment]  # hides tuple.index, which nobody needs here
    offsets: NDArray[np.int64]  # one more than there are holders

    def sizes(self) -> NDArray[np.int64]:
        """How many examples each holder has."""
        return np.diff(self.offsets)

    def get_rows(self, client: int) -> NDArray[np.int64]:
        """The examples of one holder."""
        return self.index[self.offsets[client] : self.offsets[client + 1]]

    def owners(self) -> NDArray[np.int64]:
        """Who holds each entry of `index`."""
        return np.repeat(np.arange(len(self.offsets) - 1), self.sizes())


class ClientExamples(NamedTuple):
    """Examples in flat columns, and who holds which."""

    x: Array  # [examples, ...] floating or integer
    y: Array  # [examples] or [examples, ...]
    splits: dict[str, Split]  # "train" and "test"; the server has "train" alone

    @property
    def count(self) -> int:  # type: ignore[override]  # hides tuple.count, which nobody needs here
        """How many holders there are."""
        return len(self.splits["train"].offsets) - 1


def single_client(x: Array, y: Array) -> ClientExamples:
    """All examples in one pair of hands, as the server has its own."""
    return ClientExamples(x, y, {"train": Split(np.arange(len(x)), np.array([0, len(x)]))})
