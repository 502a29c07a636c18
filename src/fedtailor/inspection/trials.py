"""Short trials from one warm model: what `fedtailor inspect` predicts from.

FedAvg trains for `WARMUP_ROUNDS` rounds, so that there is a model which has something to lose. From it `TRIAL_ROUNDS`
more rounds are run, always with the same cohorts, with and without the server's data. A trial's score is the mean over
the last `SCORED_ROUNDS` rounds of how right the model is on validation clients' train examples, which are not trained
on. A few rounds from a first model would mislead: there any server data, even wrongly labeled, steadies what a few
clients have unsettled.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedtailor.core.functionalize import seeded_init
from fedtailor.core.task import Task
from fedtailor.core.types import Batch, Params
from fedtailor.data.dataset import FederatedDataset
from fedtailor.data.examples import ClientExamples, Split
from fedtailor.data.label_table import subsample_evenly
from fedtailor.engines import factory
from fedtailor.errors import DivergedError
from fedtailor.inspection.statistics.gradients import make_batch
from fedtailor.methods.hparams import LocalHParams
from fedtailor.training import build
from fedtailor.training.config import RunConfig
from fedtailor.training.loop import run_rounds
from fedtailor.training.prepare import infer_task, prepare_context

WARMUP_ROUNDS, TRIAL_ROUNDS, SCORED_ROUNDS = 30, 20, 10
MAX_JUDGE_EXAMPLES, MAX_CENTERING_EXAMPLES = 3000, 2000
"""So many of the validation clients' examples judge, so many of the training clients' are averaged to center inputs."""
TARGET_NORM = 10.0
"""The root mean square length of centered inputs: about that of MNIST's, for which usual step sizes are made."""


class InspectionTrial(NamedTuple):
    """What some rounds led to."""

    value: float  # of gamma or beta, or the part of the server's data
    score: (
        float | None
    )  # accuracy, or for numbers to be predicted minus the error; None: the model diverged


class CenteredModel(nn.Module):
    """A network whose inputs are centered and made of usual length."""

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

    config: RunConfig
    data: FederatedDataset
    task: Task
    judge_batch: Batch

    def iter_rounds(
        self, method: str, params: Params, start_round: int, num_rounds: int, **method_hparams: Any
    ) -> Iterator[Params]:
        """The models after each of so many rounds, the first of which is the round of that number."""
        local_names = {field.name for field in fields(LocalHParams)}
        hparams = {key: value for key, value in self.config.hparams.items() if key in local_names}
        cohort = min(self.config.cohort, len(self.data.groups["train"]))
        run_options: dict[str, Any] = {
            "rounds": start_round + num_rounds,
            "seed": self.config.seed,
            "device": self.config.device,
        }
        context = prepare_context(
            method, self.task, self.data, cohort=cohort, **run_options, **hparams, **method_hparams
        )
        engine = factory.make_engine(
            context, self.config.engine, self.config.chunk, self.config.compile is True
        )
        initial_state = context.init_server_state(params)
        state = initial_state._replace(round=torch.full_like(initial_state.round, start_round))
        for finished_round in islice(run_rounds(context, engine, state, cohort), num_rounds):
            yield finished_round.state.params

    def run_trial(
        self, value: float, method: str, warm_params: Params, **method_hparams: Any
    ) -> InspectionTrial:
        """What further rounds from the warm model lead to."""
        try:
            models = list(
                self.iter_rounds(method, warm_params, WARMUP_ROUNDS, TRIAL_ROUNDS, **method_hparams)
            )
        except DivergedError:
            return InspectionTrial(value, None)
        return InspectionTrial(
            value,
            float(
                np.mean(
                    [
                        compute_score(self.task, model, self.judge_batch)
                        for model in models[-SCORED_ROUNDS:]
                    ]
                )
            ),
        )

    def run_server_learning(self, gamma: float, warm_params: Params) -> InspectionTrial:
        """With server learning of that weight, and 1 as the server's rate, so that 0 is FedAvg."""
        return self.run_trial(gamma, "fsl", warm_params, gamma=gamma, server_lr=1.0)

    def run_correction(self, beta: float, warm_params: Params) -> InspectionTrial:
        """With FedSIM's correction of that size, which stays the same in all rounds."""
        return self.run_trial(beta, "fedsim", warm_params, beta=beta, decay="constant")

    def run_fraction(self, fraction: float, gamma: float, warm_params: Params) -> InspectionTrial:
        """With server learning from a part of the server's data."""
        few = replace(self, data=subsample_server(self.data, fraction))
        return few.run_server_learning(gamma, warm_params)._replace(value=fraction)


def build_bench(config: RunConfig, data: FederatedDataset) -> Bench:
    """The model of a specification, on centered inputs if it is one that knows no kind of data, and who judges it."""
    task = _build_task(config, data).to(factory.resolve_device(config.device))
    like = next(iter(task.params.values()))
    rows = sample_train_examples(data, "validation", MAX_JUDGE_EXAMPLES)
    return Bench(config, data, task, make_batch(data.clients, rows, data.example_spec, like))


def compute_score(task: Task, params: Params, batch: Batch) -> float:
    """The task's headline figure over a batch, the more the better."""
    metric = task.metrics[0]
    with torch.no_grad():
        total, weight = task.compute_metric_sums(params, batch)[metric.name].tolist()
    return float(total / max(weight, 1.0)) * (1 if metric.higher_is_better else -1)


def sample_train_examples(
    data: FederatedDataset, group: str, max_examples: int
) -> NDArray[np.int64]:
    """Train examples of a group's people, evenly spaced if there are more than so many."""
    train = data.clients.splits["train"]
    rows: NDArray[np.int64] = subsample_evenly(
        np.concatenate([train.get_rows(int(client_id)) for client_id in data.groups[group]]),
        max_examples,
    )
    return rows


def subsample_server(data: FederatedDataset, fraction: float) -> FederatedDataset:
    """The same, but the server has only a part of its examples, drawn at random."""
    server = data.server
    if server is None or fraction >= 1:
        return data
    rows, count = (
        server.splits["train"].get_rows(0),
        max(1, round(fraction * len(server.splits["train"].get_rows(0)))),
    )
    kept = np.sort(np.random.Generator(np.random.Philox(0)).permutation(rows)[:count])
    few = ClientExamples(
        server.x[kept], server.y[kept], {"train": Split(np.arange(count), np.array([0, count]))}
    )
    return replace(data, server=few, skip_checks=True)  # fewer of the same examples


def _build_task(config: RunConfig, data: FederatedDataset) -> Task:
    if config.model not in ("mlp", "linear") or data.tokens:
        return build.build_task(config, data.example_spec)
    rows = sample_train_examples(data, "train", MAX_CENTERING_EXAMPLES)
    inputs = make_batch(
        data.clients,
        rows,
        data.example_spec,
        torch.zeros((), dtype=getattr(torch, config.precision)),
    ).x
    mean = inputs.mean(dim=0)
    length = (inputs - mean).flatten(1).square().sum(dim=1).mean().sqrt()
    with seeded_init(config.seed):
        network = build.get_model_factory(config, data.example_spec)()
    centered = CenteredModel(mean, TARGET_NORM / length.clamp(min=1e-12), network)
    return infer_task(centered, data.example_spec, config.seed).to(
        dtype=getattr(torch, config.precision)
    )
