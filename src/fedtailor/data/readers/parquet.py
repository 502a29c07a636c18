"""Your own data as a Parquet file with a column that says whose each row is, read row group by row group."""

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
    """Blocks of the columns `x` (numbers or lists of them; several names are put side by side), `y` and `others`.

    Clients come in the order of their first rows, and a client's rows together wherever they lie. About `held` rows are
    in RAM at a time: that many rows' clients are collected in one pass over the row groups that have any of them. In a
    file sorted by client that is the whole file once; in one where clients are scattered, once for every `held` rows.
    """
    arrow = import_extra("pyarrow.parquet", "parquet", "Reading Parquet files")
    require(
        is_number(max_rows, integer=True) and max_rows >= 1,
        f"'{path}': held must be at least 1 row, got {max_rows!r}.",
    )
    inputs = (x,) if isinstance(x, str) else tuple(x)
    with translate_read_errors(path, "a Parquet file"), Path(path).open("rb") as opened:
        file = arrow.ParquetFile(opened)
        have = file.schema_arrow.names
        for name in (*inputs, y, client, *extra_columns):
            require(
                name in have, f"'{path}' must have a column '{name}', but has {', '.join(have)}."
            )
        names, groups = _index_clients(path, file, client)
        sizes = (
            np.bincount(np.concatenate(groups), minlength=len(names))
            if names
            else np.zeros(0, np.int64)
        )
        require(bool(names), f"'{path}' must have rows, but has none.")
        for first, last in _iter_client_ranges(sizes, max_rows):
            parts: dict[str, list[Array]] = {}
            owners: list[Array] = []
            for group, codes in enumerate(groups):
                rows = np.flatnonzero((codes >= first) & (codes < last))
                if len(rows):
                    table = file.read_row_group(group, columns=[*inputs, y, *extra_columns]).take(
                        rows
                    )
                    owners.append(codes[rows])
                    for name, column in _convert_columns(
                        path, table, inputs, y, extra_columns
                    ).items():
                        parts.setdefault(name, []).append(column)
            yield from _iter_blocks(path, names, np.concatenate(owners), parts)


def _index_clients(path: str | Path, file: Any, client: str) -> tuple[list[str], list[Array]]:
    """The clients' names in the order of their first rows and, for each row group, the client of each row."""
    client_ids: dict[str, int] = {}
    groups = []
    for group in range(file.num_row_groups):
        values = file.read_row_group(group, columns=[client]).column(0).to_pylist()
        for value in values:
            good = isinstance(value, str | int) and not isinstance(value, bool) and value != ""
            require(
                good, f"'{path}' must have whole numbers or names as '{client}', got {value!r}."
            )
            client_ids.setdefault(str(value), len(client_ids))
        groups.append(np.array([client_ids[str(value)] for value in values], np.int64))
    return list(client_ids), groups


def _iter_client_ranges(sizes: Array, max_rows: int) -> Iterator[tuple[int, int]]:
    """Ranges of clients who have at most `held` rows together; one who has more comes alone."""
    first, rows = 0, 0
    for client, size in enumerate(sizes.tolist()):
        if rows and rows + size > max_rows:
            yield first, client
            first, rows = client, 0
        rows += size
    yield first, len(sizes)


def _convert_columns(
    path: str | Path, table: Any, inputs: Sequence[str], y: str, extra_columns: Sequence[str]
) -> dict[str, Array]:
    found = {
        name: _to_numeric_array(path, name, table.column(name).combine_chunks())
        for name in (*inputs, y, *extra_columns)
    }
    together = (
        found[inputs[0]] if len(inputs) == 1 else np.stack([found[name] for name in inputs], axis=1)
    )
    return {"x": together, "y": found[y]} | {name: found[name] for name in extra_columns}


def _to_numeric_array(path: str | Path, name: str, column: Any) -> Array:
    """A column of numbers, or of equally long lists of numbers, as an array."""
    types = import_extra("pyarrow.types", "parquet", "Reading Parquet files")
    shape = [len(column)]
    while (
        types.is_list(column.type)
        or types.is_large_list(column.type)
        or types.is_fixed_size_list(column.type)
    ):
        require(
            column.null_count == 0, f"'{path}' must have no empty places, but column '{name}' has."
        )
        below = column.flatten()
        length = len(below) // max(1, len(column))
        ragged = any(len(entry) != length for entry in column)
        require(not ragged, f"'{path}' must have lists of the same length in column '{name}'.")
        shape.append(length)
        column = below
    require(column.null_count == 0, f"'{path}' must have no empty places, but column '{name}' has.")
    values = column.to_numpy(zero_copy_only=False)
    require(
        values.dtype.kind in "fiub",
        f"'{path}' must have numbers in column '{name}', got {column.type}.",
    )
    finite = values.dtype.kind != "f" or bool(np.isfinite(values).all())
    require(
        finite, f"'{path}' must have finite numbers, but column '{name}' has a NaN or infinity."
    )
    return np.asarray(values).reshape(shape)


def _iter_blocks(
    path: str | Path, names: list[str], owners: Array, parts: dict[str, list[Array]]
) -> Iterator[Block]:
    shapes = {name: {column.shape[1:] for column in columns} for name, columns in parts.items()}
    for name, found in shapes.items():
        require(len(found) == 1, f"'{path}' must have lists of the same length in column '{name}'.")
    order = np.argsort(owners, kind="stable")
    columns = {name: np.concatenate(pieces)[order] for name, pieces in parts.items()}
    clients, starts = np.unique(owners[order], return_index=True)
    for client, start, end in zip(clients, starts, [*starts[1:], len(order)], strict=True):
        yield from split_into_blocks(
            names[client], {name: column[start:end] for name, column in columns.items()}
        )
