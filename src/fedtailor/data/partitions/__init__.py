"""Partitioners: from labels, a number of clients and a generator to whose each example is; -1: nobody's.

Each terminates, gives no example twice, gives everybody something, and refuses, with the numbers, what cannot be done.
"""

from collections.abc import Callable

from fedtailor.data.partitions.dealing import NOBODY, Whose
from fedtailor.data.partitions.dirichlet import dirichlet, pachinko
from fedtailor.data.partitions.labels import few_labels, half_and_half, shards, two_labels
from fedtailor.data.partitions.made_of import mixture, relabelled
from fedtailor.data.partitions.sizes import iid, quantity

__all__ = [
    "NOBODY",
    "PARTITIONS",
    "Whose",
    "dirichlet",
    "few_labels",
    "half_and_half",
    "iid",
    "mixture",
    "pachinko",
    "quantity",
    "relabelled",
    "shards",
    "two_labels",
]

PARTITIONS: dict[str, Callable[..., Whose]] = {
    "two-labels": two_labels,
    "half-and-half": half_and_half,
    "few-labels": few_labels,
    "shards": shards,
    "dirichlet": dirichlet,
    "quantity": quantity,
    "iid": iid,
}
"""The partitioners that need labels alone, by name: each is called with (y, clients, draws, **its options)."""
