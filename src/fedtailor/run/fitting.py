"""Training from Python: `fit` a method on data, look at every client's scores, tailor the model to a new person."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from fedtailor import engines, methods
from fedtailor.data.batching import Place
from fedtailor.data.dataset import FederatedDataset, Holders, Units
from fedtailor.engines.base import Engine, Setting
from fedtailor.engines.memory import Memory
from fedtailor.errors import is_number, require
from fedtailor.methods.pieces import Facts
from fedtailor.purity import drawn_from
from fedtailor.run.evaluate import evaluate
from fedtailor.run.loop import Cost, Round, refuse_cohort, refuse_divergence, round_loop
from fedtailor.run.metrics import Scores
from fedtailor.run.personal import Personal, class_axis, tailored
from fedtailor.run.pretraining import Pretraining, pretrained, refuse_pretraining
from fedtailor.task import Task, classification, probe, regression, sequences
from fedtailor.types import Method, Params, State

Model = nn.Module | Task | Callable[[], nn.Module | Task]


@dataclass(frozen=True)
class Fitted:
    """A method after training."""

    setting: Setting
    engine: Engine
    state: State
    scores: dict[str, Scores]  # of "local", "validation" and "new" clients
    cost: Cost

    @property
    def params(self) -> Params:
        """The global model."""
        return self.state.params

    def personalise(self, x: Any, y: Any) -> Personal:
        """Tailors the model to a person never seen."""
        setting, tried = self.setting, self.setting.offered()
        fresh = setting.method.new_memory(self.state)
        memories = setting.memory.gather(tried, fresh) if setting.method.tries and len(tried) else None
        return tailored(setting.method, setting.task, self.state, setting.data.units, setting.seed, x, y, memories)


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
    compile: engines.Compile = False,
    memory: Path | None = None,
    pretrain: int = 0,
    pretrain_lr: float = 0.1,
    pretrain_batch: int = 20,
    progress: Callable[[Round], None] | None = None,
    **hyper: Any,
) -> Fitted:
    """Trains a method and scores it on local and new clients.

    method    a name in `fedtailor.methods.NAMES`, with hyper-parameters as further keywords; or a `Method`, with the
              `Task` that it was built on as the model
    model     an `nn.Module` (training starts at its weights), a function that makes one (its first weights are drawn
              from the seed), or a `Task`, for anything but plain classification or regression
    cohort    clients a round
    engine    "vectorised" or "one_by_one"
    device    cpu, cuda or mps
    chunk     how many clients are stacked at a time; None: as many as fit
    compile   whether steps are compiled: True, False, or "training" for all but personalising and scoring
    memory    a folder for what clients keep between rounds; None: they keep it in RAM
    pretrain  epochs of SGD on the server's data before the first round, at rate pretrain_lr, pretrain_batch at a time
    progress  called after every round
    """
    how = Pretraining(pretrain, pretrain_lr, pretrain_batch)
    setting = prepare(
        method, model, data, rounds=rounds, cohort=cohort, seed=seed, device=device, memory=memory, **hyper
    )
    refuse_pretraining(how, data)
    return trained(setting, engines.make(setting, engine, chunk, compile), rounds, cohort, progress, how)


def trained(
    setting: Setting,
    engine: Engine,
    rounds: int,
    cohort: int,
    progress: Callable[[Round], None] | None = None,
    how: Pretraining | None = None,
) -> Fitted:
    """Trains what has been prepared, and scores it."""
    state, cost = setting.first_state(pretrained(setting, how) if how else None), Cost()
    for done in islice(round_loop(setting, engine, state, cohort_of(setting, cohort)), rounds):
        state, cost = done.state, cost.plus(done.cost)
        if progress is not None:
            progress(done)
    refuse_divergence(setting.method.name, state)
    scores = evaluate(setting, engine, state, ("local", "validation", "new"))
    return Fitted(setting, engine, state, scores, cost)


def cohort_of(setting: Setting, cohort: int) -> int:
    """How many clients a round has: the pool is alone."""
    return 1 if setting.method.view == "pooled" else cohort


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
    for name, value, least in (("rounds", rounds, 0), ("cohort", cohort, 0), ("seed", seed, -(2**63))):
        ok = is_number(value, whole=True) and value >= least
        require(ok, f"fit: {name} must be a whole number{'' if least else ' and not negative'}, got {value!r}.")
    rounds, cohort, seed = int(rounds), int(cohort), int(seed)
    require(isinstance(data, FederatedDataset), f"fit: data must be a FederatedDataset, got {type(data).__name__}.")
    place = engines.device_named(str(device))
    task = task_for(model, data.units, seed).to(place)
    if isinstance(method, Method):
        require(not hyper, f"fit: a built method takes no more hyper-parameters, got {', '.join(hyper)}.")
        require(isinstance(model, Task), "fit: a built method needs the Task that it was built on as the model.")
    else:
        require(isinstance(method, str), f"fit: method must be a name or a Method, got {method!r}.")
        task = task.twin()  # so that runs beside each other do not share modules
        filled = methods.hyper_of(method, **hyper).for_run(facts_of(data, rounds, cohort))
        method = methods.file_of(method).build(task, filled)
    view = view_of(method, data)
    setting = Setting(method, task, view, seed, place, Memory(view.clients.count, memory))
    refuse_cohort(setting, cohort_of(setting, cohort))
    _try_out(setting)
    return setting


def facts_of(data: FederatedDataset, rounds: int, cohort: int) -> Facts:
    """What a method may know of a run before it begins."""
    people = data.groups["train"]
    examples = float(data.clients.splits["train"].sizes()[people].mean())
    return Facts(rounds, cohort, len(people), examples, 0 if data.server is None else len(data.server.x))


def view_of(method: Method, data: FederatedDataset) -> FederatedDataset:
    """The data as the method sees it."""
    made = {"pooled": data.pooled, "shared": data.shared}
    view = made[method.view]() if method.view in made else data
    drawn = {draw.split for phase in method.client.phases for draw in phase.plan.draws}
    return view.with_support() if drawn & {"support", "query"} else view


def task_for(model: Model, units: Units, seed: int) -> Task:
    """The task that a model and the data imply, unless a task is given.

    Without classes there are numbers to predict; with tokens and a target at each place, sequences.
    """
    if isinstance(model, Task):
        return model
    if not isinstance(model, nn.Module):
        require(
            callable(model), f"fit: model must be an nn.Module, a function that makes one, or a Task, got {model!r}."
        )
        with drawn_from(seed):
            made: nn.Module | Task = model()
        return task_for(made, units, seed)
    if units.tokens and units.label_shape and units.classes is not None:
        return sequences(model, units.padding, units.uncounted)
    return regression(model) if units.classes is None else classification(model)


def _try_out(setting: Setting) -> None:
    """Runs the model once on a few real examples, for tokens on the lowest and the highest."""
    data, sites = setting.data, ((setting.data.clients, setting.clients()), (setting.data.server, setting.server()))
    for holders, site in sites:
        if holders is None or site is None:
            continue
        rows = torch.from_numpy(_telling_rows(holders, data.tokens))
        mask, key = torch.ones(len(rows), dtype=torch.bool), torch.zeros((), dtype=torch.int64)
        some = site.batch(Place(rows, mask, key))
        outputs, classes = probe(setting.task, some.x, some.y), data.classes
        counted = setting.task.kind in ("classification", "sequences")
        apart = outputs.shape[class_axis(setting.task)]
        require(
            not counted or apart >= (classes or 0),
            f"Task: the model tells {apart} classes apart, but data set '{data.name}' has {classes}.",
        )


def _telling_rows(holders: Holders, tokens: bool) -> np.ndarray:
    """The first and the last example, and for tokens those with the lowest and the highest one."""
    index = holders.splits["train"].index
    rows = [index[0], index[-1]]
    if tokens:
        flat = holders.x.reshape(len(holders.x), -1)
        rows += [flat.min(1).argmin(), flat.max(1).argmax()]
    return np.array(rows, dtype=np.int64)
