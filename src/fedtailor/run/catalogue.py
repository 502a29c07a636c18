"""What there is: methods and data sets, with what a user or a program wants to know of them."""

import inspect
import re
from dataclasses import fields
from typing import Any

import torch
from torch import nn

from fedtailor import data as sources
from fedtailor import methods, trees
from fedtailor.task import classification
from fedtailor.types import Method, State


def method_list() -> list[dict[str, Any]]:
    """Every method in a line."""
    return [{key: method_entry(name)[key] for key in ("method", "needs", "summary")} for name in methods.NAMES]


def method_entry(name: str) -> dict[str, Any]:
    """One method: its docstring with the equations, what it needs, and its hyper-parameters."""
    file = methods.file_of(name)
    description = inspect.cleandoc(file.__doc__)
    return {
        "method": name,
        "needs": ", ".join(_needs(methods.build(name, classification(nn.Linear(1, 2))))) or "-",
        "summary": description.splitlines()[0].partition(": ")[2],
        "description": description,
        "hyper": [
            {
                "hyper-parameter": field.name,
                "default": field.default,
                "meaning": _comments(file.Hyper).get(field.name, ""),
            }
            for field in fields(file.Hyper)
        ],
    }


def _needs(method: Method) -> list[str]:
    """What a method asks for, read off its record."""
    params, zero = classification(nn.Linear(1, 2)).params, torch.zeros((), dtype=torch.int64)
    memory = method.new_memory(State(params, zero, zero, method.init(params)))
    works = [work for work in (method.server, method.correct) if work is not None]
    return [
        what
        for what, needed in (
            ("server data", any(phase.plan.draws for work in works for phase in work.phases)),
            ("client memory", bool(trees.leaves(memory))),
            ("individual uploads", method.correct is not None or method.combine is not None),
            ("pooled data", method.view == "pooled"),
        )
        if needed
    ]


def _comments(kind: type[Any]) -> dict[str, str]:
    """The comment behind each field, where it is written."""
    found: dict[str, str] = {}
    for cls in reversed(kind.__mro__[:-1]):
        found |= dict(re.findall(r"^    (\w+): [^#\n]*#\s*(.+)$", inspect.getsource(cls), re.MULTILINE))
    return found


def data_list() -> list[dict[str, Any]]:
    """Every data set in a line."""
    return [{key: data_entry(name)[key] for key in ("data", "summary")} for name in (*sources.SOURCES, "FILE.npz")]


def data_entry(name: str) -> dict[str, Any]:
    """One data set: what it is, and its options."""
    source = sources.source_of(name)
    description = inspect.getdoc(getattr(source, "func", source)) or ""
    return {
        "data": name,
        "summary": description.splitlines()[0],
        "description": description,
        "options": [{"option": key, "default": value} for key, value in sources.options_of(name).items()],
    }
