"""Label shares drawn from Dirichlet distributions: flat, and over a tree of coarse and fine labels."""

import numpy as np
from numpy.typing import NDArray

from fedtailor.data.arguments import require_int
from fedtailor.data.examples import Array
from fedtailor.data.partition.helpers import (
    Owners,
    assign_by_counts,
    encode_labels,
    require_enough_examples,
    require_in_range,
    split_unevenly,
)
from fedtailor.errors import InputError, require


def dirichlet(
    y: Array, clients: int, rng: np.random.Generator, *, alpha: float = 0.5, least: int = 10
) -> Owners:
    """The examples of each label are divided by shares from Dirichlet(alpha), so that all are held.

    Nothing is drawn again: whoever then has fewer than `least` examples is given random ones of the largest clients'.
    """
    kinds, codes = encode_labels("dirichlet", y, clients)
    require_in_range("dirichlet", "alpha", alpha, 1e-3, 1e6)
    require_enough_examples("dirichlet", least, clients, len(y))
    shares = rng.dirichlet(np.full(clients, float(alpha)), len(kinds))
    want = [
        split_unevenly(int(there), share)
        for there, share in zip(np.bincount(codes), shares, strict=True)
    ]
    return _fill_smallest(
        assign_by_counts("dirichlet", kinds, codes, np.stack(want, axis=1), rng),
        clients,
        least,
        rng,
    )


def _fill_smallest(owners: Owners, clients: int, minimum: int, rng: np.random.Generator) -> Owners:
    """The same, but everybody has at least `least`: what is missing is cut from the top of the largest."""
    sizes = np.bincount(owners, minlength=clients)
    missing = np.maximum(minimum - sizes, 0)
    shuffled = rng.permutation(len(owners))
    order = shuffled[np.argsort(owners[shuffled], kind="stable")]
    height = np.arange(len(owners)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    highest = order[np.argsort(-height, kind="stable")[: missing.sum()]]
    levelled = owners.copy()
    levelled[highest] = np.repeat(np.arange(clients), missing)
    return levelled


def pachinko(
    coarse: Array,
    fine: Array,
    clients: int,
    rng: np.random.Generator,
    *,
    size: int = 100,
    alpha: float = 0.1,
    beta: float = 10.0,
) -> Owners:
    """Pachinko allocation, as for federated CIFAR-100 (Reddi et al., Adaptive Federated Optimization, ICLR 2021).

    Every client draws shares of the coarse labels from Dirichlet(alpha) and, within each, shares of its fine labels
    from Dirichlet(beta), and then `size` examples by these shares, without replacement; what has run out is left out
    of the shares. Each fine label must belong to one coarse label.
    """
    kinds, codes = encode_labels("pachinko", fine, clients)
    parents = _find_parents(coarse, fine, codes, len(kinds))
    for what, value in (("alpha", alpha), ("beta", beta)):
        require_in_range("pachinko", what, value, 1e-3, 1e6)
    require_int("pachinko", "size", size, 1)
    need = f"{clients} clients with {size} examples need {clients * size} of {len(fine)}"
    require(clients * size <= len(fine), f"pachinko: {need}; take fewer clients or a smaller size.")
    left, want = np.bincount(codes), np.zeros((clients, len(kinds)), np.int64)
    for client_counts in want:
        client_counts[:] = _draw_label_counts(left, parents, size, alpha, beta, rng)
        left -= client_counts
    return assign_by_counts("pachinko", kinds, codes, want, rng)


def _find_parents(coarse: Array, fine: Array, codes: Owners, kinds: int) -> Owners:
    """The coarse label, as a number from 0 on, of each fine label."""
    require(
        coarse.shape == fine.shape,
        f"pachinko: {len(coarse)} coarse labels cannot pair with {len(fine)} fine ones.",
    )
    coarse_codes = np.unique(coarse, return_inverse=True)[1].astype(np.int64)
    parents = np.zeros(kinds, np.int64)
    parents[codes] = coarse_codes
    for stray in np.flatnonzero(parents[codes] != coarse_codes)[:1]:
        raise InputError(
            f"pachinko: fine label {fine[stray]} must belong to one coarse label, but belongs to several."
        )
    return parents


def _draw_label_counts(
    remaining: NDArray[np.int64],
    parents: Owners,
    size: int,
    alpha: float,
    beta: float,
    rng: np.random.Generator,
) -> NDArray[np.int64]:
    """How many of each fine label one client draws, while so many are left."""
    counts, tops = np.zeros_like(remaining), int(parents.max()) + 1
    room = np.bincount(parents, remaining, tops).astype(np.int64)
    through = _draw_capped(size, rng.dirichlet(np.full(tops, float(alpha))), room, rng)
    for top in range(tops):
        below = np.flatnonzero(parents == top)
        shares = rng.dirichlet(np.full(len(below), float(beta)))
        counts[below] = _draw_capped(int(through[top]), shares, remaining[below], rng)
    return counts


def _draw_capped(
    count: int, shares: NDArray[np.float64], capacity: NDArray[np.int64], rng: np.random.Generator
) -> NDArray[np.int64]:
    """So many draws by shares, where what is full is left out of the shares from then on.

    Draws are made all at once, and those that found no room again: the sequence of draws decides what is accepted, and
    it does not matter how many of it are looked at together.
    """
    counts = np.zeros_like(capacity)
    while count:
        free = counts < capacity
        odds = np.where(free, shares, 0) if (shares[free] > 0).any() else free.astype(float)
        drawn = rng.multinomial(count, odds / odds.sum())
        accepted = np.minimum(drawn, capacity - counts)
        counts, count = counts + accepted, count - int(accepted.sum())
    return counts
