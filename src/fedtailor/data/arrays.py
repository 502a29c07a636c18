"""Bring your own data: arrays with a column that says whose each example is."""

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedtailor.data.dataset import FederatedDataset
from fedtailor.data.dividing import Shares, at_random, splits
from fedtailor.data.holders import Array, Holders, Split, sole_holder
from fedtailor.errors import InputError, is_number, require

ServerData = tuple[Any, Any] | float | None
"""The server's own (x, y); or how many examples to take from the clients, as a share (float) or a count (int)."""

SERVER, SPLITS, PEOPLE = 0, 1, 2


def generator(seed: int, *purpose: int) -> np.random.Generator:
    """A source of random numbers for one purpose: drawing more for one changes nothing for another."""
    require_whole("data", "seed", seed, 0)
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(seed, spawn_key=purpose)))


def require_whole(who: str, what: str, value: object, least: int) -> None:
    """Refuses what is not a whole number of at least `least`."""
    whole = isinstance(value, int | np.integer) and int(value) >= least
    require(whole, f"{who}: {what} must be a whole number of at least {least}, got {value!r}.")


def from_arrays(
    x: Any,
    y: Any,
    client: Any,
    *,
    name: str = "arrays",
    classes: int | Literal["auto"] | None = "auto",
    test_share: float = 0.25,
    validation_clients: float = 0.1,
    new_clients: float = 0.2,
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
    last. `adapt` says what a client has for personalising: its train examples, its very test examples ("test", which
    flatters, as some papers do), or a share of its test part, on which it is then not tested. `support` is the part of
    the train examples on which meta-learning adapts while training. "auto" counts the classes: the highest label plus
    1 for integers, None (real-valued targets) for floats.
    """
    shares = Shares(test_share, adapt, validation_clients, new_clients, support)
    shares.check(name)
    require(is_number(scale), f"{name}: scale must be a number, got {scale!r}.")
    whole = classes is None or classes == "auto" or (is_number(classes, whole=True) and classes >= 1)
    require(whole, f"{name}: classes must be a whole number, None or 'auto', got {classes!r}.")
    x, y = numbers(name, "x", x), numbers(name, "y", y)
    ids, whose = _clients(name, client)
    lengths = [len(column) if column.ndim else 0 for column in (x, y, whose)]
    require(len(set(lengths)) == 1, f"{name}: x, y and client must be equally long, got lengths {lengths}.")
    require(lengths[0] > 0, f"{name}: x, y and client must hold examples, got none.")
    own, left = _server(name, x, y, whose, server, generator(seed, SERVER))
    parts = splits(whose[left], len(ids), shares, generator(seed, SPLITS))
    parts = {what: Split(left[split.index], split.offsets) for what, split in parts.items()}
    if isinstance(adapt, str):
        parts["adapt"] = parts[adapt]
    return FederatedDataset(
        name=name,
        clients=Holders(x, y, parts),
        ids=ids,
        groups=at_random(np.zeros(len(ids), bool), shares, generator(seed, PEOPLE)),
        server=own,
        classes=_count_classes(name, y, own) if classes == "auto" else classes,
        scale=scale,
        tokens=tokens,
        support=support,
        overlap=overlap,
    )


def _array(name: str, what: str, values: Any) -> Array:
    try:
        return np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{name}: {what} must be readable as an array, but is not ({error}).") from error


def numbers(name: str, what: str, values: Any) -> Array:
    """Values as an array of numbers, or a sentence; truth values become 0 and 1."""
    array = _array(name, what, values)
    require(array.dtype.kind in "fiub", f"{name}: {what} must be floating or integer numbers, got {array.dtype}.")
    return array.view(np.uint8) if array.dtype.kind == "b" else array


def _clients(name: str, client: Any) -> tuple[NDArray[np.str_], NDArray[np.int64]]:
    """The clients' names and, for each example, the number of its client."""
    column = _array(name, "client", client)
    if column.dtype.kind == "O" and all(isinstance(value, str) for value in column.flat):
        column = column.astype(str)
    require(column.ndim == 1, f"{name}: client must be one value for each example, got shape {list(column.shape)}.")
    named = column.dtype.kind in "iuU" or column.size == 0
    require(named, f"{name}: client must be integers or strings, got {column.dtype}.")
    ids, whose = np.unique(column, return_inverse=True)
    return ids.astype(str), whose


def how_many(name: str, wanted: float, available: int) -> int:
    """How many examples the server gets of those available: a share (float, at least one unless 0) or a count (int)."""
    if isinstance(wanted, int | np.integer) and not isinstance(wanted, bool):
        require(wanted >= 0, f"{name}: server must be at least 0 examples, got {wanted}.")
        return int(wanted)
    real = isinstance(wanted, float | np.floating) and 0 <= wanted < 1
    require(real, f"{name}: server must be (x, y), a count, or a share from 0 to less than 1, got {wanted!r}.")
    return max(round(wanted * available), int(wanted > 0))


def _server(
    name: str, x: Array, y: Array, whose: NDArray[np.int64], server: ServerData, draws: np.random.Generator
) -> tuple[Holders | None, NDArray[np.int64]]:
    """The server's examples, and those that stay with the clients."""
    if isinstance(server, tuple | list):
        require(len(server) == 2, f"{name}: server must be the pair (x, y), got {len(server)} things.")
        return sole_holder(_like(name, "x", server[0], x), _like(name, "y", server[1], y)), np.arange(len(x))
    count = 0 if server is None else how_many(name, server, len(x))
    order = draws.permutation(len(x))
    # A client keeps whichever of its examples comes last; the server takes from the others in their random order.
    spare = np.delete(order, len(x) - 1 - np.unique(whose[order][::-1], return_index=True)[1])
    require(count <= len(spare), f"{name}: server must leave every client one, so at most {len(spare)}, got {count}.")
    taken = np.sort(spare[:count])
    return sole_holder(x[taken], y[taken]) if count else None, np.delete(np.arange(len(x)), taken)


def _like(name: str, what: str, values: Any, other: Array) -> Array:
    """The server's column as the clients' type of number where nothing but rounding is lost; else as it came."""
    column = np.atleast_1d(numbers(name, f"the server's {what}", values))
    if column.dtype.kind == "f":
        return column.astype(other.dtype) if other.dtype.kind == "f" else column
    cast = column.astype(other.dtype)
    return cast if np.array_equal(cast, column) else column


def _count_classes(name: str, y: Array, server: Holders | None) -> int | None:
    if y.dtype.kind == "f":
        return None
    require(y.ndim == 1, f"{name}: classes must be given for integer targets of shape {list(y.shape[1:])}, got 'auto'.")
    labels = [y] if server is None else [y, server.y]
    return max(1, *(int(column.max(initial=0)) + 1 for column in labels))
