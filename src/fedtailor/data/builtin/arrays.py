"""Data sets from arrays in memory, with a column for the client of each example."""

import inspect
from collections.abc import Sequence
from typing import Any, Literal, TypedDict

import numpy as np
from numpy.typing import NDArray

from fedtailor.data.arguments import (
    require_bool,
    require_classes,
    require_memory_for_classes,
    require_scale,
    resolve_count,
    to_array,
    to_numeric_array,
)
from fedtailor.data.dataset import FederatedDataset
from fedtailor.data.examples import Array, ClientExamples, Split, single_client
from fedtailor.data.partition.splits import SplitConfig, assign_random_groups, split_rows
from fedtailor.data.rng import make_rng
from fedtailor.errors import require
from fedtailor.prng.streams import DataStream

MAX_LABEL = 2**31 - 1
"""Largest label of which a number of classes follows."""

ServerData = tuple[Any, Any] | float | None
"""The server's own (x, y); or a share (float) or number (int) of examples to take from clients."""


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
    overlap: bool = False,
) -> FederatedDataset:
    """Return a dataset of examples whose clients are known, with random splits and groups.

    Columns may be arrays, memory maps, tensors or lists; arrays and memory maps are not copied.

    Args:
        x: Inputs, [examples, ...].
        y: Targets, [examples] or [examples, ...].
        client: Client of each example, integers or strings, [examples].
        name: Name of the dataset, which errors begin with.
        classes: Number of classes; None for real-valued targets; "auto" is None for floating
            targets and otherwise the largest label plus 1.
        test_share: Share of each client's examples for test; at least one example is for train.
        validation_clients: Share of the clients that are used for validation.
        unseen_clients: Share of the clients that are never trained on.
        adapt: What clients adapt on: their "train" examples; their own "test" examples, which
            flatters accuracy, as in some papers; or a share of the test examples, which are then
            not for test.
        support: Share of a client's train examples that meta-learning adapts on while training.
        server: The server's own (x, y); or how many examples it takes from the clients at random,
            a share (float) or a number (int). Each client keeps at least one.
        seed: Seed of everything random.
        scale: Factor of integer x when it is converted to floating point.
        tokens: Whether x is token ids, which stay integers.
        overlap: Whether clients may have the server's examples, too: given ones may equal theirs,
            and they keep what it draws from them; of that, it gives up what they are tested on.
    """
    split_config = SplitConfig(test_share, adapt, validation_clients, unseen_clients, support)
    split_config.validate(name)
    require_scale(name, scale)
    require_classes(name, classes)
    require_bool(name, "overlap", overlap)
    require_bool(name, "tokens", tokens)
    x = to_numeric_array(name, "x", x)
    y = to_numeric_array(name, "y", y)
    client_names, owners = _encode_clients(name, client)
    lengths = [len(column) if column.ndim > 0 else 0 for column in (x, y, owners)]
    require(
        len(set(lengths)) == 1,
        f"{name}: x, y and client must be equally long, got lengths {lengths}.",
    )
    require(lengths[0] > 0, f"{name}: x, y and client must hold examples, got none.")
    server_rng = make_rng(seed, DataStream.SERVER)
    drawn_rows = _draw_server_rows(name, owners, server, server_rng)
    rows = np.arange(len(x))
    if not overlap:
        rows = np.delete(rows, drawn_rows)
    splits_rng = make_rng(seed, DataStream.SPLITS)
    splits = split_rows(owners[rows], len(client_names), split_config, splits_rng)
    for split_name, split in splits.items():
        splits[split_name] = Split(rows[split.index], split.offsets)
    if isinstance(adapt, str):
        splits["adapt"] = splits[adapt]
    server_rows = _give_up_test_rows(name, drawn_rows, splits["test"])
    server_examples = None
    if isinstance(server, tuple | list):
        server_examples = _convert_server_examples(name, x, y, server)
    elif len(server_rows) > 0:
        server_examples = single_client(x[server_rows], y[server_rows])
    is_test_only = np.zeros(len(client_names), bool)
    groups_rng = make_rng(seed, DataStream.GROUPS)
    return FederatedDataset(
        name=name,
        clients=ClientExamples(x, y, splits),
        client_names=client_names,
        groups=assign_random_groups(is_test_only, split_config, groups_rng),
        server=server_examples,
        classes=_count_classes(name, y, server_examples) if classes == "auto" else classes,
        scale=scale,
        tokens=tokens,
        support=support,
        overlap=bool(overlap),
        server_rows=server_rows if len(server_rows) > 0 else None,
        given_up=len(drawn_rows) - len(server_rows),
    )


class SplitOptions(TypedDict, total=False):
    """Options that other functions pass on to `from_arrays`, which describes them."""

    test_share: float
    validation_clients: float
    unseen_clients: float
    adapt: str | float
    support: float


SPLIT_DEFAULTS: dict[str, Any] = {
    name: inspect.signature(from_arrays).parameters[name].default
    for name in SplitOptions.__annotations__
}
"""Defaults of `SplitOptions`."""


def _encode_clients(name: str, client: Any) -> tuple[NDArray[np.str_], NDArray[np.int64]]:
    """Return the sorted names of the clients, and the number of each example's client."""
    if isinstance(client, list | tuple):
        # NumPy would turn numbers among strings into strings, and so join clients 1 and "1".
        num_strings = sum(isinstance(value, str) for value in client)
        require(
            num_strings in (0, len(client)),
            f"{name}: client must be integers or strings, got {num_strings} strings among "
            f"{len(client)} values.",
        )
    column = to_array(name, "client", client)
    if column.dtype.kind == "O" and all(isinstance(value, str) for value in column.flat):
        column = column.astype(str)
    require(
        column.ndim == 1,
        f"{name}: client must be one value for each example, got shape {list(column.shape)}.",
    )
    has_names = column.dtype.kind in "iuU" or column.size == 0
    require(has_names, f"{name}: client must be integers or strings, got {column.dtype}.")
    clients, owners = np.unique(column, return_inverse=True)
    return clients.astype(str), owners


def _convert_server_examples(
    name: str, x: Array, y: Array, server: Sequence[Any]
) -> ClientExamples:
    """Return the server's own examples in the types of the clients' columns x and y."""
    require(len(server) == 2, f"{name}: server must be the pair (x, y), got {len(server)} values.")
    server_x = cast_like(name, "x", server[0], x)
    server_y = cast_like(name, "y", server[1], y)
    return single_client(server_x, server_y)


def _draw_server_rows(
    name: str, owners: NDArray[np.int64], server: ServerData, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Return the rows that the server takes from the clients, sorted; none if it has its own.

    Args:
        name: Data set that errors name.
        owners: Client of each row, [rows]; each client keeps at least one.
        server: What the server has.
        rng: Draws the rows.
    """
    if server is None or isinstance(server, tuple | list):
        return np.zeros(0, np.int64)
    count = resolve_count(name, server, len(owners))
    order = rng.permutation(len(owners))
    # Each client keeps the example that comes last of its own; the others are taken in this order.
    _, positions_from_end = np.unique(owners[order][::-1], return_index=True)
    last_positions = len(owners) - 1 - positions_from_end
    candidates = np.delete(order, last_positions)
    require(
        count <= len(candidates),
        f"{name}: server must leave every client one, so at most {len(candidates)}, got {count}.",
    )
    return np.sort(candidates[:count])


def _give_up_test_rows(name: str, drawn_rows: NDArray[np.int64], test: Split) -> NDArray[np.int64]:
    """Return the rows drawn for the server that no client is tested on; at least one of any."""
    kept_rows = drawn_rows[~np.isin(drawn_rows, test.index)]
    require(
        len(kept_rows) > 0 or len(drawn_rows) == 0,
        f"{name}: the server must have an example of its own, but clients are tested on all "
        f"{len(drawn_rows)} drawn for it; ask for more, or for overlap=false.",
    )
    return kept_rows


def cast_like(name: str, column_name: str, values: Any, other: Array) -> Array:
    """Return a column of the server in the clients' type, if that loses nothing but precision.

    Otherwise the column keeps its type, which the dataset's checks then refuse.
    """
    column = np.atleast_1d(to_numeric_array(name, f"the server's {column_name}", values))
    if column.dtype.kind == "f" and other.dtype.kind != "f":
        return column
    with np.errstate(over="ignore"):  # infinities are refused later
        cast = column.astype(other.dtype)
    if column.dtype.kind == "f":
        return cast
    return cast if np.array_equal(cast, column) else column


def _count_classes(name: str, y: Array, server: ClientExamples | None) -> int | None:
    """Return the largest label plus 1, or None for floating targets."""
    if y.dtype.kind == "f":
        return None
    require(
        y.ndim == 1,
        f"{name}: classes must be given for integer targets of shape {list(y.shape[1:])}, got "
        "'auto'.",
    )
    largest_label = int(y.max(initial=0))
    if server is not None:
        largest_label = max(largest_label, int(server.y.max(initial=0)))
    require(
        largest_label <= MAX_LABEL,
        f"{name}: labels must be numbers of classes from 0 to at most {MAX_LABEL}, got "
        f"{largest_label}; number the classes from 0.",
    )
    classes = max(1, largest_label + 1)
    require_memory_for_classes(name, classes)
    return classes
