"""Data of the user's own, from a file or a folder: which reader reads it."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from fedtailor.data.arrays import numbers
from fedtailor.data.blocks import Block
from fedtailor.data.npz import read_npz
from fedtailor.data.readers.files import in_pieces
from fedtailor.data.readers.folders import array_folders, image_folders
from fedtailor.data.readers.parquet import parquet
from fedtailor.errors import require

WANTED = (
    "a Parquet file with a client column, an .npz file with x, y and client, or a folder for each client with images "
    "in a folder for each class, or with x.npy and y.npy"
)


def own_blocks(path: str | Path, x: Sequence[str] = ("x",), y: str = "y", client: str = "client") -> Iterator[Block]:
    """Blocks of what lies at a path; `x`, `y` and `client` are the names of columns or arrays."""
    place = Path(path)
    require(place.exists(), f"There is no file or folder '{path}'; what is wanted is {WANTED}.")
    if place.is_dir():
        return array_folders(place) if any(place.glob("*/x.npy")) else image_folders(place)
    if place.suffix == ".npz":
        require(len(x) == 1, f"'{path}': x must be one array of an .npz file, got {', '.join(x)}.")
        return _npz(place, x[0], y, client)
    require(place.suffix in (".parquet", ".pq"), f"'{path}' is none of what is wanted: {WANTED}.")
    return parquet(place, x[0] if len(x) == 1 else tuple(x), y, client)


def _npz(path: Path, x: str, y: str, client: str) -> Iterator[Block]:
    """The arrays of a file, client by client."""
    arrays = read_npz(path, (x, y, client))
    columns = {name: numbers(f"'{path}'", key, arrays[key]) for name, key in (("x", x), ("y", y))}
    whose = arrays[client]
    lengths = [column.shape[:1] for column in (*columns.values(), whose)]
    equal = len(set(lengths)) == 1 and whose.ndim == 1 and len(whose) > 0
    require(equal, f"'{path}' must have one entry of {x}, {y} and {client} for each example, got {lengths}.")
    named = whose.dtype.kind in "iuU"
    require(named, f"'{path}' must have whole numbers or names as {client}, got {whose.dtype}.")
    order = np.argsort(whose, kind="stable")
    names, starts = np.unique(whose[order], return_index=True)
    for name, rows in zip(names.tolist(), np.split(order, starts[1:]), strict=True):
        yield from in_pieces(str(name), {what: column[rows] for what, column in columns.items()})
