"""Training from Python: `fit` a method on data, look at every client's scores, tailor the model to a new person."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from fedtailor import methods
from fedtailor.core.functionalize import seeded_init
from fedtailor.core.task import (
    Task,
    classification,
    get_class_axis,
    regression,
    sequences,
    validate_task,
)
from fedtailor.core.types import Method
from fedtailor.data.batching import BatchIndices
from fedtailor.data.dataset import ExampleSpec, FederatedDataset
from fedtailor.data.examples import ClientExamples
from fedtailor.engines import factory
from fedtailor.engines.client_state import ClientStateStore
from fedtailor.engines.context import EngineContext
from fedtailor.errors import is_number, require
from fedtailor.methods.hparams import RunFacts
from fedtailor.training.loop import check_cohort_size

ModelLike = nn.Module | Task | Callable[[], nn.Module | Task]


def get_cohort_size(context: EngineContext, cohort: int) -> int:
    """How many clients a round has: the pool is alone."""
    return 1 if context.method.data_view == "pooled" else cohort


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
    """Brings method, model and data together, and refuses what does not fit."""
    for name, value, minimum in (
        ("rounds", rounds, 0),
        ("cohort", cohort, 0),
        ("seed", seed, -(2**63)),
    ):
        is_valid = is_number(value, integer=True) and value >= minimum
        require(
            is_valid,
            f"fit: {name} must be a whole number{'' if minimum else ' and not negative'}, got {value!r}.",
        )
    rounds, cohort, seed = int(rounds), int(cohort), int(seed)
    require(
        isinstance(data, FederatedDataset),
        f"fit: data must be a FederatedDataset, got {type(data).__name__}.",
    )
    torch_device = factory.resolve_device(str(device))
    task = infer_task(model, data.example_spec, seed).to(torch_device)
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
        resolved = methods.make_hparams(method, **hparams).resolve(
            compute_run_facts(data, rounds, cohort)
        )
        method = methods.load_method_module(method).build(task, resolved)
    view = get_data_view(method, data)
    context = EngineContext(
        method,
        task,
        view,
        seed,
        torch_device,
        ClientStateStore(view.clients.count, client_state_dir),
    )
    check_cohort_size(context, get_cohort_size(context, cohort))
    _check_model_runs(context)
    return context


def compute_run_facts(data: FederatedDataset, rounds: int, cohort: int) -> RunFacts:
    """What a method may know of a run before it begins."""
    client_ids = data.groups["train"]
    examples = float(data.clients.splits["train"].sizes()[client_ids].mean())
    return RunFacts(
        rounds, cohort, len(client_ids), examples, 0 if data.server is None else len(data.server.x)
    )


def get_data_view(method: Method, data: FederatedDataset) -> FederatedDataset:
    """The data as the method sees it."""
    views = {"pooled": data.with_pooled_client, "shared": data.with_shared_server_data}
    view = views[method.data_view]() if method.data_view in views else data
    used_splits = {
        batch_spec.split for phase in method.client.phases for batch_spec in phase.plan.specs
    }
    return view.with_support() if used_splits & {"support", "query"} else view


def infer_task(model: ModelLike, example_spec: ExampleSpec, seed: int) -> Task:
    """The task that a model and the data imply, unless a task is given.

    Without classes there are numbers to predict; with tokens and a target at each place, sequences.
    """
    if isinstance(model, Task):
        return model
    if not isinstance(model, nn.Module):
        require(
            callable(model),
            f"fit: model must be an nn.Module, a function that makes one, or a Task, got {model!r}.",
        )
        with seeded_init(seed):
            built_model: nn.Module | Task = model()
        return infer_task(built_model, example_spec, seed)
    if example_spec.tokens and example_spec.label_shape and example_spec.classes is not None:
        return sequences(model, example_spec.padding, example_spec.unscored_tokens)
    return regression(model) if example_spec.classes is None else classification(model)


def _check_model_runs(context: EngineContext) -> None:
    """Runs the model once on a few real examples, for tokens on the lowest and the highest."""
    data, datasets = (
        context.data,
        (
            (context.data.clients, context.make_client_dataset()),
            (context.data.server, context.make_server_dataset()),
        ),
    )
    for examples, dataset in datasets:
        if examples is None or dataset is None:
            continue
        rows = torch.from_numpy(_select_probe_rows(examples, data.tokens))
        mask, key = torch.ones(len(rows), dtype=torch.bool), torch.zeros((), dtype=torch.int64)
        batch = dataset.load_batch(BatchIndices(rows, mask, key))
        outputs, classes = validate_task(context.task, batch.x, batch.y), data.classes
        has_classes = context.task.kind in ("classification", "sequences")
        num_outputs = outputs.shape[get_class_axis(context.task)]
        require(
            not has_classes or num_outputs >= (classes or 0),
            f"Task: the model tells {num_outputs} classes apart, but data set '{data.name}' has {classes}.",
        )


def _select_probe_rows(examples: ClientExamples, tokens: bool) -> np.ndarray:
    """The first and the last example, and for tokens those with the lowest and the highest one."""
    index = examples.splits["train"].index
    rows = [index[0], index[-1]]
    if tokens:
        flat = examples.x.reshape(len(examples.x), -1)
        rows += [flat.min(1).argmin(), flat.max(1).argmax()]
    return np.array(rows, dtype=np.int64)
