"""Your own data as rows of named values: a list of dicts, a `datasets.Dataset`, or anything that acts like one."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, islice
from typing import Any

import numpy as np

from fedtailor.data.blocks import Block
from fedtailor.data.holders import Array
from fedtailor.errors import InputError, require

AT_ONCE = 4096


def rows(
    dataset: Any, x: str = "x", y: str = "y", client: str | None = "client", others: Sequence[str] = ()
) -> Iterator[Block]:
    """Blocks of the columns named `x`, `y` (called so in the blocks) and `others`, by the values of `client`.

    What has a length and gives rows by number is read client by client, in the order of their first rows. What can only
    be gone through must have each client's rows together: sort it by client, as going back is not possible. Without a
    client column (None) nobody holds the rows. Images of Pillow become channel-first; arrays are taken as they are.
    """
    wanted = {"x": x, "y": y} | {name: name for name in others}
    if client is None:
        yield from _pieces("", _each(dataset), wanted)
    elif hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__"):
        held: dict[Any, list[int]] = {}
        for number, name in enumerate(_client_column(dataset, client)):
            held.setdefault(name, []).append(number)
        for name, numbers in held.items():
            yield from _pieces(_name(name), (dataset[number] for number in numbers), wanted)
    else:
        seen: set[str] = set()
        for name, group in groupby(_each(dataset), key=lambda row: _name(_value(row, client))):
            again = "bring the rows of each client together (sort by client)"
            require(name not in seen, f"The rows of client '{name}' must come together, but it comes back; {again}.")
            seen.add(name)
            yield from _pieces(name, group, wanted)


def _each(dataset: Any) -> Iterable[Any]:
    require(
        isinstance(dataset, Iterable), f"Rows must come from something to go through, got {type(dataset).__name__}."
    )
    return dataset  # type: ignore[no-any-return]


def _client_column(dataset: Any, client: str) -> Iterable[Any]:
    """Everybody's client, without decoding the rest where the data set keeps columns."""
    features = getattr(dataset, "features", None)
    if features is not None:
        require(client in features, f"The rows must have a column '{client}', but have {', '.join(features)}.")
        return dataset[client]  # type: ignore[no-any-return]
    return (_value(row, client) for row in _each(dataset))


def _value(row: Any, name: str) -> Any:
    good = isinstance(row, Mapping) and name in row
    have = ", ".join(map(str, row)) if isinstance(row, Mapping) else f"a {type(row).__name__}"
    require(good, f"The rows must have a column '{name}', but one has {have}.")
    return row[name]


def _name(client: Any) -> str:
    good = isinstance(client, str | int | np.integer) and not isinstance(client, bool) and client != ""
    require(good, f"The clients of rows must be whole numbers or names, got {client!r}.")
    return str(client)


def _pieces(client: str, found: Iterable[Any], wanted: dict[str, str]) -> Iterator[Block]:
    each = iter(found)
    while piece := list(islice(each, AT_ONCE)):
        columns = {ours: stacked(theirs, [_value(row, theirs) for row in piece]) for ours, theirs in wanted.items()}
        yield Block(client, columns)


def stacked(name: str, values: list[Any]) -> Array:
    """Values of one column as an array of finite numbers; images as [n, channels, height, width]."""
    pictures = all(hasattr(value, "getbands") for value in values)
    try:
        column = np.stack([np.asarray(value) for value in values])
    except (TypeError, ValueError) as problem:
        raise InputError(f"Column '{name}' must have values of the same shape: {problem}.") from None
    require(column.dtype.kind in "fiub", f"Column '{name}' must have numbers, got {column.dtype}.")
    finite = column.dtype.kind != "f" or bool(np.isfinite(column).all())
    require(finite, f"Column '{name}' must have finite numbers, but has a NaN or infinity.")
    if not pictures:
        return column
    return column[:, None] if column.ndim == 3 else np.ascontiguousarray(np.moveaxis(column, 3, 1))
