"""`VerifiedColumn`: a memory-mapped column whose blocks are verified before they are first read."""

import hashlib
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import NDArray

from fedtailor.data.examples import Array
from fedtailor.data.store.manifest import ColumnFile, make_damage_error
from fedtailor.data.store.memory_map import advise_read_ahead

IntArray = NDArray[np.int64]


class VerifiedColumn(NDArrayOperatorsMixin):
    """A column of a store, which acts like a read-only array and never gives out damaged rows.

    Indexing verifies the blocks of the rows that are asked for, each once in the life of the
    object; a block that is not what was written raises `InputError`. Anything else (arithmetic,
    comparisons, functions of NumPy, other attributes of arrays) verifies all of them first. Threads
    may share it: at worst two of them verify the same block.

    Args:
        store_name: Name of the store, for errors.
        column_name: Name of the column, for errors.
        folder: Folder of the store.
        file: The file of the column.
    """

    def __init__(self, store_name: str, column_name: str, folder: Path, file: ColumnFile) -> None:
        self._store_name = store_name
        self._column_name = column_name
        self._folder = folder
        self._file = file
        # A plain array is faster to index than a memory map, and keeps it open.
        self._array = np.asarray(file.open_memmap(folder))
        self._is_verified = np.zeros(len(file.block_sha256), bool)  # [blocks]
        self._is_all_verified = False
        self.dtype = self._array.dtype
        self.shape = self._array.shape
        self.ndim = self._array.ndim
        self.size = self._array.size
        self.itemsize = self._array.itemsize
        self.nbytes = self._array.nbytes
        self.strides = self._array.strides

    @property
    def raw_array(self) -> Array:
        """The memory map; call `verify_rows` before rows of it are read."""
        return self._array

    def __len__(self) -> int:
        return len(self._array)

    def __getitem__(self, item: Any) -> Any:
        values = self._array[item]
        if not self._is_all_verified:
            self._verify_item(item)
        return values

    def __setitem__(self, item: Any, value: Any) -> None:
        self._array[item] = value  # NumPy's error for what is read-only

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        self._verify_blocks(range(len(self._is_verified)))
        array = self._array if dtype is None else self._array.astype(dtype, copy=False)
        return array.copy() if copy else array

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        arrays = [
            np.asarray(value) if isinstance(value, VerifiedColumn) else value for value in inputs
        ]
        return getattr(ufunc, method)(*arrays, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # copying and pickling ask for some before there is an array
            raise AttributeError(name)
        return getattr(np.asarray(self), name)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the path and the checksums: another process maps and verifies the same file."""
        return VerifiedColumn, (self._store_name, self._column_name, self._folder, self._file)

    def verify_rows(self, rows: IntArray) -> None:
        """Raise `InputError` unless the blocks of some rows, none negative, are as written."""
        if self._is_all_verified:
            return
        blocks = rows // self._file.block_rows
        is_verified = self._is_verified[blocks]
        if not is_verified.all():
            self._verify_blocks(np.unique(blocks[~is_verified]).tolist())

    def verify_again(self) -> None:
        """Raise `InputError` unless every block is as written, also where that is known."""
        self._is_verified[:] = False
        self._is_all_verified = False
        self._verify_blocks(range(len(self._is_verified)))

    def _verify_item(self, item: Any) -> None:
        """Verify the rows that an index asks for, which the array has accepted."""
        if isinstance(item, slice):
            selected = range(*item.indices(len(self)))
            if len(selected) > 0:
                first = min(selected[0], selected[-1]) // self._file.block_rows
                last = max(selected[0], selected[-1]) // self._file.block_rows
                self._verify_blocks(range(first, last + 1))
            return
        rows = np.zeros(0) if isinstance(item, tuple) else np.atleast_1d(item)
        if rows.dtype.kind == "b" and rows.shape == self.shape[:1]:
            rows = np.flatnonzero(rows)
        if rows.dtype.kind not in "iu":  # an ellipsis, several axes, and the like
            self._verify_blocks(range(len(self._is_verified)))
            return
        self.verify_rows(np.where(rows < 0, rows + len(self), rows))

    def _verify_blocks(self, blocks: Iterable[int]) -> None:
        if self._is_all_verified:
            return
        pending = [block for block in blocks if not self._is_verified[block]]
        if len(pending) > 1:
            with ThreadPoolExecutor(os.cpu_count()) as executor:
                list(executor.map(self._verify_block, pending))
        elif pending:
            self._verify_block(pending[0])
        if pending:
            self._is_all_verified = bool(self._is_verified.all())

    def _verify_block(self, block: int) -> None:
        start = block * self._file.block_rows
        rows = self._array[start : start + self._file.block_rows]
        row_bytes = self.nbytes // len(self)
        advise_read_ahead(self._array, start * row_bytes, rows.nbytes)
        checksum = hashlib.sha256(rows.reshape(-1).view(np.uint8).data).hexdigest()
        if checksum != self._file.block_sha256[block]:
            damage = (
                f"rows {start} to {start + len(rows) - 1} of column {self._column_name} "
                f"('{self._file.file.name}') are not what was written"
            )
            raise make_damage_error(self._store_name, damage)
        self._is_verified[block] = True


def get_verified_column(column: object) -> VerifiedColumn | None:
    """Return a column if it is one of a store, and None if it is a plain array."""
    return column if isinstance(column, VerifiedColumn) else None
