"""Methods, one file each, and the list of their names.

A new method is a file here and a name in `NAMES`. Wrappers go around methods and stand before them
with a plus: `fsl+fedsim`, `fsl+per+fedmeta`.
"""

from dataclasses import fields
from functools import cache
from importlib import import_module
from typing import Any, cast

from fedtailor.core.task import Task
from fedtailor.core.types import Method
from fedtailor.errors import InputError, suggest_name
from fedtailor.methods.wrappers.composition import WRAPPERS, Composition, MethodModule

__all__ = ["NAMES", "WRAPPERS", "MethodModule", "build", "load_method_module", "make_hparams"]

NAMES = (
    "local",
    "centralized",
    "fedavg",
    "fedprox",
    "scaffold",
    "feddyn",
    "pfedme",
    "ditto",
    "apfl",
    "fedrep",
    "fedper",
    "lg-fedavg",
    "reptile",
    "per-fedavg",
    "fedmeta",
    "fedmeta-per",
    "fsl",
    "fsl-p",
    "ds",
    "fedsim",
    "afml",
)
"""All methods, in the order in which they are listed; the file of `lg-fedavg` is lg_fedavg.py."""


def load_method_module(name: str) -> MethodModule:
    """Return the file of a method, or a stand-in with the same attributes for a composition."""
    *wrapper_names, method_name = name.split("+")
    if method_name not in NAMES:
        raise InputError(f"There is no method '{method_name}'; {suggest_name(method_name, NAMES)}")
    if wrapper_names:
        return _load_composition(name)
    return cast(MethodModule, import_module(f"{__name__}.{method_name.replace('-', '_')}"))


@cache
def _load_composition(name: str) -> MethodModule:
    # Cached, so that one name has one class of hyper-parameters.
    *wrapper_names, method_name = name.split("+")
    inner = load_method_module(method_name)
    return cast(MethodModule, Composition(name, tuple(wrapper_names), inner))


def make_hparams(name: str, **options: Any) -> Any:
    """Return a method's hyper-parameters: `options` by name, defaults for the others."""
    hparams_class = load_method_module(name).HParams
    valid_names = [hparam.name for hparam in fields(hparams_class)]
    for option in options:
        if option not in valid_names:
            raise InputError(
                f"{name} has no hyper-parameter '{option}'; {suggest_name(option, valid_names)}"
            )
    return hparams_class(**options)


def build(name: str, task: Task, **options: Any) -> Method:
    """Return a method on a task.

    Args:
        name: A name in `NAMES`, or a composition.
        task: The model with its loss.
        options: Hyper-parameters by name.
    """
    return load_method_module(name).build(task, make_hparams(name, **options))
