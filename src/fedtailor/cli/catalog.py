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
from fedtailor import methods
from fedtailor.core import trees
from fedtailor.core.functionalize import seeded_init
from fedtailor.core.task import Task, classification
from fedtailor.core.types import Batch, Method, ServerState
from fedtailor.data.sources import get_attributes
from fedtailor.models import mlp

PROBE_MODEL_SIZES = (20, (16,), 4)
"""Inputs, hidden layers and classes of the mlp that costs are measured on."""
PROBE_BATCH_SIZE = 8
"""Examples of each of a step's batches when costs are measured."""


def list_methods() -> list[dict[str, Any]]:
    """Every method."""
    return [describe_method(name) for name in methods.NAMES]


def describe_method(name: str) -> dict[str, Any]:
    """One method: its docstring with the equations, what it needs and costs, and its hyper-parameters."""
    description, method = (
        inspect.cleandoc(methods.load_method_module(name).__doc__),
        methods.build(name, build_probe_task()),
    )
    cost, fedavg_cost = measure_cost(method), _measure_fedavg()
    return {
        "method": name,
        "summary": parse_summary(description),
        "paper": "; ".join(
            dict.fromkeys(filter(None, map(parse_paper, _collect_docstrings(name))))
        ),
        "needs": ", ".join(_list_needs(method)) or "-",
        "bytes": round(cost.bytes_sent / fedavg_cost.bytes_sent, 1),
        "gradients": round(cost.flops / fedavg_cost.flops, 1) if method.client.phases else None,
        "not_averaged": find_secure_aggregation_obstacle(method),
        "description": description,
        "hparams": _list_hparams(name),
    }


def list_wrappers() -> list[dict[str, str]]:
    """Every word that can be put before a method's name."""
    summaries = {word: wrapper.description for word, wrapper in methods.WRAPPERS.items()}
    files = {
        word: methods.load_method_module(word).__doc__
        for word in summaries
        if word in methods.NAMES
    }
    return [
        {
            "name": word,
            "summary": parse_summary(inspect.cleandoc(description)),
            "example": f"{word}+fedprox",
        }
        for word, description in (summaries | files).items()
    ]


def find_secure_aggregation_obstacle(method: Method) -> str:
    """Why a method cannot run under secure aggregation, which shows the server only averages; "": it can."""
    if method.data_view == "pooled":
        return "the data itself is gathered in one place"
    if method.correct_update is not None:
        return "the server corrects each upload by itself"
    if method.aggregate is not None:
        return "the server combines the uploads by a rule of its own"
    return "clients offer what they keep to newcomers" if method.num_offered_states else ""


def parse_summary(description: str) -> str:
    """What the first line of a docstring says behind the name and before the paper."""
    summary = description.splitlines()[0].partition(": ")[2]
    return re.sub(r"\s*\([^()]*\)\.?$", "", summary).removesuffix(".")


def parse_paper(description: str) -> str:
    """The paper in the parentheses that end the first line of a docstring; "" if there are none."""
    found = re.search(r"\(([^()]*)\)\.?\s*$", description.strip().splitlines()[0])
    return found[1] if found else ""


def _collect_docstrings(name: str) -> list[str]:
    """The docstrings of a method and of what is around it."""
    *words, method = name.split("+")
    return [
        *(methods.WRAPPERS[word].description for word in words),
        methods.load_method_module(method).__doc__,
    ]


def _list_hparams(name: str) -> list[dict[str, Any]]:
    """The hyper-parameters of a method, with default and meaning."""
    hparams_class, defaults = methods.load_method_module(name).HParams, methods.make_hparams(name)
    return [
        {
            "hyper-parameter": each.name,
            "default": getattr(defaults, each.name),
            "meaning": each.metadata.get("meaning", ""),
        }
        for each in fields(hparams_class)
    ]


class MeasuredCost(NamedTuple):
    """What was counted in a client's round."""

    bytes_sent: int  # bytes down and up
    flops: int  # floating-point operations of its steps


@cache
def build_probe_task() -> Task:
    """The task that methods are built on to be measured."""
    with seeded_init(0):
        return classification(mlp(*PROBE_MODEL_SIZES))


def _init_server_state(method: Method) -> ServerState:
    """The server before the first round."""
    params, zero = build_probe_task().params, torch.zeros((), dtype=torch.int64)
    return ServerState(params, zero, zero, method.init(params))


def measure_cost(method: Method) -> MeasuredCost:
    """What a round of one client costs, with one step of each of its phases."""
    inputs, state = PROBE_MODEL_SIZES[0], _init_server_state(method)
    broadcast, client_state = method.broadcast(state), method.init_client_state(state)
    zero = torch.zeros((), dtype=torch.int64)
    batch = Batch(
        torch.ones(PROBE_BATCH_SIZE, inputs),
        zero.repeat(PROBE_BATCH_SIZE),
        torch.ones(PROBE_BATCH_SIZE),
        zero,
    )
    carry = method.client.init(broadcast, client_state)
    with FlopCounterMode(display=False) as counter:
        for phase in method.client.phases:
            carry = phase.step(broadcast, carry, (batch,) * len(phase.plan.specs))
    update, client_state = method.client.finalize(broadcast, carry)
    offered_bytes = trees.nbytes(client_state) if method.num_offered_states else 0
    return MeasuredCost(
        trees.nbytes(broadcast) + trees.nbytes(update) + offered_bytes, counter.get_total_flops()
    )


@cache
def _measure_fedavg() -> MeasuredCost:
    """What the others are measured in: FedAvg."""
    return measure_cost(methods.build("fedavg", build_probe_task()))


def _list_needs(method: Method) -> list[str]:
    """What a method asks for, read off its record."""
    routines, is_shared = (
        [routine for routine in (method.server, method.correct_update) if routine is not None],
        method.data_view == "shared",
    )
    return [
        what
        for what, is_needed in (
            (
                "server data",
                is_shared
                or any(phase.plan.specs for routine in routines for phase in routine.phases),
            ),
            (
                "client state",
                bool(trees.leaves(method.init_client_state(_init_server_state(method)))),
            ),
            (
                "individual uploads",
                method.correct_update is not None or method.aggregate is not None,
            ),
            ("pooled data", method.data_view == "pooled"),
            ("shared data", method.data_view == "shared"),
        )
        if is_needed
    ]


def list_datasets() -> list[dict[str, Any]]:
    """Every data set in a line, and whether it is on this machine."""
    names = (
        *sources.SOURCES,
        *(name for name in sources.list_installed() if name not in sources.SOURCES),
        "FILE.npz",
    )
    return [
        {key: describe_dataset(name)[key] for key in ("data", "summary", "here")} for name in names
    ]


def describe_dataset(name: str) -> dict[str, Any]:
    """One data set: what it is, and its options."""
    source = sources.get_source(name)
    description = inspect.getdoc(getattr(source, "func", source)) or ""
    status = "built in" if name in sources.BUILT_IN_SOURCES else ""
    if name in sources.CATALOG or name in sources.list_installed():
        known = sources.CATALOG.get(name)
        about = known.about if known else get_attributes(name)["about"]
        absent = "to be added" if known and known.remotes else "to be added --from PATH"
        status = "added" if name in sources.list_installed() else absent
        description = f"{about}\n\n{description}"
    return {
        "data": name,
        "summary": description.splitlines()[0],
        "here": status,
        "description": description,
        "options": [
            {"option": key, "default": value} for key, value in sources.get_options(name).items()
        ],
    }
