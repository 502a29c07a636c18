"""Partitioners: functions that assign the examples of a data set to clients.

Each takes labels, a number of clients and a random generator, and returns the client of each
example, or `UNASSIGNED`. All of them terminate, assign no example twice and leave no client without
examples; a partition that is impossible raises `InputError` with the numbers.
"""

from collections.abc import Callable

from fedtailor.data.examples import UNASSIGNED
from fedtailor.data.partition.composite import mixture, relabel
from fedtailor.data.partition.dirichlet import dirichlet, pachinko
from fedtailor.data.partition.helpers import Owners
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
"""Partitioners that need nothing but labels, by name, called as `f(y, clients, rng, **options)`."""
