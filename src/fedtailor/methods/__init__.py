"""Methods, one file each. This is the only list of their names: a new method is a file here and a name below."""

from collections.abc import Callable
from dataclasses import fields
from importlib import import_module
from typing import Any, Protocol, cast

from fedtailor.errors import InputError, nearest
from fedtailor.task import Task
from fedtailor.types import Method

NAMES = (
    "local",
    "centralised",
    "fedavg",
    "fedprox",
    "fedsim",
)


class MethodFile(Protocol):
    """What the file of a method offers: its hyper-parameters and a builder. Its docstring has the equations."""

    __doc__: str
    Hyper: type[Any]
    build: Callable[[Task, Any], Method]


def file_of(name: str) -> MethodFile:
    """The file of a method."""
    if name not in NAMES:
        raise InputError(f"There is no method '{name}'; {nearest(name, NAMES)}")
    return cast(MethodFile, import_module(f"{__name__}.{name.replace('-', '_')}"))


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
