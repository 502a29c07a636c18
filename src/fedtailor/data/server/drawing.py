"""The server's own examples, taken out of the data before or after it is divided among people.

Each function gives rows. Those of BEFORE see labels; what is left is then divided. The others see people.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fedtailor.data.arrays import how_many, require_whole
from fedtailor.data.holders import Array
from fedtailor.data.partitions import NOBODY, Whose
from fedtailor.errors import require

Rows = NDArray[np.int64]


def examples(name: str, y: Array, server: float, draws: np.random.Generator) -> Rows:
    """So many random examples, or such a share of them."""
    count, order = how_many(name, server, len(y)), draws.permutation(len(y))
    require(count < len(order), f"{name}: server must leave some of the {len(order)} examples, got {server}.")
    return np.sort(order[:count])


def classes(name: str, y: Array, server: float, draws: np.random.Generator) -> Rows:
    """So many random examples, equally many of each class, give or take one."""
    require(y.ndim == 1 and y.dtype.kind in "iu", f"{name}: server_from=classes needs one label for each example.")
    count, order = how_many(name, server, len(y)), draws.permutation(len(y))
    kinds, codes, there = np.unique(y[order], return_inverse=True, return_counts=True)
    each = np.full(len(kinds), count // len(kinds)) + (np.arange(len(kinds)) < count % len(kinds))
    for short in np.flatnonzero(each > there)[:1]:
        enough = f"{there[short]} of label {kinds[short]}"
        require(False, f"{name}: server must not ask for more of a class than there are, got {each[short]}; {enough}.")
    by_kind = np.argsort(codes, kind="stable")
    place = np.arange(len(y)) - np.repeat(np.cumsum(there) - there, there)
    return np.sort(order[by_kind[place < np.repeat(each, there)]])


def clients(name: str, whose: Whose, server: float, draws: np.random.Generator, *, each: int = 50) -> Rows:
    """`each` random examples of each of so many random clients (or such a share of them), who keep one at least."""
    require_whole(name, "server_each", each, 1)
    sizes = np.bincount(whose[whose != NOBODY])
    count = how_many(name, server, len(sizes))
    large = draws.permutation(np.flatnonzero(sizes > each))
    short = f"only {len(large)} of {len(sizes)} clients have more than {each} examples"
    require(count <= len(large), f"{name}: server must be at most {len(large)} clients, got {server}: {short}.")
    order = draws.permutation(np.flatnonzero(np.isin(whose, large[:count])))
    by_client = order[np.argsort(whose[order], kind="stable")]
    there = np.bincount(whose[by_client])
    there = there[there > 0]
    place = np.arange(len(by_client)) - np.repeat(np.cumsum(there) - there, there)
    return np.sort(by_client[place < each])


def people(name: str, only_new: NDArray[np.bool_], count: int, draws: np.random.Generator) -> Rows:
    """So many people, by number, in the order in which they are drawn; somebody is left to train.

    Those who cannot train, having nothing but test examples, are drawn first.
    """
    order = draws.permutation(len(only_new))
    order = order[np.argsort(~only_new[order], kind="stable")]
    train = int((~only_new).sum())
    leaves = count - int(only_new.sum()) < train
    require(leaves, f"{name}: server must leave somebody of the {train} people who can train, got {count} people.")
    return order[:count]


BEFORE: dict[str, Callable[..., Rows]] = {"examples": examples, "classes": classes}
ELSEWHERE = ("rendered", "set")
SERVERS = (*BEFORE, "people", "clients", *ELSEWHERE)
"""Where the server's examples may come from."""
