"""An index of a hundred million rows that takes no room: runs of consecutive rows, one for each holder."""

from typing import Any, cast

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import NDArray

from fedtailor.data.holders import Split

Whole = NDArray[np.int64]


class Runs(NDArrayOperatorsMixin):
    """Stands for the int64 array of rows starts[i], starts[i] + 1, ... of every holder i, end to end.

    Entries are worked out when asked for. Whatever is not an index (arithmetic, comparisons, NumPy's functions) makes
    the whole array first.
    """

    dtype, ndim = np.dtype(np.int64), 1

    def __init__(self, starts: Whole, offsets: Whole) -> None:
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
            return self._at(np.arange(*item.indices(len(self))))
        places = np.asarray(item)
        if places.dtype.kind == "b":
            return self._at(np.arange(len(self))[places])
        if places.size == 0:
            return np.zeros(places.shape, np.int64)
        low, high = places.min(), places.max()
        if not -len(self) <= low <= high < len(self):
            raise IndexError(f"index {low if low < -len(self) else high} is out of bounds with size {len(self)}")
        return self._at(np.where(places < 0, places + len(self), places) if low < 0 else places)

    def _at(self, places: Whole) -> Any:
        holder = np.searchsorted(self.offsets, places, "right") - 1
        return np.asarray(self.starts)[holder] + (places - np.asarray(self.offsets)[holder])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        begins = np.asarray(self.starts) - np.asarray(self.offsets)[:-1]
        return (np.repeat(begins, np.diff(self.offsets)) + np.arange(len(self))).astype(dtype or np.int64, copy=False)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        return getattr(ufunc, method)(*(np.asarray(i) if isinstance(i, Runs) else i for i in inputs), **options)


def runs(starts: Whole, sizes: Whole) -> Split:
    """Holder i has the rows starts[i], ..., starts[i] + sizes[i] - 1: the split, without an array of them."""
    offsets = np.append(0, np.cumsum(sizes, dtype=np.int64))
    return Split(cast(Whole, Runs(np.asarray(starts, np.int64), offsets)), offsets)


def compact(split: Split) -> Split:
    """The same split as runs, if everybody's rows follow one another; else as it is."""
    if isinstance(cast(Any, split.index), Runs) or not len(split.index):
        return split
    within = np.diff(split.index) == 1
    within[np.asarray(split.offsets[1:-1])[_inner(split)] - 1] = True
    if not within.all():
        return split
    firsts = np.minimum(split.offsets[:-1], len(split.index) - 1)  # whoever has nothing may start anywhere
    return runs(np.asarray(split.index[firsts]), split.sizes())


def _inner(split: Split) -> NDArray[np.bool_]:
    """Which of the places between two holders lie between two entries."""
    between = split.offsets[1:-1]
    return np.asarray((between > 0) & (between < len(split.index)))
