"""Training from Python: `fit` a method on data, look at every client's scores, tailor the model to a new person."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedtailor import engines, keyed, methods
from fedtailor.data.batching import Place
from fedtailor.data.dataset import FederatedDataset, Split, Units, sole_holder
from fedtailor.engines.base import Engine, Setting, Site, alone, decoded
from fedtailor.engines.memory import Memory
from fedtailor.errors import require
from fedtailor.purity import drawn_from
from fedtailor.run.evaluate import evaluate
from fedtailor.run.loop import Cost, Round, refuse_cohort, refuse_divergence, round_loop
from fedtailor.run.metrics import Scores
from fedtailor.task import Task, classification, probe, regression
from fedtailor.types import Method, Params, State

Model = nn.Module | Task | Callable[[], nn.Module]


@dataclass(frozen=True)
class Personal:
    """A model that has been tailored to one person. Inputs are in the units of the data that it was trained on."""

    task: Task
    units: Units
    params: Params

    def outputs(self, x: Any) -> Tensor:
        """The model's raw outputs."""
        inputs = torch.as_tensor(np.asarray(x)).to(next(iter(self.params.values())).device)
        with torch.no_grad():
            return self.task.outputs(self.params, decoded(inputs, self.units, self.task.dtype))

    def predict(self, x: Any) -> np.ndarray:
        """Classes, tokens, labels of 0 and 1, or numbers, as the task has it."""
        outputs = self.outputs(x)
        if self.task.kind == "multilabel":
            outputs = outputs > 0
        elif self.task.kind != "regression":
            outputs = outputs.argmax(-1)
        predicted: np.ndarray = outputs.cpu().numpy()
        return predicted

    def module(self) -> nn.Module:
        """The model as an ordinary `nn.Module` in evaluation mode, which takes decoded inputs."""
        return self.task.module(self.params)


@dataclass(frozen=True)
class Fitted:
    """A method after training."""

    setting: Setting
    engine: Engine
    state: State
    scores: dict[str, Scores]  # of "local" and "new" clients
    cost: Cost

    @property
    def params(self) -> Params:
        """The global model."""
        return self.state.params

    def personalise(self, x: Any, y: Any) -> Personal:
        """Tailors the model to a person never seen."""
        setting = self.setting
        return tailored(setting.method, setting.task, self.state, setting.data.units, setting.seed, x, y)


def tailored(method: Method, task: Task, state: State, units: Units, seed: int, x: Any, y: Any) -> Personal:
    """A trained method's model, tailored to somebody who is not in the data."""
    person = _person(units, np.asarray(x), np.asarray(y))
    device = next(iter(state.params.values())).device
    site = Site(person.clients, units, task.dtype, device)
    key = keyed.key(seed, "personalise", "newcomer")
    given, own = method.broadcast(state), method.new_memory(state)
    return Personal(task, units, alone(method.personalise, given, own, site, 0, key))


def fit(
    method: str | Method,
    model: Model,
    data: FederatedDataset,
    *,
    rounds: int,
    cohort: int = 10,
    seed: int = 0,
    engine: str = "vectorised",
    device: str = "cpu",
    chunk: int | None = None,
    compile: bool = False,
    memory: Path | None = None,
    progress: Callable[[Round], None] | None = None,
    **hyper: Any,
) -> Fitted:
    """Trains a method and scores it on local and new clients.

    method    a name in `fedtailor.methods.NAMES`, with hyper-parameters as further keywords; or a `Method`
    model     an `nn.Module` (training starts at its weights), a function that makes one (its first weights are drawn
              from the seed), or a `Task`, for anything but plain classification or regression
    cohort    clients a round
    engine    "vectorised" or "one_by_one"
    device    cpu, cuda or mps
    chunk     how many clients are stacked at a time; None: as many as fit
    compile   whether steps are compiled
    memory    a folder for what clients keep between rounds; None: they keep it in RAM
    progress  called after every round
    """
    setting = prepare(
        method, model, data, rounds=rounds, cohort=cohort, seed=seed, device=device, memory=memory, **hyper
    )
    return trained(setting, engines.make(setting, engine, chunk, compile), rounds, cohort, progress)


def trained(
    setting: Setting, engine: Engine, rounds: int, cohort: int, progress: Callable[[Round], None] | None = None
) -> Fitted:
    """Trains what has been prepared, and scores it."""
    state, cost = setting.first_state(), Cost()
    for done in islice(round_loop(setting, engine, state, cohort_of(setting, cohort)), rounds):
        state, cost = done.state, cost.plus(done.cost)
        if progress is not None:
            progress(done)
    refuse_divergence(setting.method.name, state)
    return Fitted(setting, engine, state, evaluate(setting, engine, state), cost)


def cohort_of(setting: Setting, cohort: int) -> int:
    """How many clients a round has: the pool is alone."""
    return cohort if setting.method.view == "clients" else 1


def prepare(
    method: str | Method,
    model: Model,
    data: FederatedDataset,
    *,
    rounds: int,
    cohort: int = 10,
    seed: int = 0,
    device: str = "cpu",
    memory: Path | None = None,
    **hyper: Any,
) -> Setting:
    """Brings method, model and data together, and refuses what does not fit."""
    require(rounds >= 0, f"fit: rounds must not be negative, got {rounds}.")
    place = engines.device_named(device)
    task = task_for(model, data.classes, seed).to(place)
    if isinstance(method, str):
        if "decay_rounds" in {field.name for field in fields(methods.file_of(method).Hyper)}:
            hyper = {"decay_rounds": max(rounds, 1)} | hyper
        method = methods.build(method, task, **hyper)
    else:
        require(not hyper, f"fit: a built method takes no more hyper-parameters, got {', '.join(hyper)}.")
    view = data.pooled() if method.view == "pooled" else data
    setting = Setting(method, task, view, seed, place, Memory(view.clients.count, memory))
    refuse_cohort(setting, cohort_of(setting, cohort))
    _try_out(setting)
    return setting


def task_for(model: Model, classes: int | None, seed: int) -> Task:
    """The task that a model and the number of classes imply (None: numbers to predict), unless a task is given."""
    if isinstance(model, Task):
        return model
    if not isinstance(model, nn.Module):
        with drawn_from(seed):
            model = model()
    return regression(model) if classes is None else classification(model)


def _try_out(setting: Setting) -> None:
    """Runs the model once on a few real examples."""
    rows = torch.from_numpy(setting.data.clients.splits["train"].of(int(setting.data.groups["train"][0]))[:2])
    some = setting.clients().batch(
        Place(rows, torch.ones(len(rows), dtype=torch.bool), torch.zeros((), dtype=torch.int64))
    )
    outputs, classes = probe(setting.task, some.x, some.y), setting.data.classes
    require(
        setting.task.kind not in ("classification", "sequences") or outputs.shape[-1] >= (classes or 0),
        f"Task: the model tells {outputs.shape[-1]} classes apart, but data set '{setting.data.name}' has {classes}.",
    )


def _person(units: Units, x: np.ndarray, y: np.ndarray) -> FederatedDataset:
    """One person's examples as a data set, so that the same promises are checked."""
    require(
        x.ndim > 0 and x.shape[1:] == units.shape,
        f"personalise: an example must have the shape {units.shape} of the training data, got x of shape {x.shape}.",
    )
    nobody = np.array([], dtype=np.int64)
    holders = sole_holder(x, y)
    return FederatedDataset(
        name="newcomer",
        clients=holders._replace(splits={**holders.splits, "test": Split(nobody, np.array([0, 0]))}),
        ids=np.array(["newcomer"]),
        groups={"train": np.array([0]), "local": np.array([0]), "validation": nobody, "new": nobody},
        server=None,
        classes=units.classes,
        scale=units.scale,
        tokens=units.tokens,
    )
