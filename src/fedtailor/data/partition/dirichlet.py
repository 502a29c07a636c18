"""Partitions by label shares from Dirichlet distributions: flat, or coarse and then fine labels."""

import numpy as np
from numpy.typing import NDArray

from fedtailor.data.arguments import require_int
from fedtailor.data.examples import Array
from fedtailor.data.partition.helpers import (
    LabelHierarchy,
    Owners,
    assign_by_counts,
    encode_labels,
    require_enough_examples,
    require_in_range,
    split_unevenly,
)
from fedtailor.errors import InputError, require

IntArray = NDArray[np.int64]


def dirichlet(
    y: Array, clients: int, rng: np.random.Generator, *, alpha: float = 0.5, least: int = 10
) -> Owners:
    """Return a partition that divides each label's examples by shares from Dirichlet(alpha).

    All examples are assigned. A client with too few is not drawn again: it gets random examples of
    the largest clients.

    Args:
        y: Label of each example, [examples].
        clients: Number of clients.
        rng: Draws the shares and chooses the examples.
        alpha: Concentration of the shares; the smaller, the fewer labels a client has.
        least: Minimum number of examples of a client.
    """
    labels, label_ids = encode_labels("dirichlet", y, clients)
    require_in_range("dirichlet", "alpha", alpha, 1e-3, 1e6)
    require_enough_examples("dirichlet", least, clients, len(y))
    label_sizes = np.bincount(label_ids).tolist()
    shares = rng.dirichlet(np.full(clients, float(alpha)), len(labels))
    counts_by_label = []
    for label_size, label_shares in zip(label_sizes, shares, strict=True):
        counts_by_label.append(split_unevenly(label_size, label_shares))
    counts = np.stack(counts_by_label, axis=1)
    owners = assign_by_counts("dirichlet", labels, label_ids, counts, rng)
    return _fill_smallest(owners, clients, least, rng)


def _fill_smallest(owners: Owners, clients: int, minimum: int, rng: np.random.Generator) -> Owners:
    """Return the partition with clients filled up to `minimum` examples from the largest clients.

    Picture each client as a stack of its examples: those taken are the highest of all stacks.
    """
    sizes = np.bincount(owners, minlength=clients)
    missing = np.maximum(minimum - sizes, 0)
    shuffled = rng.permutation(len(owners))
    by_client = shuffled[np.argsort(owners[shuffled], kind="stable")]
    height = np.arange(len(owners)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    highest = by_client[np.argsort(-height, kind="stable")[: missing.sum()]]
    filled = owners.copy()
    filled[highest] = np.repeat(np.arange(clients), missing)
    return filled


def pachinko(
    labels: LabelHierarchy,
    clients: int,
    rng: np.random.Generator,
    *,
    size: int = 100,
    alpha: float = 0.1,
    beta: float = 10.0,
) -> Owners:
    """Return a partition by Pachinko allocation, as for federated CIFAR-100.

    Reddi et al., Adaptive Federated Optimization (ICLR 2021). Each client draws shares of the
    coarse labels from Dirichlet(alpha) and, within each coarse label, shares of its fine labels
    from Dirichlet(beta); then it draws `size` examples by these shares, without replacement. Labels
    without remaining examples are left out of the shares.

    Args:
        labels: Coarse and fine label of each example.
        clients: Number of clients.
        rng: Draws the shares and chooses the examples.
        size: Number of examples of each client.
        alpha: Concentration of the shares of coarse labels.
        beta: Concentration of the shares of fine labels.
    """
    fine_labels, label_ids = encode_labels("pachinko", labels.fine, clients)
    parents = _find_parents(labels, label_ids, len(fine_labels))
    for option, value in (("alpha", alpha), ("beta", beta)):
        require_in_range("pachinko", option, value, 1e-3, 1e6)
    require_int("pachinko", "size", size, 1)
    needed = clients * size
    require(
        needed <= len(label_ids),
        f"pachinko: {clients} clients with {size} examples need {needed} of {len(label_ids)}; take "
        "fewer clients or a smaller size.",
    )
    remaining = np.bincount(label_ids)
    counts = np.zeros((clients, len(fine_labels)), np.int64)
    for client_counts in counts:
        client_counts[:] = _draw_label_counts(remaining, parents, size, alpha, beta, rng)
        remaining -= client_counts
    return assign_by_counts("pachinko", fine_labels, label_ids, counts, rng)


def _find_parents(labels: LabelHierarchy, label_ids: IntArray, num_labels: int) -> IntArray:
    """Return the coarse label of each fine label, numbered from 0, [fine labels].

    Args:
        labels: Labels of all examples.
        label_ids: Fine label of each example, numbered from 0, [examples].
        num_labels: Number of fine labels.
    """
    coarse, fine = labels
    require(
        coarse.shape == fine.shape,
        f"pachinko: {len(coarse)} coarse labels cannot pair with {len(fine)} fine ones.",
    )
    _, coarse_ids = np.unique(coarse, return_inverse=True)
    parents = np.zeros(num_labels, np.int64)
    parents[label_ids] = coarse_ids
    is_stray = parents[label_ids] != coarse_ids
    if is_stray.any():
        fine_label = fine[int(is_stray.argmax())]
        raise InputError(
            f"pachinko: fine label {fine_label} must belong to one coarse label, but belongs to "
            "several."
        )
    return parents


def _draw_label_counts(
    remaining: IntArray,
    parents: IntArray,
    size: int,
    alpha: float,
    beta: float,
    rng: np.random.Generator,
) -> IntArray:
    """Return the number of examples of each fine label that one client draws, [fine labels].

    `remaining` is the number of examples that other clients have left of each.
    """
    num_coarse = int(parents.max()) + 1
    coarse_remaining = np.bincount(parents, remaining, num_coarse).astype(np.int64)
    coarse_shares = rng.dirichlet(np.full(num_coarse, float(alpha)))
    coarse_counts = _draw_capped(size, coarse_shares, coarse_remaining, rng)
    counts = np.zeros_like(remaining)
    for coarse_id in range(num_coarse):
        children = np.flatnonzero(parents == coarse_id)
        shares = rng.dirichlet(np.full(len(children), float(beta)))
        count = int(coarse_counts[coarse_id])
        counts[children] = _draw_capped(count, shares, remaining[children], rng)
    return counts


def _draw_capped(
    count: int, shares: NDArray[np.float64], capacity: IntArray, rng: np.random.Generator
) -> IntArray:
    """Return how often each label is drawn in `count` draws by shares, up to its capacity.

    A label at its capacity is left out of the shares from then on. All draws are made at once, and
    those beyond a capacity are made again. The result is distributed as if they were made one by
    one: whether a draw is accepted depends only on the draws before it, not on how many are made
    together.
    """
    counts = np.zeros_like(capacity)
    while count:
        is_free = counts < capacity
        if (shares[is_free] > 0).any():
            odds = np.where(is_free, shares, 0)
        else:
            odds = is_free.astype(float)
        drawn = rng.multinomial(count, odds / odds.sum())
        accepted = np.minimum(drawn, capacity - counts)
        counts = counts + accepted
        count -= int(accepted.sum())
    return counts
