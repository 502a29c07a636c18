"""Mixtures of two partitioners, and labels that some clients permute."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fedtailor.data.examples import UNASSIGNED, Array
from fedtailor.data.partition.helpers import Owners, encode_labels, require_in_range
from fedtailor.errors import require

Partitioner = Callable[[Array, int, np.random.Generator], Owners]
"""A partitioner with its options bound: labels, number of clients, generator -> owners."""


def mixture(
    y: Array,
    clients: int,
    rng: np.random.Generator,
    *,
    partitioner: Partitioner,
    other: Partitioner,
    share: float = 0.5,
) -> Owners:
    """Return a partition in which some clients, chosen at random, follow another partitioner.

    Each partitioner divides a random part of the examples, in proportion to its clients.

    Args:
        y: Label of each example, [examples].
        clients: Number of clients.
        rng: Chooses clients and examples, and is passed on to the partitioners.
        partitioner: Divides examples among most clients.
        other: Divides examples among the remaining clients.
        share: Share of the clients of `other`; each partitioner must have at least one client.
    """
    encode_labels("mixture", y, clients)
    require_in_range("mixture", "share", share, 0, 1)
    num_others = round(share * clients)
    require(
        0 < num_others < clients,
        f"mixture: share must leave clients to both partitioners, got {share} of {clients} "
        "clients.",
    )
    client_order = rng.permutation(clients)
    example_order = rng.permutation(len(y))
    num_other_examples = round(len(y) * num_others / clients)
    client_parts = np.split(client_order, [num_others])
    example_parts = np.split(example_order, [num_other_examples])
    owners = np.full(len(y), UNASSIGNED, np.int64)
    for divide, client_ids, examples in zip(
        (other, partitioner), client_parts, example_parts, strict=True
    ):
        part_owners = divide(y[examples], len(client_ids), rng)
        is_unassigned = part_owners == UNASSIGNED
        owners[examples] = np.where(is_unassigned, UNASSIGNED, client_ids[part_owners])
    return owners


def relabel(
    y: Array, owners: Owners, rng: np.random.Generator, *, zeta: float
) -> NDArray[np.int64]:
    """Return labels that some clients, chosen at random, permute, each in its own random way.

    These are AFML's mutually exclusive clients, whose tasks have nothing in common; 1 - zeta is
    the diversity of the tasks.

    Args:
        y: Label of each example, [examples], from 0 on.
        owners: Client of each example, [examples]; unassigned examples keep their labels.
        rng: Chooses clients (its first draw, a permutation of all clients) and permutations.
        zeta: Share of the clients that keep the labels, from 0 to 1.
    """
    require(
        len(y) == len(owners),
        f"relabel: labels and owners must be equally many, got {len(y)} and {len(owners)}.",
    )
    labels, _ = encode_labels("relabel", y, 1)
    require(int(labels[0]) >= 0, f"relabel: labels must be at least 0, got {labels[0]}.")
    require_in_range("relabel", "zeta", zeta, 0, 1)
    num_clients = int(owners.max()) + 1
    num_labels = int(labels[-1]) + 1
    # The last row, at index -1, is for unassigned examples.
    new_labels = np.tile(np.arange(num_labels), (num_clients + 1, 1))
    num_changed = round((1 - zeta) * num_clients)
    for client in rng.permutation(num_clients)[:num_changed]:
        new_labels[client] = rng.permutation(num_labels)
    return new_labels[owners, y]
