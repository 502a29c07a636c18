"""Your own data as rows of named values: a list of dicts, a `datasets.Dataset`, or anything that acts like one."""

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
    """Blocks of the columns named `x`, `y` (called so in the blocks) and `others`, by the values of `client`.

    What has a length and gives rows by number is read client by client, in the order of their first rows. What can only
    be gone through must have each client's rows together: sort it by client, as going back is not possible. Without a
    client column (None) nobody holds the rows. Images of Pillow become channel-first; arrays are taken as they are.
    """
    wanted = {"x": x, "y": y} | {name: name for name in extra_columns}
    if client is None:
        yield from _iter_blocks("", _require_iterable(dataset), wanted)
    elif hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__"):
        row_indices: dict[Any, list[int]] = {}
        for row_idx, name in enumerate(_get_client_column(dataset, client)):
            row_indices.setdefault(name, []).append(row_idx)
        for name, indices in row_indices.items():
            yield from _iter_blocks(
                _to_client_name(name), (dataset[row_idx] for row_idx in indices), wanted
            )
    else:
        seen: set[str] = set()
        for name, group in groupby(
            _require_iterable(dataset), key=lambda row: _to_client_name(_get_value(row, client))
        ):
            again = "bring the rows of each client together (sort by client)"
            require(
                name not in seen,
                f"The rows of client '{name}' must come together, but it comes back; {again}.",
            )
            seen.add(name)
            yield from _iter_blocks(name, group, wanted)


def _require_iterable(dataset: Any) -> Iterable[Any]:
    require(
        isinstance(dataset, Iterable),
        f"Rows must come from something to go through, got {type(dataset).__name__}.",
    )
    return dataset  # type: ignore[no-any-return]


def _get_client_column(dataset: Any, client: str) -> Iterable[Any]:
    """Everybody's client, without decoding the rest where the data set keeps columns."""
    features = getattr(dataset, "features", None)
    if features is not None:
        require(
            client in features,
            f"The rows must have a column '{client}', but have {', '.join(features)}.",
        )
        return dataset[client]  # type: ignore[no-any-return]
    return (_get_value(row, client) for row in _require_iterable(dataset))


def _get_value(row: Any, name: str) -> Any:
    good = isinstance(row, Mapping) and name in row
    have = ", ".join(map(str, row)) if isinstance(row, Mapping) else f"a {type(row).__name__}"
    require(good, f"The rows must have a column '{name}', but one has {have}.")
    return row[name]


def _to_client_name(client: Any) -> str:
    good = (
        isinstance(client, str | int | np.integer) and not isinstance(client, bool) and client != ""
    )
    require(good, f"The clients of rows must be whole numbers or names, got {client!r}.")
    return str(client)


def _iter_blocks(client: str, rows: Iterable[Any], wanted: dict[str, str]) -> Iterator[Block]:
    each = iter(rows)
    while piece := list(islice(each, BLOCK_ROWS)):
        columns = {
            ours: stack_values(theirs, [_get_value(row, theirs) for row in piece])
            for ours, theirs in wanted.items()
        }
        yield Block(client, columns)


def stack_values(name: str, values: list[Any]) -> Array:
    """Values of one column as an array of finite numbers; images as [n, channels, height, width]."""
    pictures = all(hasattr(value, "getbands") for value in values)
    try:
        column = np.stack([np.asarray(value) for value in values])
    except (TypeError, ValueError) as problem:
        raise InputError(
            f"Column '{name}' must have values of the same shape: {problem}."
        ) from None
    require(column.dtype.kind in "fiub", f"Column '{name}' must have numbers, got {column.dtype}.")
    finite = column.dtype.kind != "f" or bool(np.isfinite(column).all())
    require(finite, f"Column '{name}' must have finite numbers, but has a NaN or infinity.")
    if not pictures:
        return column
    return column[:, None] if column.ndim == 3 else np.ascontiguousarray(np.moveaxis(column, 3, 1))
