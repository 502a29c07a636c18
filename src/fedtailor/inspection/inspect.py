"""Predict, before any long run, whether the server's data will help training.

Short trials (`trials`) predict what server learning gains: the score on validation clients with the
server's data minus the score without. Distances between the server's and the clients' data
(`closeness`) may explain it. Test examples and unseen clients are not used.
"""

from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Literal, NamedTuple

import numpy as np
import torch

from fedtailor.core.types import Params
from fedtailor.data.dataset import FederatedDataset
from fedtailor.data.label_table import subsample_evenly
from fedtailor.errors import require
from fedtailor.inspection.closeness import MAX_CLIENTS, Closeness, compute_closeness
from fedtailor.inspection.statistics.gradients import make_batch
from fedtailor.inspection.trials import (
    MAX_EVAL_EXAMPLES,
    SCORED_ROUNDS,
    TRIAL_ROUNDS,
    WARMUP_ROUNDS,
    Bench,
    InspectionTrial,
    build_bench,
    compute_score,
    sample_train_examples,
)
from fedtailor.training import from_config
from fedtailor.training.config import RunConfig
from fedtailor.training.resources import check_threads

GAMMAS = (0.1, 0.3, 1.0)
"""Weights of FSL's server learning that are tried; the last one is FSL's own."""

BETAS = (0.0, 0.25, 1.0)
"""Sizes of FedSIM's correction that are tried."""

FRACTIONS = (0.25, 0.5)
"""Parts of the server's data that are tried, in rising order, if all of it helps."""

MIN_SERVER_EXAMPLES = 2
"""Minimum number of examples of the server."""

MIN_GAIN = 0.01
"""Least gain that counts as help: one point of accuracy, or 1% of the error."""

MIN_GAINED_EXAMPLES = 2
"""Least number of examples that must be classified correctly in addition for a gain to count."""

MIN_HARM = 0.05
"""Least loss at gamma = 1 that counts as harm."""

CHANCE_FACTOR = 1.5
"""Multiple of the most frequent server label's share up to which accuracy counts as chance."""


class Inspection(NamedTuple):
    """Results of the trials and of comparing data, with the verdict that follows from them."""

    name: str  # of the data set
    examples: int  # number of the server's examples
    scope: str  # which data were used, as sentences
    num_judged: int  # number of validation clients' examples that every score is over
    warm_score: float  # the warm model's score on validation clients' examples
    server_score: float  # the warm model's score on the server's examples
    majority_share: float | None  # share of the server's most frequent label; None: no labels
    baseline: InspectionTrial  # without server data
    gammas: list[InspectionTrial]  # with FSL's server learning
    betas: list[InspectionTrial]  # with FedSIM's correction
    fractions: list[InspectionTrial]  # with parts of the server's data; empty unless it helps
    closeness: Closeness

    def compute_gain(self, trial: InspectionTrial) -> float:
        """Return the gain over no server data: in accuracy, or as a fraction of the error."""
        if trial.score is None or self.baseline.score is None:
            return float("-inf")
        difference = trial.score - self.baseline.score
        is_error = self.baseline.score < 0  # as in a regression
        if is_error:
            return difference / -self.baseline.score
        return difference

    @property
    def predicted_gain(self) -> float:
        """The gain at FSL's own weight, gamma = 1, by which server data can be ranked."""
        return self.compute_gain(self.gammas[-1])

    @property
    def is_suspect(self) -> bool:
        """True if the warm model predicts the server's labels no better than chance."""
        if self.majority_share is None:
            return False
        return self.server_score <= CHANCE_FACTOR * self.majority_share

    @property
    def best_gamma(self) -> InspectionTrial:
        """The gamma that gains most, or gamma = 1 for suspect labels.

        With a small gamma even harmful data may stabilize a model.
        """
        if self.is_suspect:
            return self.gammas[-1]
        return max(self.gammas, key=self.compute_gain)

    @property
    def best_beta(self) -> InspectionTrial:
        """The beta that gains most; without trials of betas, the baseline."""
        return max(self.betas, key=self.compute_gain, default=self.baseline)

    @property
    def verdict(self) -> Literal["helps", "little", "harms"]:
        """Prediction for the server's data: it helps, harms, or makes little difference."""
        min_gain = max(MIN_GAIN, MIN_GAINED_EXAMPLES / self.num_judged)
        if self.compute_gain(self.best_gamma) >= min_gain:
            return "helps"
        min_harm = min_gain if self.is_suspect else max(min_gain, MIN_HARM)
        if self.predicted_gain <= -min_harm:
            return "harms"
        return "little"


def inspect(
    config: RunConfig,
    on_message: Callable[[str], None] | None = None,
    betas: tuple[float, ...] = BETAS,
    fractions: tuple[float, ...] = FRACTIONS,
) -> Inspection:
    """Predict whether the server's data will help, from trials of server learning.

    Args:
        config: Data, model, cohort, seed and hyper-parameters of local training. Its method is not
            used.
        on_message: Called with a short description of each piece of work that begins.
        betas: Sizes of FedSIM's correction to try as well.
        fractions: Parts of the server's data to try as well, if all of it helps.
    """
    report = _ignore_message if on_message is None else on_message
    check_threads(config.threads)
    if config.threads:
        torch.set_num_threads(config.threads)
    data = from_config.load_dataset(config)
    _check_data(data)
    bench = build_bench(config, data)
    report(f"FedAvg, {WARMUP_ROUNDS} rounds")
    warm_params = _train_warm_model(bench)
    report("distances")
    inspection = _inspect_warm_model(bench, warm_params)
    run_gamma = partial(bench.run_server_learning, warm_params=warm_params)
    baseline, *gamma_trials = _run_trials(report, "gamma", (0.0, *GAMMAS), run_gamma)
    run_beta = partial(bench.run_correction, warm_params=warm_params)
    beta_trials = _run_trials(report, "beta", betas, run_beta)
    inspection = inspection._replace(baseline=baseline, gammas=gamma_trials, betas=beta_trials)
    if inspection.verdict != "helps":
        return inspection
    run_fraction = partial(
        bench.run_fraction, gamma=inspection.best_gamma.value, warm_params=warm_params
    )
    fraction_trials = _run_trials(report, "fraction", fractions, run_fraction)
    return inspection._replace(fractions=fraction_trials)


def _train_warm_model(bench: Bench) -> Params:
    """Train by FedAvg, which is server learning of weight 0, from first weights."""
    rounds = bench.iter_rounds("fsl", bench.task.params, 0, WARMUP_ROUNDS, gamma=0.0, server_lr=1.0)
    return next(islice(rounds, WARMUP_ROUNDS - 1, None))


def _run_trials(
    report: Callable[[str], None],
    name: str,
    values: tuple[float, ...],
    run: Callable[[float], InspectionTrial],
) -> list[InspectionTrial]:
    trials = []
    for value in values:
        report(f"{name} = {value:g}, {TRIAL_ROUNDS} rounds")
        trials.append(run(value))
    return trials


def _inspect_warm_model(bench: Bench, warm_params: Params) -> Inspection:
    """Return an inspection that has everything but the trials."""
    data = bench.data
    server = data.server
    assert server is not None
    server_rows = server.splits["train"].get_rows(0)
    rows = subsample_evenly(server_rows, MAX_EVAL_EXAMPLES)
    like = next(iter(warm_params.values()))
    server_batch = make_batch(server, rows, data.example_spec, like)
    majority_share = None
    if data.classes is not None and server.y.ndim == 1:
        label_counts = np.bincount(server.y[rows].astype(np.int64))
        majority_share = float(label_counts.max() / len(rows))
    return Inspection(
        name=data.name,
        examples=len(server_rows),
        scope=_describe_scope(data),
        num_judged=len(bench.eval_batch.y),
        warm_score=compute_score(bench.task, warm_params, bench.eval_batch),
        server_score=compute_score(bench.task, warm_params, server_batch),
        majority_share=majority_share,
        baseline=InspectionTrial(0.0, None),
        gammas=[],
        betas=[],
        fractions=[],
        closeness=compute_closeness(bench, warm_params),
    )


def _describe_scope(data: FederatedDataset) -> str:
    """Return sentences that say which data the inspection uses."""
    num_compared = min(MAX_CLIENTS, len(data.groups["train"]))
    num_judged = len(sample_train_examples(data, "validation", MAX_EVAL_EXAMPLES))
    num_validation = len(data.groups["validation"])
    return (
        f"Models are trained on training clients' train examples; distances are over "
        f"{num_compared} of these clients. Every score is over {num_judged:,} train examples of "
        f"{num_validation:,} validation clients, as a mean of {SCORED_ROUNDS} rounds. "
        "No test example and no unseen client is used."
    )


def _check_data(data: FederatedDataset) -> None:
    """Raise an InputError if trials cannot be run with the data."""
    server = data.server
    num_examples = 0 if server is None else len(server.splits["train"].get_rows(0))
    server_advice = "hold some out for it, for example with server=0.05"
    require(
        num_examples > 0,
        f"inspect: the server of data set '{data.name}' has no examples; {server_advice}.",
    )
    require(
        num_examples >= MIN_SERVER_EXAMPLES,
        f"inspect: the server of data set '{data.name}' must have at least {MIN_SERVER_EXAMPLES} "
        f"examples, got {num_examples}; {server_advice}.",
    )
    require(
        len(data.groups["validation"]) > 0,
        f"inspect: data set '{data.name}' has no validation clients to score models on; set some "
        "aside, for example with validation_clients=0.2.",
    )


def _ignore_message(_: str) -> None:
    """Do nothing with a message."""
