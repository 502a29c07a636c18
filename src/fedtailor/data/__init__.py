"""Federated datasets: who holds which examples. Bring your own arrays, or load a source by name."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from fedtailor.data.arrays import from_arrays
from fedtailor.data.dataset import FederatedDataset, Summary, check
from fedtailor.data.digits import digits
from fedtailor.data.holders import Holders, Split, sole_holder
from fedtailor.data.images import cifar10, mnist
from fedtailor.data.npz import from_npz
from fedtailor.data.synthetic import synthetic
from fedtailor.errors import nearest, require

__all__ = [
    "SOURCES",
    "FederatedDataset",
    "Holders",
    "Split",
    "Summary",
    "check",
    "cifar10",
    "digits",
    "from_arrays",
    "from_npz",
    "load",
    "mnist",
    "options_of",
    "sole_holder",
    "synthetic",
]

SOURCES: dict[str, Callable[..., FederatedDataset]] = {
    "digits": digits,
    "synthetic": synthetic,
    "mnist": mnist,
    "cifar10": cifar10,
}
"""The datasets that can be had by name."""


def load(name: str, **options: Any) -> FederatedDataset:
    """A source's dataset by its name, or an `.npz` file's by its path, with that source's options."""
    source = source_of(name)
    known = list(options_of(name))
    for option in options:
        require(option in known, f"{name}: there is no option '{option}'; {nearest(option, known)}")
    return source(**options)


def source_of(name: str) -> Callable[..., FederatedDataset]:
    """What makes the dataset of that name or path."""
    if name.endswith(".npz"):
        return partial(from_npz, name)
    require(name in SOURCES, f"There is no data set '{name}'; {nearest(name, [*SOURCES, 'FILE.npz'])}")
    return SOURCES[name]


def options_of(name: str) -> dict[str, Any]:
    """The options of a source, with their defaults."""
    parameters = inspect.signature(source_of(name)).parameters.values()
    return {each.name: each.default for each in parameters if each.default is not inspect.Parameter.empty}
