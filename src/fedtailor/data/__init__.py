"""Federated data sets: examples, the clients that have them, and where they come from.

Build a data set from arrays with `from_arrays`, or load one by name or from an `.npz` file with
`load`.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from fedtailor.data.builtin.arrays import SPLIT_DEFAULTS, SplitOptions, from_arrays
from fedtailor.data.builtin.digits import digits, load_digits
from fedtailor.data.builtin.npz import from_npz
from fedtailor.data.builtin.synthetic import synthetic
from fedtailor.data.dataset import FederatedDataset, Summary, validate_dataset
from fedtailor.data.examples import ClientExamples, Split, single_client
from fedtailor.data.partition.build import get_dataset_defaults, load_federated
from fedtailor.data.partition.option_help import format_option_help
from fedtailor.data.partition.options import resolve_options
from fedtailor.data.sources import CATALOG, add, add_custom, get_attributes, list_installed
from fedtailor.data.store import DatasetAttributes
from fedtailor.errors import require, suggest_name

__all__ = [
    "BUILT_IN_SOURCES",
    "CATALOG",
    "SOURCES",
    "ClientExamples",
    "DataSource",
    "DatasetAttributes",
    "FederatedDataset",
    "Split",
    "SplitOptions",
    "Summary",
    "add",
    "add_custom",
    "digits",
    "fill_defaults",
    "format_option_help",
    "from_arrays",
    "from_npz",
    "get_options",
    "get_source",
    "list_installed",
    "load",
    "load_digits",
    "load_federated",
    "single_client",
    "synthetic",
    "validate_dataset",
]


@dataclass(frozen=True)
class DataSource:
    """Source of a data set: how it is loaded, which options it has, and what it is."""

    name: str
    load: Callable[..., FederatedDataset]  # called with the options as keywords
    options: Mapping[str, Any]  # defaults of the options that apply if none is given
    summary: str  # one line
    description: str  # several lines, on the options too
    is_stored: bool  # partitioned by `load_federated`; which options apply depends on others


def _get_defaults(function: Callable[..., FederatedDataset]) -> dict[str, Any]:
    """Return the options of a function with their defaults, those of `SplitOptions` included."""
    defaults: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            defaults |= SPLIT_DEFAULTS
        elif parameter.default is not inspect.Parameter.empty:
            defaults[parameter.name] = parameter.default
    return defaults


BUILT_IN_SOURCES = {
    "digits": DataSource(
        name="digits",
        load=digits,
        options=_get_defaults(digits),
        summary="Handwritten digits with few labels for each client and uneven sizes",
        description=inspect.getdoc(digits) or "",
        is_stored=False,
    ),
    "synthetic": DataSource(
        name="synthetic",
        load=synthetic,
        options=_get_defaults(synthetic),
        summary="Synthetic(alpha, beta): clients with linear models and inputs of their own",
        description=inspect.getdoc(synthetic) or "",
        is_stored=False,
    ),
}
"""Data sets that come with the library, by name."""

SOURCES = (*BUILT_IN_SOURCES, *CATALOG)
"""Names of all known data sets; those of the catalog must be added before they can be loaded."""


def load(name: str, **overrides: Any) -> FederatedDataset:
    """Return a data set by its name, or that of an `.npz` file by its path.

    Args:
        name: Name of a source, or a path that ends in ".npz".
        overrides: Options that differ from the defaults; `get_options` lists all of a source.
    """
    return get_source(name).load(**fill_defaults(name, overrides))


def get_source(name: str) -> DataSource:
    """Return the source of this name or path."""
    require(isinstance(name, str), f"A data set must be named by a string, got {name!r}.")
    if name.endswith(".npz"):
        return _make_file_source(name)
    if name in BUILT_IN_SOURCES:
        return BUILT_IN_SOURCES[name]
    is_known = name in CATALOG or name in list_installed()
    require(is_known, f"There is no data set '{name}'; {_suggest_name(name)}")
    return _make_stored_source(name)


def fill_defaults(name: str, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return the overrides with the defaults of all other options that apply.

    Raise `InputError` for an override that is no option, or one without effect beside the others.
    """
    source = get_source(name)
    if source.is_stored:
        return resolve_options(name, get_dataset_defaults(name), overrides)
    for option in overrides:
        require(
            option in source.options,
            f"{name}: there is no option '{option}'; {suggest_name(option, source.options)}",
        )
    return {**source.options, **overrides}


def get_options(name: str) -> dict[str, Any]:
    """Return the options of a data set with their defaults."""
    return dict(get_source(name).options)


def _make_file_source(path: str) -> DataSource:
    return DataSource(
        name=path,
        load=partial(from_npz, path),
        options=_get_defaults(partial(from_npz, path)),
        summary="A file with arrays `x`, `y` and `client`, one entry per example",
        description=inspect.getdoc(from_npz) or "",
        is_stored=False,
    )


def _make_stored_source(name: str) -> DataSource:
    about = get_attributes(name).about
    return DataSource(
        name=name,
        load=partial(load_federated, name),
        options=resolve_options(name, get_dataset_defaults(name), {}),
        summary=about,
        description=f"{about}\n\n{format_option_help()}",
        is_stored=True,
    )


def _suggest_name(name: str) -> str:
    names = dict.fromkeys((*SOURCES, *list_installed()))
    return suggest_name(name, [*names, "FILE.npz"])
