"""The server's own examples, taken out of the data before or after it is divided among people.

Each function gives rows. Those of BEFORE see labels; what is left is then divided. The others see people.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fedtailor.data.arguments import require_int, resolve_count
from fedtailor.data.examples import Array
from fedtailor.data.partition import UNASSIGNED, Owners
from fedtailor.errors import require

Rows = NDArray[np.int64]


def draw_examples(name: str, y: Array, server: float, rng: np.random.Generator) -> Rows:
    """So many random examples, or such a share of them."""
    count, order = resolve_count(name, server, len(y)), rng.permutation(len(y))
    require(
        count < len(order),
        f"{name}: server must leave some of the {len(order)} examples, got {server}.",
    )
    return np.sort(order[:count])


def draw_balanced(name: str, y: Array, server: float, rng: np.random.Generator) -> Rows:
    """So many random examples, equally many of each class, give or take one."""
    require(
        y.ndim == 1 and y.dtype.kind in "iu",
        f"{name}: server_from=classes needs one label for each example.",
    )
    count, order = resolve_count(name, server, len(y)), rng.permutation(len(y))
    kinds, codes, there = np.unique(y[order], return_inverse=True, return_counts=True)
    each = np.full(len(kinds), count // len(kinds)) + (np.arange(len(kinds)) < count % len(kinds))
    for short in np.flatnonzero(each > there)[:1]:
        enough = f"{there[short]} of label {kinds[short]}"
        require(
            False,
            f"{name}: server must not ask for more of a class than there are, got {each[short]}; {enough}.",
        )
    by_kind = np.argsort(codes, kind="stable")
    rank = np.arange(len(y)) - np.repeat(np.cumsum(there) - there, there)
    return np.sort(order[by_kind[rank < np.repeat(each, there)]])


def draw_from_clients(
    name: str, owners: Owners, server: float, rng: np.random.Generator, *, each: int = 50
) -> Rows:
    """`each` random examples of each of so many random clients (or such a share of them), who keep one at least."""
    require_int(name, "server_each", each, 1)
    sizes = np.bincount(owners[owners != UNASSIGNED])
    count = resolve_count(name, server, len(sizes))
    large = rng.permutation(np.flatnonzero(sizes > each))
    short = f"only {len(large)} of {len(sizes)} clients have more than {each} examples"
    require(
        count <= len(large),
        f"{name}: server must be at most {len(large)} clients, got {server}: {short}.",
    )
    order = rng.permutation(np.flatnonzero(np.isin(owners, large[:count])))
    by_client = order[np.argsort(owners[order], kind="stable")]
    there = np.bincount(owners[by_client])
    there = there[there > 0]
    rank = np.arange(len(by_client)) - np.repeat(np.cumsum(there) - there, there)
    return np.sort(by_client[rank < each])


def draw_clients(
    name: str, is_test_only: NDArray[np.bool_], count: int, rng: np.random.Generator
) -> Rows:
    """So many people, by number, in the order in which they are drawn; somebody is left to train.

    Those who cannot train, having nothing but test examples, are drawn first.
    """
    order = rng.permutation(len(is_test_only))
    order = order[np.argsort(~is_test_only[order], kind="stable")]
    train = int((~is_test_only).sum())
    leaves = count - int(is_test_only.sum()) < train
    require(
        leaves,
        f"{name}: server must leave one of the {train} people who can train, got {count} people.",
    )
    return order[:count]


PRE_PARTITION_DRAWS: dict[str, Callable[..., Rows]] = {
    "examples": draw_examples,
    "classes": draw_balanced,
}
EXTERNAL_SOURCES = ("rendered", "set")
SERVER_SOURCES = (*PRE_PARTITION_DRAWS, "people", "clients", *EXTERNAL_SOURCES)
"""Where the server's examples may come from."""
