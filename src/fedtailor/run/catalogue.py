"""What there is: methods and data sets, with what a user or a program wants to know of them.

What a method costs is measured, not written down: a client takes one step of each of its phases on a small model.
"""

import inspect
import re
from dataclasses import fields
from functools import cache
from typing import Any, NamedTuple

import torch
from torch.utils.flop_counter import FlopCounterMode

from fedtailor import data as sources
from fedtailor import methods, trees
from fedtailor.data.sets import attributes_of
from fedtailor.models import mlp
from fedtailor.purity import drawn_from
from fedtailor.task import Task, classification
from fedtailor.types import Batch, Method, State

MEASURED_ON = (20, (16,), 4)
"""Inputs, hidden layers and classes of the mlp that costs are measured on."""
EXAMPLES = 8
"""Examples of each of a step's batches when costs are measured."""


def method_list() -> list[dict[str, Any]]:
    """Every method."""
    return [method_entry(name) for name in methods.NAMES]


def method_entry(name: str) -> dict[str, Any]:
    """One method: its docstring with the equations, what it needs and costs, and its hyper-parameters."""
    description, method = inspect.cleandoc(methods.file_of(name).__doc__), methods.build(name, measuring_task())
    found, unit = measured(method), _unit()
    return {
        "method": name,
        "summary": summary_of(description),
        "paper": "; ".join(dict.fromkeys(filter(None, map(paper_of, _sources(name))))),
        "needs": ", ".join(_needs(method)) or "-",
        "sends": round(found.sent / unit.sent, 1),
        "gradients": round(found.flops / unit.flops, 1) if method.client.phases else None,
        "not_averaged": why_not_averaged(method),
        "description": description,
        "hyper": _hyper(name),
    }


def wrapper_list() -> list[dict[str, str]]:
    """Every word that can be put before a method's name."""
    own = {word: wrapper.about for word, wrapper in methods.WRAPPERS.items()}
    files = {word: methods.file_of(word).__doc__ for word in own if word in methods.NAMES}
    return [
        {"word": word, "summary": summary_of(inspect.cleandoc(description)), "example": f"{word}+fedprox"}
        for word, description in (own | files).items()
    ]


def why_not_averaged(method: Method) -> str:
    """Why a method cannot run under secure aggregation, which shows the server only averages; "": it can."""
    if method.view == "pooled":
        return "the data itself is gathered in one place"
    if method.correct is not None:
        return "the server corrects each upload by itself"
    if method.combine is not None:
        return "the server combines the uploads by a rule of its own"
    return "clients offer what they keep to newcomers" if method.tries else ""


def summary_of(description: str) -> str:
    """What the first line of a docstring says behind the name and before the paper."""
    said = description.splitlines()[0].partition(": ")[2]
    return re.sub(r"\s*\([^()]*\)\.?$", "", said).removesuffix(".")


def paper_of(description: str) -> str:
    """The paper in the parentheses that end the first line of a docstring; "" if there are none."""
    found = re.search(r"\(([^()]*)\)\.?\s*$", description.strip().splitlines()[0])
    return found[1] if found else ""


def _sources(name: str) -> list[str]:
    """The docstrings of a method and of what is around it."""
    *words, method = name.split("+")
    return [*(methods.WRAPPERS[word].about for word in words), methods.file_of(method).__doc__]


def _hyper(name: str) -> list[dict[str, Any]]:
    """The hyper-parameters of a method, with default and meaning."""
    kind, defaults = methods.file_of(name).Hyper, methods.hyper_of(name)
    return [
        {
            "hyper-parameter": each.name,
            "default": getattr(defaults, each.name),
            "meaning": each.metadata.get("meaning", ""),
        }
        for each in fields(kind)
    ]


class Measured(NamedTuple):
    """What was counted in a client's round."""

    sent: int  # bytes down and up
    flops: int  # floating-point operations of its steps


@cache
def measuring_task() -> Task:
    """The task that methods are built on to be measured."""
    with drawn_from(0):
        return classification(mlp(*MEASURED_ON))


def _state(method: Method) -> State:
    """The server before the first round."""
    params, zero = measuring_task().params, torch.zeros((), dtype=torch.int64)
    return State(params, zero, zero, method.init(params))


def measured(method: Method) -> Measured:
    """What a round of one client costs, with one step of each of its phases."""
    inputs, state = MEASURED_ON[0], _state(method)
    sent, kept = method.broadcast(state), method.new_memory(state)
    zero = torch.zeros((), dtype=torch.int64)
    batch = Batch(torch.ones(EXAMPLES, inputs), zero.repeat(EXAMPLES), torch.ones(EXAMPLES), zero)
    carry = method.client.start(sent, kept)
    with FlopCounterMode(display=False) as counter:
        for phase in method.client.phases:
            carry = phase.step(sent, carry, (batch,) * len(phase.plan.draws))
    change, kept = method.client.finish(sent, carry)
    offered = trees.nbytes(kept) if method.tries else 0
    return Measured(trees.nbytes(sent) + trees.nbytes(change) + offered, counter.get_total_flops())


@cache
def _unit() -> Measured:
    """What the others are measured in: FedAvg."""
    return measured(methods.build("fedavg", measuring_task()))


def _needs(method: Method) -> list[str]:
    """What a method asks for, read off its record."""
    works, shared = [work for work in (method.server, method.correct) if work is not None], method.view == "shared"
    return [
        what
        for what, needed in (
            ("server data", shared or any(phase.plan.draws for work in works for phase in work.phases)),
            ("client memory", bool(trees.leaves(method.new_memory(_state(method))))),
            ("individual uploads", method.correct is not None or method.combine is not None),
            ("pooled data", method.view == "pooled"),
            ("shared data", method.view == "shared"),
        )
        if needed
    ]


def data_list() -> list[dict[str, Any]]:
    """Every data set in a line, and whether it is on this machine."""
    names = (*sources.SOURCES, *(name for name in sources.installed() if name not in sources.SOURCES), "FILE.npz")
    return [{key: data_entry(name)[key] for key in ("data", "summary", "here")} for name in names]


def data_entry(name: str) -> dict[str, Any]:
    """One data set: what it is, and its options."""
    source = sources.source_of(name)
    description = inspect.getdoc(getattr(source, "func", source)) or ""
    here = "built in" if name in sources.OWN else ""
    if name in sources.KNOWN or name in sources.installed():
        known = sources.KNOWN.get(name)
        about = known.about if known else attributes_of(name)["about"]
        absent = "to be added" if known and known.remotes else "to be added --from PATH"
        here = "added" if name in sources.installed() else absent
        description = f"{about}\n\n{description}"
    return {
        "data": name,
        "summary": description.splitlines()[0],
        "here": here,
        "description": description,
        "options": [{"option": key, "default": value} for key, value in sources.options_of(name).items()],
    }
