"""Clients who know few labels: the partitions of four papers."""

import numpy as np

from fedtailor.data.arrays import require_whole
from fedtailor.data.holders import Array
from fedtailor.data.partitions.dealing import Whose, codes_of, deal, hand_out, require_amount, require_least, uneven
from fedtailor.errors import require


def two_labels(
    y: Array, clients: int, draws: np.random.Generator, *, ratio: float = 50.0, least: int = 10, used: float = 1.0
) -> Whose:
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
    kinds, codes = codes_of("two-labels", y, clients)
    require(len(kinds) >= 2, f"two-labels: there must be at least 2 labels, got {len(kinds)}.")
    require_amount("two-labels", "ratio", ratio, 1, 1e6)
    require_amount("two-labels", "used", used, 0, 1)
    require_least("two-labels", least, clients, len(y))
    hands, weights = deal(clients, 2, len(kinds), draws), draws.permutation(np.geomspace(1, ratio, clients))
    want, each = np.zeros(hands.shape, np.int64), -(-least // 2)
    for kind, there in enumerate(np.bincount(codes)):
        holders = np.flatnonzero(hands[:, kind])
        if len(holders):
            total = max(round(used * int(there)), each * len(holders))
            want[holders, kind] = uneven(total, weights[holders], each)
    return hand_out("two-labels", kinds, codes, want, draws)


def half_and_half(
    y: Array, clients: int, draws: np.random.Generator, *, images: int = 196, drop_half: bool = False
) -> Whose:
    """Per-FedAvg's: every other client knows the first half of the labels, and each of the rest one of either half.

    The former have `images` of each of their labels, the latter images / 2 of their label of the first half and
    2 * images of their label of the second. `drop_half` leaves the images / 2 out: the paper's different heterogeneity.
    """
    kinds, codes = codes_of("half-and-half", y, clients)
    even = len(kinds) >= 2 and len(kinds) % 2 == 0
    require(even, f"half-and-half: there must be an even number of labels, got {len(kinds)}.")
    require_whole("half-and-half", "images", images, 2)
    require(isinstance(drop_half, bool), f"half-and-half: drop_half must be true or false, got {drop_half!r}.")
    middle, others = len(kinds) // 2, clients // 2
    want = np.zeros((clients, len(kinds)), np.int64)
    want[::2, :middle] = images
    want[1::2, :middle] = deal(others, 1, middle, draws) * (0 if drop_half else images // 2)
    want[1::2, middle:] = deal(others, 1, middle, draws) * (2 * images)
    return hand_out("half-and-half", kinds, codes, want, draws)


def few_labels(
    y: Array, clients: int, draws: np.random.Generator, *, labels: int = 2, size: int | None = None
) -> Whose:
    """FSL's: each client has `labels` labels and size / labels examples of each; None: as many as there are for all.

    Labels are dealt so that all are held equally often, give or take one.
    """
    kinds, codes = codes_of("few-labels", y, clients)
    require_whole("few-labels", "labels", labels, 1)
    require(labels <= len(kinds), f"few-labels: labels must be at most the {len(kinds)} that there are, got {labels}.")
    hands = deal(clients, labels, len(kinds), draws)
    if size is None:
        each = int((np.bincount(codes) // np.maximum(hands.sum(axis=0), 1))[hands.any(axis=0)].min())
        require(each > 0, f"few-labels: {clients} clients of {labels} labels are too many for {len(y)} examples.")
    else:
        require_whole("few-labels", "size", size, 1)
        require(size % labels == 0, f"few-labels: size must be a multiple of the {labels} labels, got {size}.")
        each = size // labels
    return hand_out("few-labels", kinds, codes, hands * np.int64(each), draws)


def shards(y: Array, clients: int, draws: np.random.Generator, *, shards: int = 2) -> Whose:
    """McMahan's: examples sorted by label are cut into equal shards (give or take one), so many at random a client."""
    codes = codes_of("shards", y, clients)[1]
    require_whole("shards", "shards", shards, 1)
    enough = clients * shards <= len(y)
    require(enough, f"shards: {clients} clients with {shards} shards need {clients * shards} of {len(y)} examples.")
    shuffled = draws.permutation(len(y))
    by_label = shuffled[np.argsort(codes[shuffled], kind="stable")]
    owners = draws.permutation(np.repeat(np.arange(clients), shards))
    whose = np.empty(len(y), np.int64)
    whose[by_label] = np.repeat(owners, [len(part) for part in np.array_split(by_label, len(owners))])
    return whose
