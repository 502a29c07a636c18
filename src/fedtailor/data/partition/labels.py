"""Clients who know few labels: the partitions of four papers."""

import numpy as np

from fedtailor.data.arguments import require_int
from fedtailor.data.examples import Array
from fedtailor.data.partition.helpers import (
    Owners,
    assign_by_counts,
    deal_labels,
    encode_labels,
    require_enough_examples,
    require_in_range,
    split_unevenly,
)
from fedtailor.errors import require


def two_labels(
    y: Array,
    clients: int,
    rng: np.random.Generator,
    *,
    ratio: float = 50.0,
    least: int = 10,
    used: float = 1.0,
) -> Owners:
    """Two labels a client and uneven sizes, as for FedMeta-Per.

    Labels are dealt so that all are held equally often, give or take one. Every client has a weight, in a random order
    of a geometric progression from 1 to `ratio`. Of each label a share `used` is divided among its holders: half of
    `least` (rounded up) for each, and the rest by weight.

    The paper prints sizes, not how they came about: `ratio` and `used` are ours, chosen so that the sizes come near.
    Fifty clients with all of MNIST (ratio 50, used 1) and of CIFAR-10 (ratio 2.5, used 0.875), medians over 60 seeds:

                 samples     min   mean    std    max
        MNIST    70,000      117   1400   1329   5122
        paper    69,909      135   1398   1424   5201
        CIFAR-10 52,500      644   1050    262   1586
        paper    52,497      506   1049    250   1986
    """
    kinds, codes = encode_labels("two-labels", y, clients)
    require(len(kinds) >= 2, f"two-labels: there must be at least 2 labels, got {len(kinds)}.")
    require_in_range("two-labels", "ratio", ratio, 1, 1e6)
    require_in_range("two-labels", "used", used, 0, 1)
    require_enough_examples("two-labels", least, clients, len(y))
    hands, weights = (
        deal_labels(clients, 2, len(kinds), rng),
        rng.permutation(np.geomspace(1, ratio, clients)),
    )
    want, each = np.zeros(hands.shape, np.int64), -(-least // 2)
    for kind, there in enumerate(np.bincount(codes)):
        client_ids = np.flatnonzero(hands[:, kind])
        if len(client_ids):
            total = max(round(used * int(there)), each * len(client_ids))
            want[client_ids, kind] = split_unevenly(total, weights[client_ids], each)
    return assign_by_counts("two-labels", kinds, codes, want, rng)


def half_and_half(
    y: Array, clients: int, rng: np.random.Generator, *, images: int = 196, drop_half: bool = False
) -> Owners:
    """Per-FedAvg's: every other client knows the first half of the labels, and each of the rest one of either half.

    The former have `images` of each of their labels, the latter images / 2 of their label of the first half and
    2 * images of their label of the second. `drop_half` leaves the images / 2 out: the paper's different heterogeneity.
    """
    kinds, codes = encode_labels("half-and-half", y, clients)
    even = len(kinds) >= 2 and len(kinds) % 2 == 0
    require(even, f"half-and-half: there must be an even number of labels, got {len(kinds)}.")
    require_int("half-and-half", "images", images, 2)
    require(
        isinstance(drop_half, bool),
        f"half-and-half: drop_half must be true or false, got {drop_half!r}.",
    )
    middle, others = len(kinds) // 2, clients // 2
    want = np.zeros((clients, len(kinds)), np.int64)
    want[::2, :middle] = images
    want[1::2, :middle] = deal_labels(others, 1, middle, rng) * (0 if drop_half else images // 2)
    want[1::2, middle:] = deal_labels(others, 1, middle, rng) * (2 * images)
    return assign_by_counts("half-and-half", kinds, codes, want, rng)


def few_labels(
    y: Array, clients: int, rng: np.random.Generator, *, labels: int = 2, size: int | None = None
) -> Owners:
    """FSL's: each client has `labels` labels and size / labels examples of each; None: as many as there are for all.

    Labels are dealt so that all are held equally often, give or take one.
    """
    kinds, codes = encode_labels("few-labels", y, clients)
    require_int("few-labels", "labels", labels, 1)
    require(
        labels <= len(kinds),
        f"few-labels: labels must be at most the {len(kinds)} that there are, got {labels}.",
    )
    hands = deal_labels(clients, labels, len(kinds), rng)
    if size is None:
        each = int(
            (np.bincount(codes) // np.maximum(hands.sum(axis=0), 1))[hands.any(axis=0)].min()
        )
        require(
            each > 0,
            f"few-labels: {clients} clients of {labels} labels are too many for {len(y)} examples.",
        )
    else:
        require_int("few-labels", "size", size, 1)
        require(
            size % labels == 0,
            f"few-labels: size must be a multiple of the {labels} labels, got {size}.",
        )
        each = size // labels
    return assign_by_counts("few-labels", kinds, codes, hands * np.int64(each), rng)


def shards(y: Array, clients: int, rng: np.random.Generator, *, shards: int = 2) -> Owners:
    """McMahan's: examples sorted by label are cut into equal shards (give or take one), so many at random a client."""
    codes = encode_labels("shards", y, clients)[1]
    require_int("shards", "shards", shards, 1)
    enough = clients * shards <= len(y)
    require(
        enough,
        f"shards: {clients} clients with {shards} shards need {clients * shards} of {len(y)} examples.",
    )
    shuffled = rng.permutation(len(y))
    by_label = shuffled[np.argsort(codes[shuffled], kind="stable")]
    owners = rng.permutation(np.repeat(np.arange(clients), shards))
    assigned = np.empty(len(y), np.int64)
    assigned[by_label] = np.repeat(
        owners, [len(part) for part in np.array_split(by_label, len(owners))]
    )
    return assigned
