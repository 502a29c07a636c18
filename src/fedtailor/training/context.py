"""The context of a run: method, model and data brought together, if they fit each other."""

from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from fedtailor import methods
from fedtailor.core.functionalize import seed_initialization
from fedtailor.core.task import (
    Task,
    classification,
    get_class_axis,
    regression,
    sequences,
    validate_task,
)
from fedtailor.core.types import BatchPlan, Method
from fedtailor.data.batching import BatchIndices, count_steps
from fedtailor.data.dataset import ExampleSpec, FederatedDataset
from fedtailor.data.examples import ClientExamples
from fedtailor.data.validation import find_overflow
from fedtailor.engines.client_state import ClientStateStore
from fedtailor.engines.context import EngineContext, resolve_device
from fedtailor.engines.device_data import DeviceDataset
from fedtailor.errors import MAX_INTEGER, InputError, is_number, require, summarize_error
from fedtailor.methods.hparams import RunFacts
from fedtailor.storage.memory import require_memory
from fedtailor.training.loop import check_cohort_size

BYTES_PER_STEP = 64
"""Bytes at the least that laying out the batches of a step takes on the host."""
ModelLike = nn.Module | Task | Callable[[], nn.Module | Task]


def get_cohort_size(context: EngineContext, cohort_size: int) -> int:
    """Return the clients per round: `cohort_size`, or 1 where the pool is the only client."""
    return 1 if context.method.data_view == "pooled" else cohort_size


def prepare_context(
    method: str | Method,
    model: ModelLike,
    data: FederatedDataset,
    *,
    rounds: int,
    cohort: int = 10,
    seed: int = 0,
    device: str = "cpu",
    client_state_dir: Path | None = None,
    **hparams: Any,
) -> EngineContext:
    """Return what an engine needs to know about a run.

    Args:
        method: A name that `fedtailor methods` lists, or a method that was built.
        model: A module, a function that makes one, or a task.
        data: The data set.
        rounds: Rounds of the run, from which schedules follow.
        cohort: Clients a round.
        seed: The seed of all random draws.
        device: The name of a device.
        client_state_dir: Where client states are kept; None keeps them in RAM.
        **hparams: Hyper-parameters of the method, if it is given by name.
    """
    _check_whole_number("rounds", rounds, is_signed=False)
    _check_whole_number("cohort", cohort, is_signed=False)
    _check_whole_number("seed", seed, is_signed=True)
    require(
        isinstance(data, FederatedDataset),
        f"fit: data must be a FederatedDataset, got {type(data).__name__}.",
    )
    torch_device = resolve_device(str(device))
    task = infer_task(model, data.example_spec, int(seed)).to(torch_device)
    if isinstance(method, Method):
        require(
            not hparams,
            f"fit: a built method takes no more hyper-parameters, got {', '.join(hparams)}.",
        )
        require(
            isinstance(model, Task),
            "fit: a built method needs the Task that it was built on as the model.",
        )
    else:
        require(isinstance(method, str), f"fit: method must be a name or a Method, got {method!r}.")
        task = task.copy_modules()  # so that runs beside each other do not share modules
        facts = compute_run_facts(data, int(rounds), int(cohort))
        resolved = methods.make_hparams(method, **hparams).resolve(facts)
        method = methods.load_method_module(method).build(task, resolved)
    view = get_data_view(method, data)
    client_states = ClientStateStore(view.clients.count, client_state_dir)
    context = EngineContext(method, task, view, int(seed), torch_device, client_states)
    check_cohort_size(context, get_cohort_size(context, int(cohort)))
    _check_batch_plans(context)
    _check_model_runs(context)
    return context


def _check_whole_number(name: str, value: Any, is_signed: bool) -> None:
    minimum = -(2**63) if is_signed else 0
    is_valid = is_number(value, integer=True) and value >= minimum
    condition = "" if is_signed else " and not negative"
    if isinstance(value, int) and abs(value) > MAX_INTEGER:
        condition += " that fits in 64 bits"
    require(is_valid, f"fit: {name} must be a whole number{condition}, got {value!r}.")


def compute_run_facts(data: FederatedDataset, rounds: int, cohort: int) -> RunFacts:
    """Return what hyper-parameters that were left open may follow from."""
    client_ids = data.groups["train"]
    return RunFacts(
        rounds=rounds,
        cohort_size=cohort,
        num_clients=len(client_ids),
        examples_per_client=float(data.clients.splits["train"].compute_sizes()[client_ids].mean()),
        num_server_examples=0 if data.server is None else len(data.server.x),
    )


def get_data_view(method: Method, data: FederatedDataset) -> FederatedDataset:
    """Return the data as the method sees them."""
    view = data
    if method.data_view == "pooled":
        view = data.with_pooled_client()
    elif method.data_view == "shared":
        view = data.with_shared_server_data()
    specs = [spec for phase in method.client.phases for spec in phase.plan.specs]
    if any(spec.split in ("support", "query") for spec in specs):
        return view.with_support()
    return view


def infer_task(model: ModelLike, example_spec: ExampleSpec, seed: int) -> Task:
    """Return the task that a model and the data imply, or the given one.

    Without classes it is a regression; with tokens and a target at each position, a task of
    sequences. A model that a function makes has its first weights drawn from `seed`.
    """
    if isinstance(model, Task):
        return model
    if not isinstance(model, nn.Module):
        require(
            callable(model),
            "fit: model must be an nn.Module, a function that makes one, or a Task, got "
            f"{model!r}.",
        )
        return infer_task(_build_model(model, seed), example_spec, seed)
    if example_spec.classes is None:
        return regression(model)
    if example_spec.tokens and example_spec.label_shape:
        return sequences(model, example_spec.padding, example_spec.unscored_tokens)
    return classification(model)


def _check_batch_plans(context: EngineContext) -> None:
    """Raise an InputError for more steps or larger batches than there is memory to lay out."""
    method = context.method
    data = context.data
    for routine in (method.client, method.personalize):
        for phase in routine.phases:
            check_batch_plan(context, method.name, phase.plan, data.clients)
    for server_routine in (method.server, method.correct_update):
        if server_routine is not None and data.server is not None:
            for phase in server_routine.phases:
                check_batch_plan(context, method.name, phase.plan, data.server)


def check_batch_plan(
    context: EngineContext, name: str, plan: BatchPlan, examples: ClientExamples
) -> None:
    """Raise an InputError for more steps or larger batches than there is memory to lay out.

    Args:
        context: The run.
        name: What the message begins with.
        plan: The steps and batches.
        examples: What batches are drawn from.
    """
    num_steps = plan.steps
    if num_steps is None:
        client_ids = np.arange(examples.count)
        steps_per_epoch = count_steps(plan._replace(epochs=1), examples, client_ids)
        num_steps = (plan.epochs or 0) * int(steps_per_epoch.max(initial=0))
    require_memory(
        f"{name}: laying out {num_steps:,} steps of a client",
        num_steps * BYTES_PER_STEP,
        "choose fewer steps or epochs",
    )
    itemsize = context.task.dtype.itemsize
    for spec in plan.specs:
        size = spec.size or 0
        num_bytes = size * prod(examples.x.shape[1:]) * itemsize
        require_memory(
            f"{name}: a batch of {size:,} examples",
            num_bytes,
            "choose a smaller batch",
            str(context.device),
        )


def _build_model(factory: Callable[[], nn.Module | Task], seed: int) -> nn.Module | Task:
    """Return what the user's function makes; raise an `InputError` if that is no model."""
    try:
        with seed_initialization(seed):
            model = factory()
    except InputError:
        raise
    except (Exception, MemoryError) as error:
        raise InputError(
            f"fit: model must be a function that makes one without arguments, but it failed with "
            f"{summarize_error(error)}."
        ) from error
    require(
        isinstance(model, nn.Module | Task),
        f"fit: model must be a function that makes an nn.Module or a Task, but it returned "
        f"{model!r}.",
    )
    return model


def _check_range(name: str, owner: str, examples: ClientExamples, task: Task, scale: float) -> None:
    """Raise an `InputError` for numbers that overflow the type that the model calculates in.

    Args:
        name: Data set that the error names.
        owner: "clients" or "server".
        examples: Their examples.
        task: The task.
        scale: Factor of x.
    """
    largest = torch.finfo(task.dtype).max
    for column_name, column, limit in (
        ("x", examples.x, largest / scale),
        ("y", examples.y, largest),
    ):
        row = find_overflow(column, limit)
        require(
            row is None,
            f"{name}: {column_name} of example {row} of the {owner} overflows the model's "
            f"{task.dtype}; make its numbers smaller.",
        )


def _check_model_runs(context: EngineContext) -> None:
    """Run the model once on a few real examples of the clients, and of the server."""
    data = context.data
    _check_range(data.name, "clients", data.clients, context.task, data.scale)
    if data.server is not None:
        _check_range(data.name, "server", data.server, context.task, data.scale)
    _check_model_runs_on(context, data.clients, context.make_client_dataset())
    server_dataset = context.make_server_dataset()
    if data.server is not None and server_dataset is not None:
        _check_model_runs_on(context, data.server, server_dataset)


def _check_model_runs_on(
    context: EngineContext, examples: ClientExamples, dataset: DeviceDataset
) -> None:
    data = context.data
    rows = torch.from_numpy(_select_probe_rows(examples, data.tokens))
    mask = torch.ones(len(rows), dtype=torch.bool)
    key = torch.zeros((), dtype=torch.int64)
    batch = dataset.load_batch(BatchIndices(rows, mask, key))
    outputs = validate_task(context.task, batch.x, batch.y)
    if context.task.kind in ("classification", "sequences"):
        num_outputs = outputs.shape[get_class_axis(context.task)]
        require(
            num_outputs >= (data.classes or 0),
            f"Task: the model has outputs for {num_outputs} classes, "
            f"but data set '{data.name}' has {data.classes}.",
        )


def _select_probe_rows(examples: ClientExamples, has_tokens: bool) -> np.ndarray:
    """Return the first and the last example, and for tokens those with the extreme tokens."""
    index = examples.splits["train"].index
    rows = [index[0], index[-1]]
    if has_tokens:
        flat = examples.x.reshape(len(examples.x), -1)
        rows += [flat.min(1).argmin(), flat.max(1).argmax()]
    return np.array(rows, dtype=np.int64)
