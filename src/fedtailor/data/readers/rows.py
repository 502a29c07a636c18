"""Users' own data as rows of named values: a list of dicts, a `datasets.Dataset`, a generator."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, islice
from typing import Any

import numpy as np

from fedtailor.data.examples import Array
from fedtailor.data.reader_blocks import Block
from fedtailor.errors import InputError, require

BLOCK_ROWS = 4096


def read_rows(
    dataset: Any,
    x: str = "x",
    y: str = "y",
    client: str | None = "client",
    extra_columns: Sequence[str] = (),
) -> Iterator[Block]:
    """Yield the blocks of rows that are mappings from column names to values.

    A data set with a length that gives rows by number is read client by client, in the order of
    the clients' first rows. Any other iterable is read once, so each client's rows must be
    consecutive in it.

    Args:
        dataset: The rows. Values are numbers or arrays, which stay as they are, or Pillow images,
            which become channel-first.
        x: Column of the inputs, which is called "x" in the blocks.
        y: Column of the targets, which is called "y" in the blocks.
        client: Column of the clients' names; None: the rows belong to no client.
        extra_columns: Further columns, which keep their names.
    """
    source_names = {"x": x, "y": y} | {name: name for name in extra_columns}
    if client is None:
        yield from _iter_blocks("", _require_iterable(dataset), source_names)
    elif hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__"):
        yield from _read_by_number(dataset, client, source_names)
    else:
        yield from _read_in_order(_require_iterable(dataset), client, source_names)


def _read_by_number(dataset: Any, client: str, source_names: dict[str, str]) -> Iterator[Block]:
    row_indices: dict[Any, list[int]] = {}
    for row_idx, value in enumerate(_get_client_column(dataset, client)):
        row_indices.setdefault(value, []).append(row_idx)
    for value, indices in row_indices.items():
        rows = (dataset[row_idx] for row_idx in indices)
        yield from _iter_blocks(_to_client_name(value), rows, source_names)


def _read_in_order(
    rows: Iterable[Any], client: str, source_names: dict[str, str]
) -> Iterator[Block]:
    seen: set[str] = set()
    for name, group in groupby(rows, key=lambda row: _to_client_name(_get_value(row, client))):
        require(
            name not in seen,
            f"The rows of client '{name}' must be consecutive, but others are in between; "
            "sort the rows by client.",
        )
        seen.add(name)
        yield from _iter_blocks(name, group, source_names)


def _require_iterable(dataset: Any) -> Iterable[Any]:
    require(isinstance(dataset, Iterable), f"Rows must be iterable, got {type(dataset).__name__}.")
    return dataset  # type: ignore[no-any-return]


def _get_client_column(dataset: Any, client: str) -> Iterable[Any]:
    """Return the client of every row; a `datasets.Dataset` does not decode the rest for it."""
    features = getattr(dataset, "features", None)
    if features is None:
        return (_get_value(row, client) for row in _require_iterable(dataset))
    require(
        client in features,
        f"The rows must have a column '{client}', but have {', '.join(features)}.",
    )
    return dataset[client]  # type: ignore[no-any-return]


def _get_value(row: Any, name: str) -> Any:
    if not isinstance(row, Mapping):
        kind = type(row).__name__
        raise InputError(f"The rows must have a column '{name}', but one is a {kind}.")
    if name not in row:
        present = ", ".join(map(str, row))
        raise InputError(f"The rows must have a column '{name}', but one has {present}.")
    return row[name]


def _to_client_name(value: Any) -> str:
    is_integer = isinstance(value, int | np.integer) and not isinstance(value, bool)
    is_name = isinstance(value, str) and value != ""
    require(
        is_integer or is_name, f"The clients of rows must be whole numbers or names, got {value!r}."
    )
    return str(value)


def _iter_blocks(client: str, rows: Iterable[Any], source_names: dict[str, str]) -> Iterator[Block]:
    """Yield one client's rows in blocks.

    Args:
        client: Name of the client, "" for none.
        rows: The client's rows, from column names to values.
        source_names: Column names of the rows by those of the blocks.
    """
    remaining = iter(rows)
    while piece := list(islice(remaining, BLOCK_ROWS)):
        columns = {}
        for name, source_name in source_names.items():
            values = [_get_value(row, source_name) for row in piece]
            columns[name] = _stack_values(source_name, values)
        yield Block(client, columns)


def _stack_values(name: str, values: list[Any]) -> Array:
    """Return the values of a column as one array [n, ...], images as [n, channels, height, width].

    Values that are not finite numbers, or that differ in shape, are refused.
    """
    try:
        column = np.stack([np.asarray(value) for value in values])
    except (TypeError, ValueError) as problem:
        raise InputError(
            f"Column '{name}' must have values of the same shape: {problem}."
        ) from None
    require(column.dtype.kind in "fiub", f"Column '{name}' must have numbers, got {column.dtype}.")
    is_finite = column.dtype.kind != "f" or bool(np.isfinite(column).all())
    require(is_finite, f"Column '{name}' must have finite numbers, but has a NaN or infinity.")
    is_pillow = all(hasattr(value, "getbands") for value in values)
    if not is_pillow:
        return column
    if column.ndim == 3:  # grayscale, which Pillow gives without channels
        return column[:, None]
    return np.ascontiguousarray(np.moveaxis(column, 3, 1))
