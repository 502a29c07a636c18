"""Will the server's data help? Looked at before any long run, without a test example or a new client.

Short trials (`trials`) predict what server learning gains: the score of validation clients with the server's
data minus the score without. Beside them stand the distances that may explain it: of labels, of images, of examples,
and of gradients at the warm model, with FSL's conditions.
"""

from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import NamedTuple

import numpy as np
import torch

from fedtailor.core.types import Params
from fedtailor.data.dataset import FederatedDataset
from fedtailor.data.label_table import subsample_evenly
from fedtailor.errors import require
from fedtailor.inspection.closeness import MAX_CLIENTS, Closeness, compute_closeness
from fedtailor.inspection.statistics.gradients import make_batch
from fedtailor.inspection.trials import (
    MAX_JUDGE_EXAMPLES,
    SCORED_ROUNDS,
    TRIAL_ROUNDS,
    WARMUP_ROUNDS,
    Bench,
    InspectionTrial,
    build_bench,
    compute_score,
    sample_train_examples,
)
from fedtailor.training import build
from fedtailor.training.config import RunConfig

GAMMAS, BETAS, FRACTIONS = (0.1, 0.3, 1.0), (0.0, 0.25, 1.0), (0.25, 0.5)
MIN_SERVER_EXAMPLES = 2
"""Examples that a server must have."""
MIN_GAIN, MIN_GAINED_EXAMPLES, MIN_HARM = 0.01, 2, 0.05
"""A gain is noticed from one point (or 1 % of the error) and two examples on; from a loss of five on, the data harm."""
CHANCE_FACTOR = 1.5
"""Labels that the warm model gives at most so many times as often as their commonest one occurs tell it nothing."""


class Inspection(NamedTuple):
    """What was found, and what follows from it."""

    name: str
    examples: int  # of the server's
    scope: str
    num_judged: int  # examples of validation clients that every score is over
    warm_score: float  # the warm model's score on validation clients' examples
    server_score: float  # the warm model's score on the server's
    majority_share: float | None  # the share of the server's commonest label
    baseline: InspectionTrial  # no server data
    gammas: list[InspectionTrial]
    betas: list[InspectionTrial]
    fractions: list[
        InspectionTrial
    ]  # of the server's data, at the best gamma; empty unless it helps
    closeness: Closeness

    def compute_gain(self, trial: InspectionTrial) -> float:
        """By how much a trial beats that without server data: in accuracy, or as a part of the error."""
        if trial.score is None or self.baseline.score is None:
            return float("-inf")
        return (trial.score - self.baseline.score) / (
            1.0 if self.baseline.score >= 0 else -self.baseline.score
        )

    @property
    def predicted_gain(self) -> float:
        """What server learning gains at FSL's own weight, gamma = 1: the figure that puts server data in order."""
        return self.compute_gain(self.gammas[-1])

    @property
    def is_suspect(self) -> bool:
        """Whether the warm model finds the server's labels no better than chance."""
        return (
            self.majority_share is not None
            and self.server_score <= CHANCE_FACTOR * self.majority_share
        )

    @property
    def best_gamma(self) -> InspectionTrial:
        """The best gamma; of data that look strange only gamma = 1, as little of any data may steady a model."""
        return self.gammas[-1] if self.is_suspect else max(self.gammas, key=self.compute_gain)

    @property
    def best_beta(self) -> InspectionTrial:
        """The best beta; without trials, none."""
        return max(self.betas, key=self.compute_gain, default=self.baseline)

    @property
    def verdict(self) -> str:
        """helps, little or harms."""
        min_gain = max(MIN_GAIN, MIN_GAINED_EXAMPLES / self.num_judged)
        if self.compute_gain(self.best_gamma) >= min_gain:
            return "helps"
        return (
            "harms"
            if self.predicted_gain <= -(min_gain if self.is_suspect else max(min_gain, MIN_HARM))
            else "little"
        )


def inspect(
    config: RunConfig,
    on_message: Callable[[str], None] | None = None,
    betas: tuple[float, ...] = BETAS,
    fractions: tuple[float, ...] = FRACTIONS,
) -> Inspection:
    """Looks at the data of a specification with its model, cohort and hyper-parameters of local training.

    `on_message` is called with what is being done; `betas` and `fractions` are tried beside server learning.
    """
    report = on_message or _ignore_message
    if config.threads:
        torch.set_num_threads(config.threads)
    data = build.load_dataset(config)
    _check_data(data)
    bench = build_bench(config, data)
    report(f"FedAvg, {WARMUP_ROUNDS} rounds")
    warm_params = next(
        islice(
            bench.iter_rounds("fsl", bench.task.params, 0, WARMUP_ROUNDS, gamma=0.0, server_lr=1.0),
            WARMUP_ROUNDS - 1,
            None,
        )
    )
    report("distances")
    before = _inspect_before_trials(bench, warm_params)
    learned = _run_trials(
        report, "gamma", (0.0, *GAMMAS), partial(bench.run_server_learning, warm_params=warm_params)
    )
    corrected = _run_trials(
        report, "beta", betas, partial(bench.run_correction, warm_params=warm_params)
    )
    found = before._replace(baseline=learned[0], gammas=learned[1:], betas=corrected)
    if found.verdict != "helps":
        return found
    return found._replace(
        fractions=_run_trials(
            report,
            "part",
            fractions,
            partial(bench.run_fraction, gamma=found.best_gamma.value, warm_params=warm_params),
        )
    )


def _run_trials(
    report: Callable[[str], None],
    name: str,
    values: tuple[float, ...],
    run: Callable[[float], InspectionTrial],
) -> list[InspectionTrial]:
    """A trial for each value."""
    trials = []
    for value in values:
        report(f"{name} = {value:g}, {TRIAL_ROUNDS} rounds")
        trials.append(run(value))
    return trials


def _inspect_before_trials(bench: Bench, warm_params: Params) -> Inspection:
    """What is known before any trial."""
    data, task, server = bench.data, bench.task, bench.data.server
    assert server is not None
    rows = subsample_evenly(server.splits["train"].get_rows(0), MAX_JUDGE_EXAMPLES)
    has_labels = data.classes is not None and server.y.ndim == 1
    return Inspection(
        name=data.name,
        examples=len(server.splits["train"].get_rows(0)),
        scope=_describe_scope(data),
        num_judged=len(bench.judge_batch.y),
        warm_score=compute_score(task, warm_params, bench.judge_batch),
        server_score=compute_score(
            task,
            warm_params,
            make_batch(server, rows, data.example_spec, next(iter(warm_params.values()))),
        ),
        majority_share=float(np.bincount(server.y[rows].astype(np.int64)).max() / len(rows))
        if has_labels
        else None,
        baseline=InspectionTrial(0.0, None),
        gammas=[],
        betas=[],
        fractions=[],
        closeness=compute_closeness(bench, warm_params),
    )


def _describe_scope(data: FederatedDataset) -> str:
    num_judged, num_clients = (
        len(sample_train_examples(data, "validation", MAX_JUDGE_EXAMPLES)),
        min(MAX_CLIENTS, len(data.groups["train"])),
    )
    return (
        f"Training clients' train examples for training, of {num_clients} of them for distances; "
        f"{num_judged:,} train examples of {len(data.groups['validation']):,} validation clients for every score, "
        f"which is the mean of {SCORED_ROUNDS} rounds; "
        "no test example, and no new client."
    )


def _check_data(data: FederatedDataset) -> None:
    """Refuses data that trials cannot be made with."""
    num_examples = 0 if data.server is None else len(data.server.splits["train"].get_rows(0))
    asked = "hold some out for it (server=0.05, say)"
    require(
        num_examples > 0, f"inspect: the server of data set '{data.name}' has no examples; {asked}."
    )
    require(
        num_examples >= MIN_SERVER_EXAMPLES,
        f"inspect: the server needs at least {MIN_SERVER_EXAMPLES} examples to be looked at, "
        f"got {num_examples}; {asked}.",
    )
    num_clients = len(data.groups["validation"])
    advice = "give it some (validation_clients=0.2, say)"
    require(
        num_clients > 0,
        f"inspect: data set '{data.name}' has no validation clients to judge by; {advice}.",
    )


def _ignore_message(_: str) -> None:
    """Says nothing."""
