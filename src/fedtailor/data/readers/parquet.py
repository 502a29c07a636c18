"""Users' own data as a Parquet file with a column of clients, read row group by row group."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedtailor.data.examples import Array
from fedtailor.data.reader_blocks import Block
from fedtailor.data.readers.files import split_into_blocks, translate_read_errors
from fedtailor.errors import import_extra, is_number, require


def read_parquet(
    path: str | Path,
    x: str | Sequence[str] = "x",
    y: str = "y",
    client: str = "client",
    extra_columns: Sequence[str] = (),
    max_rows: int = 1_000_000,
) -> Iterator[Block]:
    """Yield the rows client by client, in the order of the clients' first rows.

    The file need not be sorted by client, but is read faster if it is: each range of clients that
    has about `max_rows` rows is collected in one pass over the row groups that have any of them.
    That reads a sorted file once, and one with scattered clients once for every `max_rows` rows.

    Args:
        x: Column of the inputs, of numbers or of lists of them; several are put side by side.
        y: Column of the targets.
        client: Column of the clients' names, integers or strings.
        extra_columns: Further columns, which keep their names.
        max_rows: Number of rows that are in RAM at a time, unless a single client has more.
    """
    arrow = import_extra("pyarrow.parquet", "parquet", "Reading Parquet files")
    require(
        is_number(max_rows, integer=True) and max_rows >= 1,
        f"'{path}': max_rows must be a whole number of at least 1, got {max_rows!r}.",
    )
    inputs = (x,) if isinstance(x, str) else tuple(x)
    with translate_read_errors(path, "a Parquet file"), Path(path).open("rb") as opened:
        file = arrow.ParquetFile(opened)
        present = file.schema_arrow.names
        for name in (*inputs, y, client, *extra_columns):
            require(
                name in present,
                f"'{path}' must have a column '{name}', but has {', '.join(present)}.",
            )
        client_names, group_owners = _index_clients(path, file, client)
        has_rows = bool(client_names)
        require(has_rows, f"'{path}' must have rows, but has none.")
        sizes = np.bincount(np.concatenate(group_owners), minlength=len(client_names))
        for first, last in _iter_client_ranges(sizes, max_rows):
            owners: list[Array] = []
            parts: dict[str, list[Array]] = {}
            for group, row_owners in enumerate(group_owners):
                rows = np.flatnonzero((row_owners >= first) & (row_owners < last))
                if len(rows) == 0:
                    continue
                owners.append(row_owners[rows])
                group_table = file.read_row_group(group, columns=[*inputs, y, *extra_columns])
                table = group_table.take(rows)
                columns = _convert_columns(path, table, inputs, y, extra_columns)
                for name, column in columns.items():
                    parts.setdefault(name, []).append(column)
            yield from _iter_blocks(path, client_names, np.concatenate(owners), parts)


def _index_clients(path: str | Path, file: Any, client: str) -> tuple[list[str], list[Array]]:
    """Read the column of clients.

    Args:
        path: File that the error names.
        file: The same file, opened by pyarrow.
        client: Name of the column.

    Returns:
        The clients' names in the order of their first rows and, for each row group, the client
        [rows] of each row as a position among the names.
    """
    client_indices: dict[str, int] = {}
    group_owners = []
    for group in range(file.num_row_groups):
        values = file.read_row_group(group, columns=[client]).column(0).to_pylist()
        for value in values:
            is_integer = isinstance(value, int) and not isinstance(value, bool)
            is_name = isinstance(value, str) and value != ""
            require(
                is_integer or is_name,
                f"'{path}' must have whole numbers or names as '{client}', got {value!r}.",
            )
            client_indices.setdefault(str(value), len(client_indices))
        group_owners.append(np.array([client_indices[str(value)] for value in values], np.int64))
    return list(client_indices), group_owners


def _iter_client_ranges(sizes: Array, max_rows: int) -> Iterator[tuple[int, int]]:
    """Yield ranges (first, last + 1) of clients that have at most `max_rows` rows together.

    A client that has more is alone in its range.
    """
    first = 0
    num_rows = 0
    for client, size in enumerate(sizes.tolist()):
        if num_rows > 0 and num_rows + size > max_rows:
            yield first, client
            first = client
            num_rows = 0
        num_rows += size
    yield first, len(sizes)


def _convert_columns(
    path: str | Path, table: Any, inputs: Sequence[str], y: str, extra_columns: Sequence[str]
) -> dict[str, Array]:
    """Convert a table of pyarrow to the columns of blocks; several inputs are put side by side."""
    arrays = {
        name: _to_numeric_array(path, name, table.column(name).combine_chunks())
        for name in (*inputs, y, *extra_columns)
    }
    x_column = arrays[inputs[0]]
    if len(inputs) > 1:
        x_column = np.stack([arrays[name] for name in inputs], axis=1)
    return {"x": x_column, "y": arrays[y]} | {name: arrays[name] for name in extra_columns}


def _to_numeric_array(path: str | Path, name: str, column: Any) -> Array:
    """Convert a column of numbers, or of nested lists of the same lengths, to an array [n, ...].

    Args:
        path: File that the error names.
        name: Name of the column.
        column: Array of pyarrow.
    """
    types = import_extra("pyarrow.types", "parquet", "Reading Parquet files")
    shape = [len(column)]
    while (
        types.is_list(column.type)
        or types.is_large_list(column.type)
        or types.is_fixed_size_list(column.type)
    ):
        _require_no_nulls(path, name, column)
        entries = column.flatten()
        length = len(entries) // max(1, len(column))
        has_same_length = all(len(entry) == length for entry in column)
        require(has_same_length, f"'{path}' must have lists of the same length in column '{name}'.")
        shape.append(length)
        column = entries
    _require_no_nulls(path, name, column)
    values = column.to_numpy(zero_copy_only=False)
    require(
        values.dtype.kind in "fiub",
        f"'{path}' must have numbers in column '{name}', got {column.type}.",
    )
    is_finite = values.dtype.kind != "f" or bool(np.isfinite(values).all())
    require(
        is_finite, f"'{path}' must have finite numbers, but column '{name}' has a NaN or infinity."
    )
    return np.asarray(values).reshape(shape)


def _require_no_nulls(path: str | Path, name: str, column: Any) -> None:
    require(column.null_count == 0, f"'{path}' must have no empty values, but column '{name}' has.")


def _iter_blocks(
    path: str | Path, client_names: list[str], owners: Array, parts: dict[str, list[Array]]
) -> Iterator[Block]:
    """Yield the blocks of rows that were collected from several row groups.

    Args:
        path: File that the error names.
        client_names: Names of all clients.
        owners: Client of each row, as a position among the names.
        parts: Arrays of each column, which are concatenated.
    """
    for name, arrays in parts.items():
        row_shapes = {array.shape[1:] for array in arrays}
        require(
            len(row_shapes) == 1,
            f"'{path}' must have lists of the same length in column '{name}'.",
        )
    order = np.argsort(owners, kind="stable")
    columns = {name: np.concatenate(arrays)[order] for name, arrays in parts.items()}
    clients, starts = np.unique(owners[order], return_index=True)
    ends = [*starts[1:], len(order)]
    for client, start, end in zip(clients, starts, ends, strict=True):
        client_columns = {name: column[start:end] for name, column in columns.items()}
        yield from split_into_blocks(client_names[client], client_columns)
