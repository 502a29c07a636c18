"""Federated datasets: who holds which examples. Bring your own arrays, or load a source by name."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from fedtailor.data.builtin.arrays import from_arrays
from fedtailor.data.builtin.digits import digits, load_digits
from fedtailor.data.builtin.npz import from_npz
from fedtailor.data.builtin.synthetic import synthetic
from fedtailor.data.dataset import FederatedDataset, Summary, validate_dataset
from fedtailor.data.examples import ClientExamples, Split, single_client
from fedtailor.data.partition import options
from fedtailor.data.partition.build import get_dataset_defaults, load_federated
from fedtailor.data.sources import CATALOG, add, add_custom, list_installed
from fedtailor.errors import require, suggest_name

__all__ = [
    "BUILT_IN_SOURCES",
    "CATALOG",
    "SOURCES",
    "ClientExamples",
    "FederatedDataset",
    "Split",
    "Summary",
    "add",
    "add_custom",
    "digits",
    "from_arrays",
    "from_npz",
    "get_options",
    "list_installed",
    "load",
    "load_digits",
    "load_federated",
    "single_client",
    "synthetic",
    "validate_dataset",
]

BUILT_IN_SOURCES: dict[str, Callable[..., FederatedDataset]] = {
    "digits": digits,
    "synthetic": synthetic,
}
"""The data sets that come with the library."""

SOURCES = (*BUILT_IN_SOURCES, *CATALOG)
"""The data sets that can be had by name; those that do not come with the library are to be added first."""


def load(name: str, **overrides: Any) -> FederatedDataset:
    """A data set by its name, or an `.npz` file's by its path, with its options."""
    return get_source(name)(**fill_defaults(name, overrides))


def get_source(name: str) -> Callable[..., FederatedDataset]:
    """What makes the dataset of that name or path."""
    if name.endswith(".npz"):
        return partial(from_npz, name)
    if name in BUILT_IN_SOURCES:
        return BUILT_IN_SOURCES[name]
    require(
        name in CATALOG or name in list_installed(),
        f"There is no data set '{name}'; {_suggest_name(name)}",
    )
    return partial(load_federated, name)


def fill_defaults(name: str, overrides: dict[str, Any]) -> dict[str, Any]:
    """The options given, with the defaults of all others that matter beside them; refuses those that do not."""
    source = get_source(name)
    if getattr(source, "func", None) is load_federated:
        return options.fill_defaults(name, get_dataset_defaults(name), overrides)
    parameters = inspect.signature(source).parameters.values()
    defaults = {
        each.name: each.default
        for each in parameters
        if each.default is not inspect.Parameter.empty
    }
    for option in overrides:
        require(
            option in defaults,
            f"{name}: there is no option '{option}'; {suggest_name(option, defaults)}",
        )
    return defaults | overrides


def get_options(name: str) -> dict[str, Any]:
    """The options of a data set, with their defaults."""
    return fill_defaults(name, {})


def _suggest_name(name: str) -> str:
    return suggest_name(name, [*dict.fromkeys((*SOURCES, *list_installed())), "FILE.npz"])
