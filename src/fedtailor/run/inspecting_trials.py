"""Short trials from one warm model: what `fedtailor inspect` predicts from.

FedAvg trains for `WARM` rounds, so that a model is there which has something to lose. From it `ROUNDS` more rounds are
run, always with the same cohorts, with and without the server's data. A trial's score is the mean over its last `LAST`
rounds of how right the model is on validation clients' train examples, which nobody trains on. A few rounds from
a first model would mislead: there any server data, even wrongly labelled, steadies what a few clients have unsettled.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedtailor import engines
from fedtailor.analysis.gradients import batch_of
from fedtailor.data.dataset import FederatedDataset
from fedtailor.data.holders import Holders, Split
from fedtailor.data.picture import spaced
from fedtailor.errors import DivergedError
from fedtailor.methods.pieces import Local
from fedtailor.purity import drawn_from
from fedtailor.run import build
from fedtailor.run.fitting import prepare, task_for
from fedtailor.run.loop import round_loop
from fedtailor.run.spec import Spec
from fedtailor.task import Task
from fedtailor.types import Batch, Params

WARM, ROUNDS, LAST = 30, 20, 10
JUDGED, CENTRED = 3000, 2000
"""So many of the validation clients' examples judge, so many of the training clients' are averaged to centre inputs."""
NORM = 10.0
"""The root mean square length of centred inputs: about that of MNIST's, for which usual step sizes are made."""


class Trial(NamedTuple):
    """What some rounds led to."""

    value: float  # of gamma or beta, or the part of the server's data
    score: float | None  # accuracy, or for numbers to be predicted minus the error; None: the model diverged


class Centred(nn.Module):
    """A network whose inputs are centred and made of usual length."""

    mean: Tensor
    scale: Tensor

    def __init__(self, mean: Tensor, scale: Tensor, network: nn.Module) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("scale", scale)
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        """The network's output."""
        return self.network((x - self.mean) * self.scale)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Bench:
    """Where trials run: the specification, its data and model, and the examples that judge."""

    spec: Spec
    data: FederatedDataset
    task: Task
    judges: Batch

    def rounds(self, method: str, params: Params, number: int, count: int, **own: Any) -> Iterator[Params]:
        """The models after each of so many rounds, the first of which is the round of that number."""
        local = {field.name for field in fields(Local)}
        hyper = {key: value for key, value in self.spec.hyper.items() if key in local}
        cohort = min(self.spec.cohort, len(self.data.groups["train"]))
        run: dict[str, Any] = {"rounds": number + count, "seed": self.spec.seed, "device": self.spec.device}
        setting = prepare(method, self.task, self.data, cohort=cohort, **run, **hyper, **own)
        engine = engines.make(setting, self.spec.engine, self.spec.chunk, self.spec.compile is True)
        first = setting.first_state(params)
        state = first._replace(round=torch.full_like(first.round, number))
        for done in islice(round_loop(setting, engine, state, cohort), count):
            yield done.state.params

    def trial(self, value: float, method: str, warm: Params, **own: Any) -> Trial:
        """What further rounds from the warm model lead to."""
        try:
            models = list(self.rounds(method, warm, WARM, ROUNDS, **own))
        except DivergedError:
            return Trial(value, None)
        return Trial(value, float(np.mean([score(self.task, model, self.judges) for model in models[-LAST:]])))

    def learning(self, gamma: float, warm: Params) -> Trial:
        """With server learning of that weight, and 1 as the server's rate, so that 0 is FedAvg."""
        return self.trial(gamma, "fsl", warm, gamma=gamma, server_lr=1.0)

    def correcting(self, beta: float, warm: Params) -> Trial:
        """With FedSIM's correction of that size, which stays the same in all rounds."""
        return self.trial(beta, "fedsim", warm, beta=beta, decay="constant")

    def part(self, part: float, gamma: float, warm: Params) -> Trial:
        """With server learning from a part of the server's data."""
        few = replace(self, data=with_part(self.data, part))
        return few.learning(gamma, warm)._replace(value=part)


def bench(spec: Spec, data: FederatedDataset) -> Bench:
    """The model of a specification, on centred inputs if it is one that knows no kind of data, and who judges it."""
    task = _task(spec, data).to(engines.device_named(spec.device))
    like = next(iter(task.params.values()))
    rows = of_people(data, "validation", JUDGED)
    return Bench(spec, data, task, batch_of(data.clients, rows, data.units, like))


def score(task: Task, params: Params, batch: Batch) -> float:
    """The task's headline figure over a batch, the more the better."""
    metric = task.metrics[0]
    with torch.no_grad():
        total, weight = task.sums(params, batch)[metric.name].tolist()
    return float(total / max(weight, 1.0)) * (1 if metric.higher_is_better else -1)


def of_people(data: FederatedDataset, group: str, most: int) -> NDArray[np.int64]:
    """Train examples of a group's people, evenly spaced if there are more than so many."""
    train = data.clients.splits["train"]
    rows: NDArray[np.int64] = spaced(np.concatenate([train.of(int(one)) for one in data.groups[group]]), most)
    return rows


def with_part(data: FederatedDataset, part: float) -> FederatedDataset:
    """The same, but the server has only a part of its examples, drawn at random."""
    own = data.server
    if own is None or part >= 1:
        return data
    rows, count = own.splits["train"].of(0), max(1, round(part * len(own.splits["train"].of(0))))
    kept = np.sort(np.random.Generator(np.random.Philox(0)).permutation(rows)[:count])
    few = Holders(own.x[kept], own.y[kept], {"train": Split(np.arange(count), np.array([0, count]))})
    return replace(data, server=few, trust=True)  # fewer of the same examples


def _task(spec: Spec, data: FederatedDataset) -> Task:
    if spec.model not in ("mlp", "linear") or data.tokens:
        return build.task(spec, data.units)
    rows = of_people(data, "train", CENTRED)
    seen = batch_of(data.clients, rows, data.units, torch.zeros((), dtype=getattr(torch, spec.precision))).x
    mean = seen.mean(dim=0)
    length = (seen - mean).flatten(1).square().sum(dim=1).mean().sqrt()
    with drawn_from(spec.seed):
        network = build.maker(spec, data.units)()
    centred = Centred(mean, NORM / length.clamp(min=1e-12), network)
    return task_for(centred, data.units, spec.seed).to(dtype=getattr(torch, spec.precision))
