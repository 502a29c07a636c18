"""Entries of the lists that `fedtailor methods` and `fedtailor data` print.

What a method costs is measured: a client takes one step of each of its phases on a small model.
"""

import inspect
import re
from dataclasses import fields
from functools import cache
from typing import Any, NamedTuple

import torch
from pydantic import BaseModel, ConfigDict
from torch.utils.flop_counter import FlopCounterMode

from fedtailor import data as sources
from fedtailor import methods
from fedtailor.core import trees
from fedtailor.core.functionalize import seed_initialization
from fedtailor.core.task import Task, classification
from fedtailor.core.types import Batch, Method, ServerState
from fedtailor.methods.hparams import describe_allowed_values, get_hparam_info
from fedtailor.models import mlp

PROBE_MODEL_SIZES = (20, (16,), 4)
"""Inputs, hidden layers and classes of the MLP that costs are measured on."""
PROBE_BATCH_SIZE = 8
"""Examples of each of a step's batches when costs are measured."""


class Entry(BaseModel):
    """An entry of a list: immutable, with the keys of its JSON as fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


# Methods


class HParamEntry(Entry):
    """A hyper-parameter of a method."""

    name: str
    default: Any
    allowed: str  # values, for readers
    meaning: str


class MethodEntry(Entry):
    """A method or a composition: its equations, needs, costs and hyper-parameters.

    `bytes` and `gradients` are multiples of FedAvg's.
    """

    method: str  # its name
    summary: str
    paper: str  # "" for none; several are separated by semicolons
    needs: str  # besides clients that train and a server that averages; "-" for nothing
    bytes: float  # sent by and to a client in a round
    gradients: float | None  # FLOPs of a step of each phase; None: clients do not train in rounds
    secure_aggregation_obstacle: str  # see `find_secure_aggregation_obstacle`
    description: str
    hparams: list[HParamEntry]


class WrapperEntry(Entry):
    """A wrapper that can go around a method."""

    name: str
    summary: str
    example: str


def list_methods() -> list[MethodEntry]:
    """Return the entries of all methods."""
    return [describe_method(name) for name in methods.NAMES]


def describe_method(name: str) -> MethodEntry:
    """Return the entry of a method or a composition."""
    description = inspect.cleandoc(methods.load_method_module(name).__doc__)
    method = methods.build(name, build_probe_task())
    cost = measure_cost(method)
    fedavg_cost = _measure_fedavg()
    gradients = None
    if method.client.phases:
        gradients = round(cost.flops / fedavg_cost.flops, 1)
    return MethodEntry(
        method=name,
        summary=parse_summary(description),
        paper="; ".join(_list_papers(name)),
        needs=", ".join(_list_needs(method)) or "-",
        bytes=round(cost.bytes_sent / fedavg_cost.bytes_sent, 1),
        gradients=gradients,
        secure_aggregation_obstacle=find_secure_aggregation_obstacle(method),
        description=description,
        hparams=_list_hparams(name),
    )


def list_wrappers() -> list[WrapperEntry]:
    """Return the entries of all wrappers."""
    entries = []
    for name, wrapper in methods.WRAPPERS.items():
        description = wrapper.description
        if name in methods.NAMES:
            # A wrapper that is a method too is described in more detail there.
            description = methods.load_method_module(name).__doc__
        summary = parse_summary(inspect.cleandoc(description))
        entries.append(WrapperEntry(name=name, summary=summary, example=f"{name}+fedprox"))
    return entries


def find_secure_aggregation_obstacle(method: Method) -> str:
    """Return why a method cannot run under secure aggregation; "" if it can.

    Secure aggregation shows the server nothing but weighted means over clients.
    """
    if method.data_view == "pooled":
        return "the data of all clients is gathered in one place"
    if method.correct_update is not None:
        return "the server corrects each upload separately"
    if method.aggregate is not None:
        return "the server combines the uploads by a rule other than the mean"
    if method.num_offered_states:
        return "clients offer their states to unseen clients"
    return ""


def parse_summary(description: str) -> str:
    """Return the first line of a docstring without the name before it and the paper behind it."""
    first_line = description.splitlines()[0]
    summary = first_line.partition(": ")[2]
    return re.sub(r"\s*\([^()]*\)\.?$", "", summary).removesuffix(".")


def parse_paper(description: str) -> str:
    """Return the parentheses that end the first line of a docstring; "" if there are none."""
    first_line = description.strip().splitlines()[0]
    match = re.search(r"\(([^()]*)\)\.?\s*$", first_line)
    return match[1] if match else ""


def _list_papers(name: str) -> list[str]:
    """Return the papers of a method and of the wrappers around it, each once."""
    *wrapper_names, method_name = name.split("+")
    docstrings = [methods.WRAPPERS[wrapper_name].description for wrapper_name in wrapper_names]
    docstrings.append(methods.load_method_module(method_name).__doc__)
    papers = [parse_paper(docstring) for docstring in docstrings]
    return list(dict.fromkeys(paper for paper in papers if paper))


def _list_hparams(name: str) -> list[HParamEntry]:
    hparams_class = methods.load_method_module(name).HParams
    defaults = methods.make_hparams(name)
    allowed = describe_allowed_values(hparams_class)
    return [
        HParamEntry(
            name=hparam.name,
            default=getattr(defaults, hparam.name),
            allowed=allowed[hparam.name],
            meaning=get_hparam_info(hparam).description,
        )
        for hparam in fields(hparams_class)
    ]


def _list_needs(method: Method) -> list[str]:
    """Return what a method needs besides clients that train and a server that averages."""
    routines = [method.server]
    if method.correct_update is not None:
        routines.append(method.correct_update)
    has_server_batches = any(
        phase.plan.specs for routine in routines if routine is not None for phase in routine.phases
    )
    client_state = method.init_client_state(_init_server_state(method))
    is_shared = method.data_view == "shared"
    is_needed = {
        "server data": is_shared or has_server_batches,
        "client state": bool(trees.leaves(client_state)),
        "individual uploads": method.correct_update is not None or method.aggregate is not None,
        "pooled data": method.data_view == "pooled",
        "shared data": is_shared,
    }
    return [need for need in is_needed if is_needed[need]]


# Costs of methods


class MeasuredCost(NamedTuple):
    """The cost of a client's round with one step of each phase."""

    bytes_sent: int  # down and up
    flops: int  # floating-point operations of the steps


@cache
def build_probe_task() -> Task:
    """Return the small task on which methods are built to be measured."""
    with seed_initialization(0):
        return classification(mlp(*PROBE_MODEL_SIZES))


def measure_cost(method: Method) -> MeasuredCost:
    """Run a client's round of a method that was built on the probe task, and count its cost."""
    state = _init_server_state(method)
    broadcast = method.broadcast(state)
    carry = method.client.init(broadcast, method.init_client_state(state))
    batch = _make_probe_batch()
    with FlopCounterMode(display=False) as counter:
        for phase in method.client.phases:
            batches = (batch,) * len(phase.plan.specs)
            carry = phase.step(broadcast, carry, batches)
    update, client_state = method.client.finalize(broadcast, carry)
    bytes_sent = trees.nbytes(broadcast) + trees.nbytes(update)
    if method.num_offered_states:
        # States that are offered to unseen clients travel as well.
        bytes_sent += trees.nbytes(client_state)
    return MeasuredCost(bytes_sent, counter.get_total_flops())


@cache
def _measure_fedavg() -> MeasuredCost:
    return measure_cost(methods.build("fedavg", build_probe_task()))


def _init_server_state(method: Method) -> ServerState:
    params = build_probe_task().params
    zero = torch.zeros((), dtype=torch.int64)
    return ServerState(params, zero, zero, method.init(params))


def _make_probe_batch() -> Batch:
    num_inputs, _, _ = PROBE_MODEL_SIZES
    zero = torch.zeros((), dtype=torch.int64)
    return Batch(
        torch.ones(PROBE_BATCH_SIZE, num_inputs),
        zero.repeat(PROBE_BATCH_SIZE),
        torch.ones(PROBE_BATCH_SIZE),
        zero,
    )


# Data sets


class OptionEntry(Entry):
    """An option of a data set."""

    name: str
    default: Any


class DatasetEntry(Entry):
    """A data set: what it contains, and its options."""

    data: str  # its name
    summary: str
    status: str  # on this machine: built in, added, or how to add it; "" for a file
    description: str
    options: list[OptionEntry]


def list_datasets() -> list[DatasetEntry]:
    """Return the entries of all data sets that can be loaded or added."""
    names = dict.fromkeys([*sources.SOURCES, *sources.list_installed(), "FILE.npz"])
    return [describe_dataset(name) for name in names]


def describe_dataset(name: str) -> DatasetEntry:
    """Return the entry of a data set."""
    source = sources.get_source(name)
    return DatasetEntry(
        data=name,
        summary=source.summary,
        status=_get_status(name),
        description=source.description,
        options=[OptionEntry(name=key, default=value) for key, value in source.options.items()],
    )


def _get_status(name: str) -> str:
    if name in sources.BUILT_IN_SOURCES:
        return "built in"
    if name in sources.list_installed():
        return "added"
    if name not in sources.CATALOG:
        return ""
    return "to be added" if sources.CATALOG[name].remotes else "to be added --from PATH"
