"""Users' own data from a file or a folder, read by the reader for its format."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from fedtailor.data.arguments import to_numeric_array
from fedtailor.data.builtin.arrays import cast_like
from fedtailor.data.builtin.npz import read_npz
from fedtailor.data.examples import Array
from fedtailor.data.reader_blocks import Block
from fedtailor.data.readers.files import is_present, split_into_blocks
from fedtailor.data.readers.folders import read_array_folders, read_image_folders
from fedtailor.data.readers.parquet import read_parquet
from fedtailor.errors import require

SERVER_ARRAYS = ("x_server", "y_server")
"""Arrays of an .npz file with the server's own examples."""

EXPECTED_FILES = (
    "a Parquet file with a client column, an .npz file with x, y and client, "
    "or a folder for each client with images in a folder for each class, or with x.npy and y.npy"
)


def read_custom_blocks(
    path: str | Path, x: Sequence[str] = ("x",), y: str = "y", client: str = "client"
) -> Iterator[Block]:
    """Read a file or folder of any of the formats in `EXPECTED_FILES`.

    Args:
        path: Where it is.
        x: Columns or arrays of the inputs; only a Parquet file may have several.
        y: Column or array of the targets.
        client: Column or array of the clients' names.
    """
    source_path = Path(path)
    require(
        is_present(source_path),
        f"There is no file or folder '{path}'; expected {EXPECTED_FILES}.",
    )
    if source_path.is_dir():
        has_arrays = any(source_path.glob("*/x.npy"))
        return read_array_folders(source_path) if has_arrays else read_image_folders(source_path)
    if source_path.suffix == ".npz":
        require(len(x) == 1, f"'{path}': x must be one array of an .npz file, got {', '.join(x)}.")
        return _read_npz_blocks(source_path, x[0], y, client)
    is_parquet = source_path.suffix in (".parquet", ".pq")
    require(is_parquet, f"'{path}' has no known format; expected {EXPECTED_FILES}.")
    inputs = x[0] if len(x) == 1 else tuple(x)
    return read_parquet(source_path, inputs, y, client)


def _read_server_block(path: Path, arrays: dict[str, Array], x: str, y: str) -> Iterator[Block]:
    """Yield the server's own examples of an .npz file, if it has any, in the clients' types."""
    has_server = [name in arrays for name in SERVER_ARRAYS]
    if not any(has_server):
        return
    require(
        all(has_server),
        f"'{path}' must hold both of {' and '.join(SERVER_ARRAYS)} or neither, but has only one.",
    )
    columns = {
        "x": cast_like(f"'{path}'", "x", arrays["x_server"], arrays[x]),
        "y": cast_like(f"'{path}'", "y", arrays["y_server"], arrays[y]),
    }
    yield Block("", columns, is_server=True)


def _read_npz_blocks(path: Path, x: str, y: str, client: str) -> Iterator[Block]:
    """Yield the examples of an .npz file client by client, in the order of the clients' names.

    The server's own examples come first.
    """
    arrays = read_npz(path, (x, y, client))
    yield from _read_server_block(path, arrays, x, y)
    columns = {
        "x": to_numeric_array(f"'{path}'", x, arrays[x]),
        "y": to_numeric_array(f"'{path}'", y, arrays[y]),
    }
    owners = arrays[client]
    lengths = [column.shape[:1] for column in (*columns.values(), owners)]
    has_equal_lengths = len(set(lengths)) == 1 and owners.ndim == 1 and len(owners) > 0
    require(
        has_equal_lengths,
        f"'{path}' must have one entry of {x}, {y} and {client} for each example, got {lengths}.",
    )
    require(
        owners.dtype.kind in "iuU",
        f"'{path}' must have whole numbers or names as {client}, got {owners.dtype}.",
    )
    order = np.argsort(owners, kind="stable")
    client_names, starts = np.unique(owners[order], return_index=True)
    client_rows = np.split(order, starts[1:])
    for client_name, rows in zip(client_names.tolist(), client_rows, strict=True):
        client_columns = {name: column[rows] for name, column in columns.items()}
        yield from split_into_blocks(str(client_name), client_columns)
