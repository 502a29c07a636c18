"""Short trials from one warm model, from which `fedtailor inspect` predicts.

FedAvg trains for `WARMUP_ROUNDS` rounds, so that there is a model with something to lose. From this
warm model `TRIAL_ROUNDS` more rounds are run, always with the same cohorts, with and without the
server's data. A trial's score is the model's score on validation clients' train examples, which
are not trained on, as a mean over the last `SCORED_ROUNDS` rounds.

A few rounds from first weights would mislead: there any server data, even wrongly labeled, improves
a model that a few clients have made unstable.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedtailor.core.functionalize import seed_initialization
from fedtailor.core.task import Task
from fedtailor.core.types import Batch, Params
from fedtailor.data.dataset import FederatedDataset
from fedtailor.data.examples import ClientExamples, Split
from fedtailor.data.label_table import subsample_evenly
from fedtailor.engines import factory
from fedtailor.engines.context import resolve_device
from fedtailor.errors import DivergedError
from fedtailor.inspection.statistics.gradients import make_batch
from fedtailor.methods.hparams import LocalHParams
from fedtailor.training import from_config
from fedtailor.training.config import RunConfig
from fedtailor.training.context import infer_task, prepare_context
from fedtailor.training.loop import run_rounds

WARMUP_ROUNDS = 30
TRIAL_ROUNDS = 20
SCORED_ROUNDS = 10

MAX_EVAL_EXAMPLES = 3000
"""Maximum number of examples that a score is computed on."""

MAX_CENTERING_EXAMPLES = 2000
"""Maximum number of training clients' examples that are averaged to center inputs."""

TARGET_NORM = 10.0
"""Root mean square norm of centered inputs: about that of MNIST's, which usual step sizes suit."""

_MIN_INPUT_NORM = 1e-12
"""Least divisor of inputs that are all equal."""


class InspectionTrial(NamedTuple):
    """The result of a trial."""

    value: float  # gamma, beta, or the fraction of the server's data
    score: float | None  # accuracy, or minus the error of a regression; None: the model diverged


class CenteredModel(nn.Module):
    """A network whose inputs are centered and scaled to a common size."""

    mean: Tensor
    scale: Tensor

    def __init__(self, mean: Tensor, scale: Tensor, network: nn.Module) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("scale", scale)
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        """Return the network's output for centered inputs."""
        return self.network((x - self.mean) * self.scale)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Bench:
    """The common setting of all trials."""

    config: RunConfig
    data: FederatedDataset
    task: Task
    eval_batch: Batch  # of validation clients' train examples

    def iter_rounds(
        self, method: str, params: Params, start_round: int, num_rounds: int, **method_hparams: Any
    ) -> Iterator[Params]:
        """Yield the model after each round of training.

        Args:
            method: Name of the method.
            params: The model to start from.
            start_round: Number of the first round, on which its cohort depends.
            num_rounds: Number of rounds.
            **method_hparams: Hyper-parameters besides those of local training, which the
                configuration has.
        """
        local_names = {field.name for field in fields(LocalHParams)}
        local_hparams = {
            name: value for name, value in self.config.hparams.items() if name in local_names
        }
        cohort = min(self.config.cohort, len(self.data.groups["train"]))
        context = prepare_context(
            method,
            self.task,
            self.data,
            cohort=cohort,
            rounds=start_round + num_rounds,
            seed=self.config.seed,
            device=self.config.device,
            **local_hparams,
            **method_hparams,
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
        """Train for `TRIAL_ROUNDS` more rounds from the warm model and score the result.

        Args:
            value: The trial's value in the result.
            method: Name of the method.
            warm_params: The warm model.
            **method_hparams: Hyper-parameters besides those of local training.
        """
        rounds = self.iter_rounds(
            method, warm_params, WARMUP_ROUNDS, TRIAL_ROUNDS, **method_hparams
        )
        try:
            models = list(rounds)
        except DivergedError:
            return InspectionTrial(value, None)
        scores = [
            compute_score(self.task, model, self.eval_batch) for model in models[-SCORED_ROUNDS:]
        ]
        return InspectionTrial(value, float(np.mean(scores)))

    def run_server_learning(self, gamma: float, warm_params: Params) -> InspectionTrial:
        """Run FSL's server learning of weight `gamma`, with a server rate of 1; 0 is FedAvg."""
        return self.run_trial(gamma, "fsl", warm_params, gamma=gamma, server_lr=1.0)

    def run_correction(self, beta: float, warm_params: Params) -> InspectionTrial:
        """Run FedSIM with a correction of size `beta`, the same in all rounds."""
        return self.run_trial(beta, "fedsim", warm_params, beta=beta, decay="constant")

    def run_fraction(self, fraction: float, gamma: float, warm_params: Params) -> InspectionTrial:
        """Run server learning from a random part of the server's data.

        Args:
            fraction: The part, from 0 to 1; the trial's value in the result.
            gamma: Weight of server learning.
            warm_params: The warm model.
        """
        reduced = replace(self, data=subsample_server(self.data, fraction))
        return reduced.run_server_learning(gamma, warm_params)._replace(value=fraction)


def build_bench(config: RunConfig, data: FederatedDataset) -> Bench:
    """Build the model and gather the validation clients' examples that trials are scored on.

    Inputs of the models "mlp" and "linear", which are made for no kind of data, are centered.
    """
    task = _build_task(config, data).to(resolve_device(config.device))
    rows = sample_train_examples(data, "validation", MAX_EVAL_EXAMPLES)
    like = next(iter(task.params.values()))
    eval_batch = make_batch(data.clients, rows, data.example_spec, like)
    return Bench(config, data, task, eval_batch)


def compute_score(task: Task, params: Params, batch: Batch) -> float:
    """Score `params` on `batch` by the first metric of `task`, negated if lower is better."""
    metric = task.metrics[0]
    with torch.no_grad():
        total, weight = task.compute_metric_sums(params, batch)[metric.name].tolist()
    mean = float(total / max(weight, 1.0))
    return mean if metric.higher_is_better else -mean


def sample_train_examples(
    data: FederatedDataset, group: str, max_examples: int
) -> NDArray[np.int64]:
    """Return rows of the train examples of a group's clients.

    Args:
        data: The data set.
        group: Name of the group.
        max_examples: Maximum number of rows; of more, evenly spaced ones are returned.
    """
    train = data.clients.splits["train"]
    rows = np.concatenate([train.get_rows(int(client)) for client in data.groups[group]])
    return subsample_evenly(rows, max_examples)


def subsample_server(data: FederatedDataset, fraction: float) -> FederatedDataset:
    """Return the data set with a random part of the server's examples, always the same one."""
    server = data.server
    if server is None or fraction >= 1:
        return data
    rows = server.splits["train"].get_rows(0)
    num_examples = max(1, round(fraction * len(rows)))
    order = np.random.Generator(np.random.Philox(0)).permutation(rows)
    kept_rows = np.sort(order[:num_examples])
    split = Split(np.arange(num_examples), np.array([0, num_examples]))
    reduced = ClientExamples(server.x[kept_rows], server.y[kept_rows], {"train": split})
    return replace(data, server=reduced, should_check=False)  # all of its examples were checked


def _build_task(config: RunConfig, data: FederatedDataset) -> Task:
    if config.model not in ("mlp", "linear") or data.tokens:
        return from_config.build_task(config, data.example_spec)
    dtype = getattr(torch, config.precision)
    rows = sample_train_examples(data, "train", MAX_CENTERING_EXAMPLES)
    batch = make_batch(data.clients, rows, data.example_spec, torch.zeros((), dtype=dtype))
    mean = batch.x.mean(dim=0)
    norm = (batch.x - mean).flatten(1).square().sum(dim=1).mean().sqrt()
    scale = TARGET_NORM / norm.clamp(min=_MIN_INPUT_NORM)
    with seed_initialization(config.seed):
        network = from_config.get_model_factory(config, data.example_spec)()
    model = CenteredModel(mean, scale, network)
    return infer_task(model, data.example_spec, config.seed).to(dtype=dtype)
