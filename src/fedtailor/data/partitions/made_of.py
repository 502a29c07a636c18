"""Partitions made of partitions: some clients by one rule and some by another, and clients with labels of their own."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fedtailor.data.holders import Array
from fedtailor.data.partitions.dealing import NOBODY, Whose, codes_of, require_amount
from fedtailor.errors import require

Rule = Callable[[Array, int, np.random.Generator], Whose]
"""A partitioner with its options bound."""


def mixture(
    y: Array, clients: int, draws: np.random.Generator, *, rule: Rule, other: Rule, share: float = 0.5
) -> Whose:
    """A share of the clients, chosen at random, by the other rule, and the rest by the rule.

    Either rule divides a random part of the examples, as large as its part of the clients.
    """
    codes_of("mixture", y, clients)
    require_amount("mixture", "share", share, 0, 1)
    others = round(share * clients)
    require(0 < others < clients, f"mixture: a share of {share} leaves one rule without any of the {clients} clients.")
    people, examples = draws.permutation(clients), draws.permutation(len(y))
    whose = np.full(len(y), NOBODY, np.int64)
    counts, cut = (others, clients - others), round(len(y) * others / clients)
    members, parts = np.split(people, [others]), np.split(examples, [cut])
    for divide, count, who, part in zip((other, rule), counts, members, parts, strict=True):
        own = divide(y[part], count, draws)
        whose[part] = np.where(own == NOBODY, NOBODY, who[own])
    return whose


def relabelled(y: Array, whose: Whose, draws: np.random.Generator, *, zeta: float) -> NDArray[np.int64]:
    """New labels: a share 1 - zeta of the clients, chosen at random, gives all labels a random order of its own.

    These are AFML's mutually exclusive clients, whose tasks have nothing to do with each other; 1 - zeta is the
    diversity of the tasks. Labels are taken to be 0, 1, ..., and nobody's examples keep theirs.
    """
    require(len(y) == len(whose), f"relabelled: {len(y)} labels cannot pair with {len(whose)} holders.")
    kinds = codes_of("relabelled", y, 1)[0]
    require(int(kinds[0]) >= 0, f"relabelled: labels must be at least 0, got {kinds[0]}.")
    require_amount("relabelled", "zeta", zeta, 0, 1)
    clients, labels = int(whose.max()) + 1, int(kinds[-1]) + 1
    orders = np.tile(np.arange(labels), (clients + 1, 1))  # the last line is nobody's: index -1
    for own in draws.permutation(clients)[: round((1 - zeta) * clients)]:
        orders[own] = draws.permutation(labels)
    return orders[whose, y]
