"""Clients who differ in size, or not at all: even, uneven, or as a column says."""

import numpy as np

from fedtailor.data.arrays import require_whole
from fedtailor.data.holders import Array
from fedtailor.data.partitions.dealing import NOBODY, Whose, codes_of, require_amount, require_least, uneven
from fedtailor.errors import require


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


def natural(client: Array, *, least: int = 1) -> Whose:
    """As the column says, clients numbered in the order of their names; nobody's is what those with fewer have."""
    named = client.ndim == 1 and client.dtype.kind in "iuU" and len(client) > 0
    require(named, f"natural: client must be integers or strings, got {list(client.shape)} of {client.dtype}.")
    require_whole("natural", "least", least, 1)
    codes, sizes = np.unique(client, return_inverse=True, return_counts=True)[1:]
    large = sizes >= least
    require(bool(large.any()), f"natural: nobody has {least} examples, the largest client has {sizes.max()}.")
    return np.where(large, np.cumsum(large) - 1, NOBODY)[codes].astype(np.int64)
