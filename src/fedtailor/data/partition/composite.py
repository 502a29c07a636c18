"""Partitions made of partitions: some clients by one rule and some by another, and clients with labels of their own."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fedtailor.data.examples import Array
from fedtailor.data.partition.helpers import UNASSIGNED, Owners, encode_labels, require_in_range
from fedtailor.errors import require

Partitioner = Callable[[Array, int, np.random.Generator], Owners]
"""A partitioner with its options bound."""


def mixture(
    y: Array,
    clients: int,
    rng: np.random.Generator,
    *,
    partitioner: Partitioner,
    other: Partitioner,
    share: float = 0.5,
) -> Owners:
    """A share of the clients, chosen at random, by the other rule, and the rest by the rule.

    Either rule divides a random part of the examples, as large as its part of the clients.
    """
    encode_labels("mixture", y, clients)
    require_in_range("mixture", "share", share, 0, 1)
    others = round(share * clients)
    require(
        0 < others < clients,
        f"mixture: a share of {share} leaves one rule without any of the {clients} clients.",
    )
    client_order, examples = rng.permutation(clients), rng.permutation(len(y))
    owners = np.full(len(y), UNASSIGNED, np.int64)
    counts, cut = (others, clients - others), round(len(y) * others / clients)
    members, parts = np.split(client_order, [others]), np.split(examples, [cut])
    for divide, count, client_ids, part in zip(
        (other, partitioner), counts, members, parts, strict=True
    ):
        part_owners = divide(y[part], count, rng)
        owners[part] = np.where(part_owners == UNASSIGNED, UNASSIGNED, client_ids[part_owners])
    return owners


def relabel(
    y: Array, owners: Owners, rng: np.random.Generator, *, zeta: float
) -> NDArray[np.int64]:
    """New labels: a share 1 - zeta of the clients, chosen at random, gives all labels a random order of its own.

    These are AFML's mutually exclusive clients, whose tasks have nothing to do with each other; 1 - zeta is the
    diversity of the tasks. Labels are taken to be 0, 1, ..., and nobody's examples keep theirs.
    """
    require(
        len(y) == len(owners),
        f"relabelled: {len(y)} labels cannot pair with {len(owners)} holders.",
    )
    kinds = encode_labels("relabelled", y, 1)[0]
    require(int(kinds[0]) >= 0, f"relabelled: labels must be at least 0, got {kinds[0]}.")
    require_in_range("relabelled", "zeta", zeta, 0, 1)
    clients, labels = int(owners.max()) + 1, int(kinds[-1]) + 1
    orders = np.tile(np.arange(labels), (clients + 1, 1))  # the last line is nobody's: index -1
    for client in rng.permutation(clients)[: round((1 - zeta) * clients)]:
        orders[client] = rng.permutation(labels)
    return orders[owners, y]
