"""Clients who differ in size, or not at all."""

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
    """Everybody has as many random examples, give or take one."""
    encode_labels("iid", y, clients)
    return rng.permutation(np.arange(len(y)) % clients)


def quantity(
    y: Array, clients: int, rng: np.random.Generator, *, alpha: float = 0.5, least: int = 10
) -> Owners:
    """Random examples for everybody, at least `least`; what is left is divided by shares from Dirichlet(alpha)."""
    encode_labels("quantity", y, clients)
    require_in_range("quantity", "alpha", alpha, 1e-3, 1e6)
    require_enough_examples("quantity", least, clients, len(y))
    sizes = split_unevenly(len(y), rng.dirichlet(np.full(clients, float(alpha))), least)
    return rng.permutation(np.repeat(np.arange(clients), sizes))
