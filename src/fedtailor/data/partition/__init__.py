"""Partitioners: from labels, a number of clients and a generator to whose each example is; -1: nobody's.

Each terminates, gives no example twice, gives everybody something, and refuses, with the numbers, what cannot be done.
"""

from collections.abc import Callable

from fedtailor.data.partition.composite import mixture, relabel
from fedtailor.data.partition.dirichlet import dirichlet, pachinko
from fedtailor.data.partition.helpers import UNASSIGNED, Owners
from fedtailor.data.partition.labels import few_labels, half_and_half, shards, two_labels
from fedtailor.data.partition.sizes import iid, quantity

__all__ = [
    "PARTITIONERS",
    "UNASSIGNED",
    "Owners",
    "dirichlet",
    "few_labels",
    "half_and_half",
    "iid",
    "mixture",
    "pachinko",
    "quantity",
    "relabel",
    "shards",
    "two_labels",
]

PARTITIONERS: dict[str, Callable[..., Owners]] = {
    "two-labels": two_labels,
    "half-and-half": half_and_half,
    "few-labels": few_labels,
    "shards": shards,
    "dirichlet": dirichlet,
    "quantity": quantity,
    "iid": iid,
}
"""The partitioners that need labels alone, by name: each is called with (y, clients, draws, **its options)."""
