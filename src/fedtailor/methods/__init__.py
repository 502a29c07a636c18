"""Methods, one file each. This is the only list of their names: a new method is a file here and a name below.

Some can be put around others, and are then written before them with a plus: `fsl+fedsim`, `fsl+per+fedmeta`.
"""

from dataclasses import fields
from functools import cache
from importlib import import_module
from typing import Any, cast

from fedtailor.errors import InputError, nearest
from fedtailor.methods.composed import WRAPPERS, Composition, MethodFile
from fedtailor.task import Task
from fedtailor.types import Method

__all__ = ["NAMES", "WRAPPERS", "MethodFile", "build", "file_of", "hyper_of"]

NAMES = (
    "local",
    "centralised",
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


def file_of(name: str) -> MethodFile:
    """The file of a method, or what stands for that of a composition."""
    *words, method = name.split("+")
    if method not in NAMES:
        raise InputError(f"There is no method '{method}'; {nearest(method, NAMES)}")
    if words:
        return _composition(name)
    return cast(MethodFile, import_module(f"{__name__}.{method.replace('-', '_')}"))


@cache
def _composition(name: str) -> MethodFile:
    *words, method = name.split("+")
    return cast(MethodFile, Composition(name, tuple(words), file_of(method)))


def hyper_of(name: str, **options: Any) -> Any:
    """The hyper-parameters of a method, with the given ones set."""
    kind = file_of(name).Hyper
    valid = [field.name for field in fields(kind)]
    for option in options:
        if option not in valid:
            raise InputError(f"{name} has no hyper-parameter '{option}'; {nearest(option, valid)}")
    return kind(**options)


def build(name: str, task: Task, **options: Any) -> Method:
    """A method by name, with hyper-parameters by name."""
    return file_of(name).build(task, hyper_of(name, **options))
