"""Methods, one file each. This is the only list of their names: a new method is a file here and a name below.

Some can be put around others, and are then written before them with a plus: `fsl+fedsim`, `fsl+per+fedmeta`.
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


def load_method_module(name: str) -> MethodModule:
    """The file of a method, or what stands for that of a composition."""
    *wrapper_names, method = name.split("+")
    if method not in NAMES:
        raise InputError(f"There is no method '{method}'; {suggest_name(method, NAMES)}")
    if wrapper_names:
        return _load_composition(name)
    return cast(MethodModule, import_module(f"{__name__}.{method.replace('-', '_')}"))


@cache
def _load_composition(name: str) -> MethodModule:
    *wrapper_names, method = name.split("+")
    return cast(MethodModule, Composition(name, tuple(wrapper_names), load_method_module(method)))


def make_hparams(name: str, **options: Any) -> Any:
    """The hyper-parameters of a method, with the given ones set."""
    kind = load_method_module(name).HParams
    valid = [field.name for field in fields(kind)]
    for option in options:
        if option not in valid:
            raise InputError(
                f"{name} has no hyper-parameter '{option}'; {suggest_name(option, valid)}"
            )
    return kind(**options)


def build(name: str, task: Task, **options: Any) -> Method:
    """A method by name, with hyper-parameters by name."""
    return load_method_module(name).build(task, make_hparams(name, **options))
