"""Labels to divide, rules to divide them by, and counts of who got what."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtailor.data import partition
from fedtailor.data.examples import Array
from fedtailor.data.partition import PARTITIONERS, UNASSIGNED, LabelHierarchy, Owners

EVENLY = np.repeat(np.arange(10), 600)  # 6000 examples, sorted by label


def draws(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def some_labels(count: int, kinds: int, seed: int) -> Array:
    """Random labels, each of 0, ..., kinds - 1 at least once if there are so many."""
    return draws(seed).permutation(
        np.append(np.arange(kinds), draws(seed).integers(0, kinds, count))[:count]
    )


def table(y: Array, whose: Owners, clients: int) -> NDArray[np.int64]:
    """How many examples of each label each client has, counted one by one."""
    counts = np.zeros((clients, int(y.max()) + 1), np.int64)
    for label, who in zip(y.tolist(), whose.tolist(), strict=True):
        if who != UNASSIGNED:
            counts[who, label] += 1
    return counts


def by_coarse(y: Array, clients: int, source: np.random.Generator, **options: Any) -> Owners:
    return partition.pachinko(LabelHierarchy(y // 2, y), clients, source, **options)


RULES: dict[str, Callable[..., Owners]] = {
    **PARTITIONERS,
    "pachinko": partial(by_coarse, size=2),
    "mixture": partial(partition.mixture, partitioner=partition.iid, other=partition.shards),
}

CHANGES: dict[str, dict[str, Any]] = {
    "two-labels": {"least": 1},
    "half-and-half": {"images": 2},
    "dirichlet": {"least": 1},
    "quantity": {"least": 1},
}
