"""Data of the user's own, from a file or a folder: which reader reads it."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from fedtailor.data.arguments import to_numeric_array
from fedtailor.data.builtin.npz import read_npz
from fedtailor.data.reader_blocks import Block
from fedtailor.data.readers.files import split_into_blocks
from fedtailor.data.readers.folders import read_array_folders, read_image_folders
from fedtailor.data.readers.parquet import read_parquet
from fedtailor.errors import require

EXPECTED_FILES = (
    "a Parquet file with a client column, an .npz file with x, y and client, or a folder for each client with images "
    "in a folder for each class, or with x.npy and y.npy"
)


def read_custom_blocks(
    path: str | Path, x: Sequence[str] = ("x",), y: str = "y", client: str = "client"
) -> Iterator[Block]:
    """Blocks of what lies at a path; `x`, `y` and `client` are the names of columns or arrays."""
    source_path = Path(path)
    require(
        source_path.exists(),
        f"There is no file or folder '{path}'; what is wanted is {EXPECTED_FILES}.",
    )
    if source_path.is_dir():
        return (
            read_array_folders(source_path)
            if any(source_path.glob("*/x.npy"))
            else read_image_folders(source_path)
        )
    if source_path.suffix == ".npz":
        require(len(x) == 1, f"'{path}': x must be one array of an .npz file, got {', '.join(x)}.")
        return _read_npz_blocks(source_path, x[0], y, client)
    require(
        source_path.suffix in (".parquet", ".pq"),
        f"'{path}' is none of what is wanted: {EXPECTED_FILES}.",
    )
    return read_parquet(source_path, x[0] if len(x) == 1 else tuple(x), y, client)


def _read_npz_blocks(path: Path, x: str, y: str, client: str) -> Iterator[Block]:
    """The arrays of a file, client by client."""
    arrays = read_npz(path, (x, y, client))
    columns = {
        name: to_numeric_array(f"'{path}'", key, arrays[key]) for name, key in (("x", x), ("y", y))
    }
    owners = arrays[client]
    lengths = [column.shape[:1] for column in (*columns.values(), owners)]
    equal = len(set(lengths)) == 1 and owners.ndim == 1 and len(owners) > 0
    require(
        equal,
        f"'{path}' must have one entry of {x}, {y} and {client} for each example, got {lengths}.",
    )
    named = owners.dtype.kind in "iuU"
    require(named, f"'{path}' must have whole numbers or names as {client}, got {owners.dtype}.")
    order = np.argsort(owners, kind="stable")
    names, starts = np.unique(owners[order], return_index=True)
    for name, rows in zip(names.tolist(), np.split(order, starts[1:]), strict=True):
        yield from split_into_blocks(
            str(name), {what: column[rows] for what, column in columns.items()}
        )
