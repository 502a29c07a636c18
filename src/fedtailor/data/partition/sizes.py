"""Partitions with random labels: clients of equal or of different sizes."""

import numpy as np

from fedtailor.data.examples import Array
from fedtailor.data.partition.helpers import (
    Owners,
    encode_labels,
    require_enough_examples,
    require_in_range,
    split_unevenly,
)


def iid(y: Array, clients: int, rng: np.random.Generator) -> Owners:
    """Return a partition into random examples, equally many for each client, give or take one.

    Args:
        y: Label of each example, [examples]; only their number matters.
        clients: Number of clients.
        rng: Chooses the examples.
    """
    encode_labels("iid", y, clients)
    return rng.permutation(np.arange(len(y)) % clients)


def quantity(
    y: Array, clients: int, rng: np.random.Generator, *, alpha: float = 0.5, least: int = 10
) -> Owners:
    """Return a partition into random examples, with sizes by shares from Dirichlet(alpha).

    Args:
        y: Label of each example, [examples]; only their number matters.
        clients: Number of clients.
        rng: Draws the shares and chooses the examples.
        alpha: Concentration of the shares; the smaller, the more the sizes differ.
        least: Minimum number of examples of a client; the shares divide the rest.
    """
    encode_labels("quantity", y, clients)
    require_in_range("quantity", "alpha", alpha, 1e-3, 1e6)
    require_enough_examples("quantity", least, clients, len(y))
    shares = rng.dirichlet(np.full(clients, float(alpha)))
    sizes = split_unevenly(len(y), shares, least)
    return rng.permutation(np.repeat(np.arange(clients), sizes))
