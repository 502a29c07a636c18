"""Partitions with few labels for each client, as in four papers."""

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
    """Return a partition with two labels for each client and uneven sizes, as for FedMeta-Per.

    All labels have equally many clients, give or take one. The clients' weights are a geometric
    progression from 1 to `ratio`, in random order. A share `used` of each label's examples is
    divided among its clients: `least` / 2 (rounded up) for each, and the rest by weight.

    The paper prints sizes, not how they came about: `ratio` and `used` are ours, chosen so that the
    sizes come near. Fifty clients with all of MNIST (ratio 50, used 1) and of CIFAR-10 (ratio 2.5,
    used 0.875), medians over 60 seeds:

                 samples     min   mean    std    max
        MNIST    70,000      117   1400   1329   5122
        paper    69,909      135   1398   1424   5201
        CIFAR-10 52,500      644   1050    262   1586
        paper    52,497      506   1049    250   1986

    Args:
        y: Label of each example, [examples].
        clients: Number of clients.
        rng: Draws labels and the order of the weights, and chooses the examples.
        ratio: Largest weight; 1 makes all clients about equally large.
        least: Minimum number of examples of a client, half of them of each label.
        used: Share of the examples that clients get, from 0 to 1.
    """
    labels, label_ids = encode_labels("two-labels", y, clients)
    require(len(labels) >= 2, f"two-labels: there must be at least 2 labels, got {len(labels)}.")
    require_in_range("two-labels", "ratio", ratio, 1, 1e6)
    require_in_range("two-labels", "used", used, 0, 1)
    require_enough_examples("two-labels", least, clients, len(y))
    has_label = deal_labels(clients, 2, len(labels), rng)
    weights = rng.permutation(np.geomspace(1, ratio, clients))
    minimum = -(-least // 2)
    counts = np.zeros(has_label.shape, np.int64)
    for label_id, available in enumerate(np.bincount(label_ids)):
        client_ids = np.flatnonzero(has_label[:, label_id])
        if len(client_ids) == 0:
            continue
        total = max(round(used * int(available)), minimum * len(client_ids))
        counts[client_ids, label_id] = split_unevenly(total, weights[client_ids], minimum)
    return assign_by_counts("two-labels", labels, label_ids, counts, rng)


def half_and_half(
    y: Array, clients: int, rng: np.random.Generator, *, images: int = 196, drop_half: bool = False
) -> Owners:
    """Return Per-FedAvg's partition: clients with half of the labels, and clients with two labels.

    Every other client has `images` examples of each label of the first half. Each client in between
    has images / 2 of one label of the first half and 2 * images of one label of the second.

    Args:
        y: Label of each example, [examples]; an even number of labels must occur.
        clients: Number of clients.
        rng: Draws labels and chooses the examples.
        images: Number of examples of each label that a client with half of the labels has, at
            least 2; clients with two labels have images / 2 and 2 * images.
        drop_half: Whether the images / 2 are left out, the paper's different heterogeneity.
    """
    labels, label_ids = encode_labels("half-and-half", y, clients)
    is_even = len(labels) >= 2 and len(labels) % 2 == 0
    require(is_even, f"half-and-half: there must be an even number of labels, got {len(labels)}.")
    require_int("half-and-half", "images", images, 2)
    require(
        isinstance(drop_half, bool),
        f"half-and-half: drop_half must be true or false, got {drop_half!r}.",
    )
    middle = len(labels) // 2
    num_odd_clients = clients // 2
    has_first_label = deal_labels(num_odd_clients, 1, middle, rng)
    has_second_label = deal_labels(num_odd_clients, 1, middle, rng)
    counts = np.zeros((clients, len(labels)), np.int64)
    counts[::2, :middle] = images
    if not drop_half:
        counts[1::2, :middle] = has_first_label * (images // 2)
    counts[1::2, middle:] = has_second_label * (2 * images)
    return assign_by_counts("half-and-half", labels, label_ids, counts, rng)


def few_labels(
    y: Array, clients: int, rng: np.random.Generator, *, labels: int = 2, size: int | None = None
) -> Owners:
    """Return FSL's partition: few labels for each client, and equally many examples of each.

    All labels have equally many clients, give or take one.

    Args:
        y: Label of each example, [examples].
        clients: Number of clients.
        rng: Draws labels and chooses the examples.
        labels: Number of labels of each client.
        size: Number of examples of each client, a multiple of `labels`; None gives as many as the
            examples allow.
    """
    all_labels, label_ids = encode_labels("few-labels", y, clients)
    require_int("few-labels", "labels", labels, 1)
    require(
        labels <= len(all_labels),
        f"few-labels: labels must be at most the {len(all_labels)} that there are, got {labels}.",
    )
    has_label = deal_labels(clients, labels, len(all_labels), rng)
    if size is None:
        clients_per_label = has_label.sum(axis=0)
        largest_counts = np.bincount(label_ids) // np.maximum(clients_per_label, 1)
        count = int(largest_counts[clients_per_label > 0].min())
        require(
            count > 0,
            f"few-labels: {clients} clients of {labels} labels are too many for {len(y)} examples.",
        )
    else:
        require_int("few-labels", "size", size, 1)
        require(
            size % labels == 0,
            f"few-labels: size must be a multiple of the {labels} labels, got {size}.",
        )
        count = size // labels
    counts = has_label * np.int64(count)
    return assign_by_counts("few-labels", all_labels, label_ids, counts, rng)


def shards(y: Array, clients: int, rng: np.random.Generator, *, shards: int = 2) -> Owners:
    """Return McMahan's partition: random shards of the examples sorted by label.

    The shards are equally large, give or take one example, and together have all examples.

    Args:
        y: Label of each example, [examples].
        clients: Number of clients.
        rng: Shuffles the examples of each label and deals the shards.
        shards: Number of shards of each client.
    """
    _, label_ids = encode_labels("shards", y, clients)
    require_int("shards", "shards", shards, 1)
    num_shards = clients * shards
    require(
        num_shards <= len(y),
        f"shards: {clients} clients with {shards} shards need {num_shards} of {len(y)} examples.",
    )
    shuffled = rng.permutation(len(y))
    by_label = shuffled[np.argsort(label_ids[shuffled], kind="stable")]
    shard_owners = rng.permutation(np.repeat(np.arange(clients), shards))
    shard_sizes = [len(shard) for shard in np.array_split(by_label, num_shards)]
    owners = np.empty(len(y), np.int64)
    owners[by_label] = np.repeat(shard_owners, shard_sizes)
    return owners
