"""Bring your own data: arrays with a column that says whose each example is."""

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedtailor.data.arguments import resolve_count, to_array, to_numeric_array
from fedtailor.data.dataset import FederatedDataset
from fedtailor.data.examples import Array, ClientExamples, Split, single_client
from fedtailor.data.partition.splits import SplitConfig, assign_random_groups, split_rows
from fedtailor.data.rng import make_rng
from fedtailor.errors import is_number, require
from fedtailor.prng.streams import DataStream

ServerData = tuple[Any, Any] | float | None
"""The server's own (x, y); or how many examples to take from the clients, as a share (float) or a count (int)."""


def from_arrays(
    x: Any,
    y: Any,
    client: Any,
    *,
    name: str = "arrays",
    classes: int | Literal["auto"] | None = "auto",
    test_share: float = 0.25,
    validation_clients: float = 0.1,
    unseen_clients: float = 0.2,
    adapt: str | float = "train",
    support: float = 0.2,
    server: ServerData = None,
    seed: int = 0,
    scale: float = 1.0,
    tokens: bool = False,
    overlap: str = "",
) -> FederatedDataset:
    """A dataset from examples x, targets y and, for each example, the client that holds it (an integer or a string).

    Arrays, memory maps, tensors and lists will do; arrays are used as they are, not copied. Every client's examples are
    shuffled and split into train and test (at least one for train), and the clients into train, validation and new.
    `server` is the server's own (x, y), or a share or count of examples to take from clients at random, from nobody the
    last. `adapt` says what a client has for personalizing: its train examples, its very test examples ("test", which
    flatters, as some papers do), or a share of its test part, on which it is then not tested. `support` is the part of
    the train examples on which meta-learning adapts while training. "auto" counts the classes: the highest label plus
    1 for integers, None (real-valued targets) for floats.
    """
    split_config = SplitConfig(test_share, adapt, validation_clients, unseen_clients, support)
    split_config.validate(name)
    require(is_number(scale), f"{name}: scale must be a number, got {scale!r}.")
    whole = (
        classes is None or classes == "auto" or (is_number(classes, integer=True) and classes >= 1)
    )
    require(whole, f"{name}: classes must be a whole number, None or 'auto', got {classes!r}.")
    x, y = to_numeric_array(name, "x", x), to_numeric_array(name, "y", y)
    client_names, owners = _encode_clients(name, client)
    lengths = [len(column) if column.ndim else 0 for column in (x, y, owners)]
    require(
        len(set(lengths)) == 1,
        f"{name}: x, y and client must be equally long, got lengths {lengths}.",
    )
    require(lengths[0] > 0, f"{name}: x, y and client must hold examples, got none.")
    server_examples, left = _take_server_examples(
        name, x, y, owners, server, make_rng(seed, DataStream.SERVER)
    )
    parts = split_rows(
        owners[left], len(client_names), split_config, make_rng(seed, DataStream.SPLITS)
    )
    parts = {what: Split(left[split.index], split.offsets) for what, split in parts.items()}
    if isinstance(adapt, str):
        parts["adapt"] = parts[adapt]
    return FederatedDataset(
        name=name,
        clients=ClientExamples(x, y, parts),
        client_names=client_names,
        groups=assign_random_groups(
            np.zeros(len(client_names), bool), split_config, make_rng(seed, DataStream.GROUPS)
        ),
        server=server_examples,
        classes=_count_classes(name, y, server_examples) if classes == "auto" else classes,
        scale=scale,
        tokens=tokens,
        support=support,
        overlap=overlap,
    )


def _encode_clients(name: str, client: Any) -> tuple[NDArray[np.str_], NDArray[np.int64]]:
    """The clients' names and, for each example, the number of its client."""
    column = to_array(name, "client", client)
    if column.dtype.kind == "O" and all(isinstance(value, str) for value in column.flat):
        column = column.astype(str)
    require(
        column.ndim == 1,
        f"{name}: client must be one value for each example, got shape {list(column.shape)}.",
    )
    named = column.dtype.kind in "iuU" or column.size == 0
    require(named, f"{name}: client must be integers or strings, got {column.dtype}.")
    ids, owners = np.unique(column, return_inverse=True)
    return ids.astype(str), owners


def _take_server_examples(
    name: str,
    x: Array,
    y: Array,
    owners: NDArray[np.int64],
    server: ServerData,
    rng: np.random.Generator,
) -> tuple[ClientExamples | None, NDArray[np.int64]]:
    """The server's examples, and those that stay with the clients."""
    if isinstance(server, tuple | list):
        require(
            len(server) == 2, f"{name}: server must be the pair (x, y), got {len(server)} things."
        )
        return single_client(
            _cast_like(name, "x", server[0], x), _cast_like(name, "y", server[1], y)
        ), np.arange(len(x))
    count = 0 if server is None else resolve_count(name, server, len(x))
    order = rng.permutation(len(x))
    # A client keeps whichever of its examples comes last; the server takes from the others in their random order.
    spare = np.delete(order, len(x) - 1 - np.unique(owners[order][::-1], return_index=True)[1])
    require(
        count <= len(spare),
        f"{name}: server must leave every client one, so at most {len(spare)}, got {count}.",
    )
    taken = np.sort(spare[:count])
    return single_client(x[taken], y[taken]) if count else None, np.delete(np.arange(len(x)), taken)


def _cast_like(name: str, column_name: str, values: Any, other: Array) -> Array:
    """The server's column as the clients' type of number where nothing but rounding is lost; else as it came."""
    column = np.atleast_1d(to_numeric_array(name, f"the server's {column_name}", values))
    if column.dtype.kind == "f":
        return column.astype(other.dtype) if other.dtype.kind == "f" else column
    cast = column.astype(other.dtype)
    return cast if np.array_equal(cast, column) else column


def _count_classes(name: str, y: Array, server: ClientExamples | None) -> int | None:
    if y.dtype.kind == "f":
        return None
    require(
        y.ndim == 1,
        f"{name}: classes must be given for integer targets of shape {list(y.shape[1:])}, got 'auto'.",
    )
    labels = [y] if server is None else [y, server.y]
    return max(1, *(int(column.max(initial=0)) + 1 for column in labels))
