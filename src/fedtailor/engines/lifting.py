"""Objects that differ in nothing but floating numbers, as one object with tensors in the places where they differ.

Methods are top-level functions bound by `partial`, and records of these, so that two of them with other step sizes are
the same tree but for some numbers. With a row of these numbers under `vmap`, one function does what each of them does.
"""

from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from functools import partial
from types import MethodType
from typing import Any

import torch
from torch import Tensor

from fedtailor.task import Task

Build = Callable[[Sequence[Tensor]], Any]


class CannotLiftError(Exception):
    """The objects differ in more than floating numbers."""


def lifting(objects: Sequence[Any], rows: list[list[float]]) -> Build:
    """How to make any of the objects from its own numbers; those that are needed are added to the rows.

    Raises `CannotLiftError` if the objects differ in more than floating numbers.
    """
    first = objects[0]
    if all(each is first for each in objects):
        return partial(_the_same, first)
    if any(type(each) is not type(first) for each in objects):
        raise CannotLiftError(f"{first!r} is of another kind than {objects[-1]!r}")
    if isinstance(first, float):
        return _number(objects, rows)
    if isinstance(first, Task):
        return _task(objects)
    if isinstance(first, partial):
        parts = [(each.func, each.args, each.keywords) for each in objects]
        return partial(_made, _bound, _each(parts, rows))
    if isinstance(first, MethodType):
        return partial(_made, MethodType, _each([(each.__func__, each.__self__) for each in objects], rows))
    if isinstance(first, dict):
        return partial(_made, partial(_keyed, tuple(first)), _each([_values(first, each) for each in objects], rows))
    if isinstance(first, tuple):
        make = type(first) if hasattr(first, "_fields") else _as_tuple
        return partial(_made, make, _each(objects, rows))
    if is_dataclass(first):
        names = [field.name for field in fields(first)]
        parts = [tuple(getattr(each, name) for name in names) for each in objects]
        return partial(_made, partial(_changed, first, names), _each(parts, rows))
    if isinstance(first, Tensor) or any(each != first for each in objects):
        raise CannotLiftError(f"{first!r} is not {objects[-1]!r}")
    return partial(_the_same, first)


def _number(objects: Sequence[float], rows: list[list[float]]) -> Build:
    if all(each == objects[0] for each in objects):
        return partial(_the_same, objects[0])
    rows.append(list(objects))
    return partial(_row, len(rows) - 1)


def _task(objects: Sequence[Task]) -> Build:
    """Twins of one task calculate alike, unless they have constants of their own."""
    first = objects[0]
    for each in objects:
        alike = each.constants.keys() == first.constants.keys() and each.compute == first.compute
        if not alike or not all(torch.equal(each.constants[name], first.constants[name]) for name in first.constants):
            raise CannotLiftError("the models have other constants")
    return partial(_the_same, first)


def _each(objects: Sequence[Sequence[Any]], rows: list[list[float]]) -> list[Build]:
    if any(len(each) != len(objects[0]) for each in objects):
        raise CannotLiftError("there are more parts in one than in another")
    return [lifting(parts, rows) for parts in zip(*objects, strict=True)]


def _values(first: dict[Any, Any], other: dict[Any, Any]) -> tuple[Any, ...]:
    if list(first) != list(other):
        raise CannotLiftError(f"{list(first)} are not {list(other)}")
    return tuple(other.values())


def _the_same(thing: Any, numbers: Sequence[Tensor]) -> Any:
    return thing


def _row(place: int, numbers: Sequence[Tensor]) -> Tensor:
    return numbers[place]


def _made(make: Callable[..., Any], parts: list[Build], numbers: Sequence[Tensor]) -> Any:
    return make(*(part(numbers) for part in parts))


def _bound(function: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    return partial(function, *args, **keywords)


def _as_tuple(*parts: Any) -> tuple[Any, ...]:
    return parts


def _keyed(names: tuple[Any, ...], *values: Any) -> dict[Any, Any]:
    return dict(zip(names, values, strict=True))


def _changed(like: Any, names: list[str], *values: Any) -> Any:
    """A record with other values, which are not checked again: they were when the objects were made."""
    made = object.__new__(type(like))
    for name, value in zip(names, values, strict=True):
        object.__setattr__(made, name, value)
    return made
