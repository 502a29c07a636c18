"""An index of a hundred million rows that takes no room: runs of consecutive rows, one for each holder."""

from typing import Any, cast

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import NDArray

from fedtailor.data.examples import Split

IntArray = NDArray[np.int64]


class RowRanges(NDArrayOperatorsMixin):
    """Stands for the int64 array of rows starts[i], starts[i] + 1, ... of every holder i, end to end.

    Entries are worked out when asked for. Whatever is not an index (arithmetic, comparisons, NumPy's functions) makes
    the whole array first.
    """

    dtype, ndim = np.dtype(np.int64), 1

    def __init__(self, starts: IntArray, offsets: IntArray) -> None:
        self.starts, self.offsets = starts, offsets

    def __len__(self) -> int:
        return int(self.offsets[-1])

    @property
    def shape(self) -> tuple[int]:
        """The length, as an array says it."""
        return (len(self),)

    @property
    def size(self) -> int:
        """The length."""
        return len(self)

    def __getitem__(self, item: Any) -> Any:
        if isinstance(item, slice):
            return self._get_rows(np.arange(*item.indices(len(self))))
        positions = np.asarray(item)
        if positions.dtype.kind == "b":
            return self._get_rows(np.arange(len(self))[positions])
        if positions.size == 0:
            return np.zeros(positions.shape, np.int64)
        low, high = positions.min(), positions.max()
        if not -len(self) <= low <= high < len(self):
            raise IndexError(
                f"index {low if low < -len(self) else high} is out of bounds with size {len(self)}"
            )
        return self._get_rows(
            np.where(positions < 0, positions + len(self), positions) if low < 0 else positions
        )

    def _get_rows(self, positions: IntArray) -> Any:
        client = np.searchsorted(self.offsets, positions, "right") - 1
        return np.asarray(self.starts)[client] + (positions - np.asarray(self.offsets)[client])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        begins = np.asarray(self.starts) - np.asarray(self.offsets)[:-1]
        return (np.repeat(begins, np.diff(self.offsets)) + np.arange(len(self))).astype(
            dtype or np.int64, copy=False
        )

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        return getattr(ufunc, method)(
            *(np.asarray(i) if isinstance(i, RowRanges) else i for i in inputs), **kwargs
        )


def make_range_split(starts: IntArray, sizes: IntArray) -> Split:
    """Holder i has the rows starts[i], ..., starts[i] + sizes[i] - 1: the split, without an array of them."""
    offsets = np.append(0, np.cumsum(sizes, dtype=np.int64))
    return Split(cast(IntArray, RowRanges(np.asarray(starts, np.int64), offsets)), offsets)


def compact(split: Split) -> Split:
    """The same split as runs, if everybody's rows follow one another; else as it is."""
    if isinstance(cast(Any, split.index), RowRanges) or not len(split.index):
        return split
    within = np.diff(split.index) == 1
    within[np.asarray(split.offsets[1:-1])[_is_inner_boundary(split)] - 1] = True
    if not within.all():
        return split
    firsts = np.minimum(
        split.offsets[:-1], len(split.index) - 1
    )  # whoever has nothing may start anywhere
    return make_range_split(np.asarray(split.index[firsts]), split.sizes())


def _is_inner_boundary(split: Split) -> NDArray[np.bool_]:
    """Which of the places between two holders lie between two entries."""
    between = split.offsets[1:-1]
    return np.asarray((between > 0) & (between < len(split.index)))
