"""Federated data sets: examples, the clients that have them, and where they come from.

Build a data set from arrays with `from_arrays`, or load one by name or from an `.npz` file with
`load`.
"""

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
"""Functions that make the data sets that come with the library, by name."""

SOURCES = (*BUILT_IN_SOURCES, *CATALOG)
"""Names of all known data sets; those of the catalog must be added before they can be loaded."""


def load(name: str, **overrides: Any) -> FederatedDataset:
    """Return a data set by its name, or that of an `.npz` file by its path.

    Args:
        name: Name of a source, or a path that ends in ".npz".
        overrides: Options that differ from the defaults; `get_options` lists all of a source.
    """
    source = get_source(name)
    return source(**fill_defaults(name, overrides))


def get_source(name: str) -> Callable[..., FederatedDataset]:
    """Return the function that makes the data set of this name or path from its options."""
    if name.endswith(".npz"):
        return partial(from_npz, name)
    if name in BUILT_IN_SOURCES:
        return BUILT_IN_SOURCES[name]
    is_known = name in CATALOG or name in list_installed()
    require(is_known, f"There is no data set '{name}'; {_suggest_name(name)}")
    return partial(load_federated, name)


def fill_defaults(name: str, overrides: dict[str, Any]) -> dict[str, Any]:
    """Return the overrides with the defaults of all other options that apply.

    Raise `InputError` for an override that is no option, or one without effect beside the others.
    """
    source = get_source(name)
    if isinstance(source, partial) and source.func is load_federated:
        return options.fill_defaults(name, get_dataset_defaults(name), overrides)
    defaults = {}
    for parameter in inspect.signature(source).parameters.values():
        if parameter.default is not inspect.Parameter.empty:
            defaults[parameter.name] = parameter.default
    for option in overrides:
        require(
            option in defaults,
            f"{name}: there is no option '{option}'; {suggest_name(option, defaults)}",
        )
    return defaults | overrides


def get_options(name: str) -> dict[str, Any]:
    """Return the options of a data set with their defaults."""
    return fill_defaults(name, {})


def _suggest_name(name: str) -> str:
    names = dict.fromkeys((*SOURCES, *list_installed()))
    return suggest_name(name, [*names, "FILE.npz"])
