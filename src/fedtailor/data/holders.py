"""Examples in flat columns and who holds which: nothing here is checked, see `dataset`."""

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

    def of(self, holder: int) -> NDArray[np.int64]:
        """The examples of one holder."""
        return self.index[self.offsets[holder] : self.offsets[holder + 1]]

    def holders(self) -> NDArray[np.int64]:
        """Who holds each entry of `index`."""
        return np.repeat(np.arange(len(self.offsets) - 1), self.sizes())


class Holders(NamedTuple):
    """Examples in flat columns, and who holds which."""

    x: Array  # [examples, ...] floating or integer
    y: Array  # [examples] or [examples, ...]
    splits: dict[str, Split]  # "train" and "test"; the server has "train" alone

    @property
    def count(self) -> int:  # type: ignore[override]  # hides tuple.count, which nobody needs here
        """How many holders there are."""
        return len(self.splits["train"].offsets) - 1


def sole_holder(x: Array, y: Array) -> Holders:
    """All examples in one pair of hands, as the server has its own."""
    return Holders(x, y, {"train": Split(np.arange(len(x)), np.array([0, len(x)]))})
