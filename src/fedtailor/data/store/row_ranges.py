"""Splits by ranges of rows: an index that needs RAM for each client, but none for each row."""

from typing import Any, cast

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import NDArray

from fedtailor.data.examples import Split

IntArray = NDArray[np.int64]


class RowRanges(NDArrayOperatorsMixin):
    """The concatenation of a range of consecutive rows for each client, without an array of them.

    It acts like the int64 array of all clients' rows starts[i], starts[i] + 1, ... Indexing
    computes the entries that are asked for; anything else (arithmetic, comparisons, functions of
    NumPy) makes the whole array first.
    """

    dtype = np.dtype(np.int64)
    ndim = 1

    def __init__(self, starts: IntArray, offsets: IntArray) -> None:
        self.starts = starts  # [clients]
        self.offsets = offsets  # [clients + 1], as in a Split

    def __len__(self) -> int:
        return int(self.offsets[-1])

    @property
    def shape(self) -> tuple[int]:
        """The shape of the array."""
        return (len(self),)

    @property
    def size(self) -> int:
        """The number of entries."""
        return len(self)

    def __getitem__(self, item: Any) -> Any:
        if isinstance(item, slice):
            return self._get_rows(np.arange(*item.indices(len(self))))
        positions = np.asarray(item)
        if positions.dtype.kind == "b":
            return self._get_rows(np.arange(len(self))[positions])
        if positions.size == 0:
            return np.zeros(positions.shape, np.int64)
        lowest = positions.min()
        highest = positions.max()
        if lowest < -len(self) or highest >= len(self):
            outside = lowest if lowest < -len(self) else highest
            raise IndexError(f"index {outside} is out of bounds with size {len(self)}")
        if lowest < 0:
            positions = np.where(positions < 0, positions + len(self), positions)
        return self._get_rows(positions)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        # A client's first row minus its first position: what its positions are to be shifted by.
        shifts = np.asarray(self.starts) - np.asarray(self.offsets)[:-1]
        rows = np.repeat(shifts, np.diff(self.offsets)) + np.arange(len(self))
        return rows.astype(dtype or np.int64, copy=False)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        arrays = [np.asarray(value) if isinstance(value, RowRanges) else value for value in inputs]
        return getattr(ufunc, method)(*arrays, **kwargs)

    def _get_rows(self, positions: IntArray) -> Any:
        """Return the entries at positions that are not negative, in the positions' shape."""
        clients = np.searchsorted(self.offsets, positions, "right") - 1
        return np.asarray(self.starts)[clients] + (positions - np.asarray(self.offsets)[clients])


def make_range_split(starts: IntArray, sizes: IntArray) -> Split:
    """Return the split in which client i has the `sizes[i]` rows from `starts[i]` on."""
    offsets = np.append(0, np.cumsum(sizes, dtype=np.int64))
    return Split(cast(IntArray, RowRanges(np.asarray(starts, np.int64), offsets)), offsets)


def compact(split: Split) -> Split:
    """Return a split by ranges of rows if every client's are consecutive, and else unchanged."""
    if isinstance(cast(Any, split.index), RowRanges) or len(split.index) == 0:
        return split
    is_consecutive = np.diff(split.index) == 1  # entry i and entry i + 1
    # The last row of a client and the first of the next one need not be consecutive.
    boundaries = np.asarray(split.offsets[1:-1])
    inner_boundaries = boundaries[(boundaries > 0) & (boundaries < len(split.index))]
    is_consecutive[inner_boundaries - 1] = True
    if not is_consecutive.all():
        return split
    # A client without rows at the end has its offset behind the last entry; any start will do.
    first_positions = np.minimum(split.offsets[:-1], len(split.index) - 1)
    return make_range_split(np.asarray(split.index[first_positions]), split.compute_sizes())
