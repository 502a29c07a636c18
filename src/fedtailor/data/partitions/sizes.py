"""Clients who differ in size, or not at all."""

import numpy as np

from fedtailor.data.holders import Array
from fedtailor.data.partitions.dealing import Whose, codes_of, require_amount, require_least, uneven


def iid(y: Array, clients: int, draws: np.random.Generator) -> Whose:
    """Everybody has as many random examples, give or take one."""
    codes_of("iid", y, clients)
    return draws.permutation(np.arange(len(y)) % clients)


def quantity(y: Array, clients: int, draws: np.random.Generator, *, alpha: float = 0.5, least: int = 10) -> Whose:
    """Random examples for everybody, at least `least`; what is left is divided by shares from Dirichlet(alpha)."""
    codes_of("quantity", y, clients)
    require_amount("quantity", "alpha", alpha, 1e-3, 1e6)
    require_least("quantity", least, clients, len(y))
    sizes = uneven(len(y), draws.dirichlet(np.full(clients, float(alpha))), least)
    return draws.permutation(np.repeat(np.arange(clients), sizes))
