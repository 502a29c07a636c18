"""Partitioners: functions that assign the examples of a data set to clients.

Each takes labels, a number of clients and a random generator, and returns the client of each
example, or `UNASSIGNED`. All of them terminate, assign no example twice and leave no client without
examples; a partition that is impossible raises `InputError` with the numbers.

Another partitioner is a function and an entry here. Its keyword-only arguments are its options, and
its docstring is the help that the command line shows.
"""

from collections.abc import Callable

from fedtailor.data.examples import UNASSIGNED
from fedtailor.data.partition.composite import mixture, relabel
from fedtailor.data.partition.dirichlet import dirichlet, pachinko
from fedtailor.data.partition.helpers import LabelHierarchy, Owners
from fedtailor.data.partition.labels import few_labels, half_and_half, shards, two_labels
from fedtailor.data.partition.sizes import iid, quantity

__all__ = [
    "HIERARCHICAL_PARTITIONERS",
    "PARTITIONERS",
    "UNASSIGNED",
    "LabelHierarchy",
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

HIERARCHICAL_PARTITIONERS: dict[str, Callable[..., Owners]] = {"pachinko": pachinko}
"""Partitioners that are called with a `LabelHierarchy` in place of labels."""
