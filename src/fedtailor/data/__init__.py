"""Federated datasets: who holds which examples. Bring your own arrays, or load a source by name."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from fedtailor.data import options
from fedtailor.data.arrays import from_arrays
from fedtailor.data.dataset import FederatedDataset, Summary, check
from fedtailor.data.digits import digits, load_digits
from fedtailor.data.federated import defaults_of, federated
from fedtailor.data.holders import Holders, Split, sole_holder
from fedtailor.data.npz import from_npz
from fedtailor.data.sets import KNOWN, add, add_own, installed
from fedtailor.data.synthetic import synthetic
from fedtailor.errors import nearest, require

__all__ = [
    "KNOWN",
    "OWN",
    "SOURCES",
    "FederatedDataset",
    "Holders",
    "Split",
    "Summary",
    "add",
    "add_own",
    "check",
    "digits",
    "federated",
    "from_arrays",
    "from_npz",
    "installed",
    "load",
    "load_digits",
    "options_of",
    "sole_holder",
    "synthetic",
]

OWN: dict[str, Callable[..., FederatedDataset]] = {"digits": digits, "synthetic": synthetic}
"""The data sets that come with the library."""

SOURCES = (*OWN, *KNOWN)
"""The data sets that can be had by name; those that do not come with the library are to be added first."""


def load(name: str, **given: Any) -> FederatedDataset:
    """A data set by its name, or an `.npz` file's by its path, with its options."""
    return source_of(name)(**filled(name, given))


def source_of(name: str) -> Callable[..., FederatedDataset]:
    """What makes the dataset of that name or path."""
    if name.endswith(".npz"):
        return partial(from_npz, name)
    if name in OWN:
        return OWN[name]
    require(name in KNOWN or name in installed(), f"There is no data set '{name}'; {_nearest(name)}")
    return partial(federated, name)


def filled(name: str, given: dict[str, Any]) -> dict[str, Any]:
    """The options given, with the defaults of all others that matter beside them; refuses those that do not."""
    source = source_of(name)
    if getattr(source, "func", None) is federated:
        return options.filled(name, defaults_of(name), given)
    parameters = inspect.signature(source).parameters.values()
    own = {each.name: each.default for each in parameters if each.default is not inspect.Parameter.empty}
    for option in given:
        require(option in own, f"{name}: there is no option '{option}'; {nearest(option, own)}")
    return own | given


def options_of(name: str) -> dict[str, Any]:
    """The options of a data set, with their defaults."""
    return filled(name, {})


def _nearest(name: str) -> str:
    return nearest(name, [*dict.fromkeys((*SOURCES, *installed())), "FILE.npz"])
