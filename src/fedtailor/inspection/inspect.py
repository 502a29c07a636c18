"""Predict, before any long run, whether the server's data will help training.

Trials (`trials`) are the run itself, or its first part, with and without the server's data, scored
on validation clients. What follows from them (`forecast`) is said with its uncertainty. Distances
between the server's and the clients' data (`closeness`) may explain it.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch

from fedtailor.core.task import Task
from fedtailor.core.types import Batch, Params
from fedtailor.data.dataset import FederatedDataset
from fedtailor.data.label_table import subsample_evenly
from fedtailor.engines.context import resolve_device
from fedtailor.errors import require
from fedtailor.inspection.closeness import Closeness, compute_closeness, sample_train_examples
from fedtailor.inspection.forecast import (
    Estimate,
    FloatArray,
    StageForecast,
    Verdict,
    forecast_stage,
    select_contenders,
)
from fedtailor.inspection.settings import Setting, make_settings
from fedtailor.inspection.statistics.gradients import make_batch
from fedtailor.inspection.trials import (
    MIN_JUDGED_EXAMPLES,
    STAGES,
    TrialData,
    Trials,
    TrialScores,
    collect_scores,
    make_trial_data,
    run_trial,
    subsample_server,
)
from fedtailor.inspection.workload import (
    MAX_SECONDS,
    NUM_SCREENING_TRIALS,
    Workload,
    estimate_work,
    plan_workload,
)
from fedtailor.training import from_config
from fedtailor.training.config import RunConfig
from fedtailor.training.resources import check_threads

FRACTIONS = (0.25, 0.5)
"""Parts of the server's data that are tried, in rising order, where all of it helps."""

MIN_SERVER_EXAMPLES = 2
"""Minimum number of examples of the server."""

CHANCE_FACTOR = 1.5
"""Multiple of the most frequent server label's share up to which accuracy counts as chance."""

MAX_SCORED_EXAMPLES = 3000
"""Maximum number of examples on which agreement with labels is computed."""

HELPFUL = (Verdict.HELPS, Verdict.PROBABLY_HELPS)


class FractionForecast(NamedTuple):
    """What a part of the server's data gains over all of it, at the recommended setting."""

    fraction: float
    num_examples: int
    estimate: Estimate | None  # of the part's gain over all of it; None if it diverged


class LabelAgreement(NamedTuple):
    """How often a model trained without server data gives the labels of others' examples."""

    clients: float  # score on training clients' examples
    server: float
    majority_share: float | None  # of the server's most frequent label; None: no labels

    @property
    def is_suspect(self) -> bool:
        """True if the model predicts clients' labels, but the server's no better than chance."""
        if self.majority_share is None:
            return False
        chance = CHANCE_FACTOR * self.majority_share
        return self.server <= chance and self.clients > 2 * chance


class Inspection(NamedTuple):
    """The trials, what they say before and after personalizing, and possible reasons."""

    name: str  # of the data set
    examples: int  # number of the server's examples
    settings: tuple[Setting, ...]
    workload: Workload
    num_rounds: int  # of the run
    num_judged: int  # validation clients' examples that the scores of a trial are over
    num_clients: int  # validation clients of a trial
    client_ratio: float  # of validation clients of a trial to unseen clients
    metric: str
    scores: dict[str, FloatArray]  # by stage: of trials, [trials, settings]; NaN: it diverged
    forecasts: dict[str, StageForecast]  # by stage
    fractions: dict[str, tuple[FractionForecast, ...]]  # by stage; empty unless the data help
    num_diverged: tuple[int, ...]  # trials of each setting
    agreement: LabelAgreement | None  # None if no model without server data is left
    closeness: Closeness | None

    @property
    def is_whole(self) -> bool:
        """Whether trials are as long as the run."""
        return self.workload.num_rounds == self.num_rounds


def inspect(
    config: RunConfig,
    on_message: Callable[[str], None] | None = None,
    on_workload: Callable[[Workload, int], None] | None = None,
    max_seconds: float = MAX_SECONDS,
    should_try_fractions: bool = True,
) -> Inspection:
    """Predict whether the server's data will help a run.

    Args:
        config: The run, as `fedtailor run` takes it.
        on_message: Called with a short description of each piece of work that begins.
        on_workload: Called before the trials with what they are and the number of settings.
        max_seconds: Estimated seconds that trials may take, unless the fewest take longer.
        should_try_fractions: Whether parts of the server's data are tried where all of it helps.
    """
    report = _ignore if on_message is None else on_message
    check_threads(config.threads)
    if config.threads:
        torch.set_num_threads(config.threads)
    data = from_config.load_dataset(config)
    _check_data(data)
    settings = make_settings(config, data)
    first = make_trial_data(data, 0)
    workload = plan_workload(
        [estimate_work(setting, first) for setting in settings], config.rounds, max_seconds
    )
    if on_workload is not None:
        on_workload(workload, len(settings))
    trials = _run_trials(data, settings, workload, report)
    num_trials = workload.num_trials
    scores = {stage: collect_scores(trials, num_trials, stage) for stage in STAGES}
    report("distances")
    agreement, closeness = _explain(config, data, settings, trials)
    inspection = Inspection(
        name=data.name,
        examples=_count_server_examples(data),
        settings=tuple(settings),
        workload=workload,
        num_rounds=config.rounds,
        num_judged=first.num_examples,
        num_clients=len(first.copy_ids),
        client_ratio=compute_client_ratio(data, first),
        metric=from_config.build_task(config, data.example_spec).metrics[0].name,
        scores=scores,
        forecasts={
            stage: forecast_stage(
                scores[stage],
                [setting.uses_server for setting in settings],
                workload.num_rounds / config.rounds,
                compute_client_ratio(data, first),
            )
            for stage in STAGES
        },
        fractions={},
        num_diverged=tuple(setting_trials.count(None) for setting_trials in trials),
        agreement=agreement,
        closeness=closeness,
    )
    if not should_try_fractions:
        return inspection
    return inspection._replace(fractions=_try_fractions(data, inspection, trials, report))


def compute_client_ratio(data: FederatedDataset, trial_data: TrialData) -> float:
    """Return the number of clients that a trial is scored on over that of unseen clients.

    Without unseen clients, as many are assumed.
    """
    num_judged = len(trial_data.copy_ids)
    return num_judged / (len(data.groups["unseen"]) or num_judged)


def _run_trials(
    data: FederatedDataset,
    settings: list[Setting],
    workload: Workload,
    report: Callable[[str], None],
) -> list[Trials]:
    """Return the trials of each setting; those that fall behind early have few."""
    uses_server = [setting.uses_server for setting in settings]
    trials: list[Trials] = [[] for _ in settings]
    contenders = set(range(len(settings)))
    for trial in range(workload.num_trials):
        if trial == NUM_SCREENING_TRIALS:
            contenders = set()
            for stage in STAGES:
                scores = collect_scores(trials, trial, stage)
                contenders |= select_contenders(forecast_stage(scores, uses_server), uses_server)
        trial_data = make_trial_data(data, trial)
        for index in sorted(contenders):
            setting = settings[index]
            report(f"trial {trial + 1} of {workload.num_trials}: {setting.label}")
            trials[index].append(run_trial(setting, trial_data, trial, workload.num_rounds))
    return trials


def _try_fractions(
    data: FederatedDataset,
    inspection: Inspection,
    trials: Sequence[Trials],
    report: Callable[[str], None],
) -> dict[str, tuple[FractionForecast, ...]]:
    """Return what parts of the server's data gain over all of it, where all of it helps."""
    helped = {
        stage: forecast.best
        for stage, forecast in inspection.forecasts.items()
        if forecast.verdict in HELPFUL and forecast.best is not None
    }
    forecasts: dict[str, list[FractionForecast]] = {stage: [] for stage in helped}
    for best in sorted(set(helped.values())):
        setting = inspection.settings[best]
        for fraction in FRACTIONS:
            num_examples = round(fraction * inspection.examples)
            if num_examples < MIN_SERVER_EXAMPLES:
                continue
            part_trials = []
            for trial in range(inspection.workload.num_trials):
                report(f"trial {trial + 1}: {setting.label} with {num_examples} server examples")
                part = subsample_server(data, fraction, trial)
                trial_data = make_trial_data(part, trial)
                num_rounds = inspection.workload.num_rounds
                part_trials.append(run_trial(setting, trial_data, trial, num_rounds))
            pair = [trials[best], part_trials]
            for stage, stage_best in helped.items():
                if stage_best != best:
                    continue
                forecast = forecast_stage(
                    collect_scores(pair, len(part_trials), stage), (False, True)
                )
                estimate = forecast.estimates[1]
                forecasts[stage].append(FractionForecast(fraction, num_examples, estimate))
    return {stage: tuple(fractions) for stage, fractions in forecasts.items()}


def _explain(
    config: RunConfig,
    data: FederatedDataset,
    settings: Sequence[Setting],
    trials: Sequence[Trials],
) -> tuple[LabelAgreement | None, Closeness | None]:
    """Return possible reasons, at the best model of the first trial without server data."""
    best: TrialScores | None = None
    for setting, setting_trials in zip(settings, trials, strict=True):
        scores = setting_trials[0]
        if scores is None or setting.uses_server:
            continue
        if best is None or scores.final["before"] > best.final["before"]:
            best = scores
    if best is None:
        return None, None
    task = from_config.build_task(config, data.example_spec)
    task = task.to(resolve_device(config.device))
    agreement = _compute_agreement(data, task, best.params)
    return agreement, compute_closeness(data, task, best.params, _find_learner(settings))


def _find_learner(settings: Sequence[Setting]) -> RunConfig | None:
    """Return the specification of FSL with the most learning, if it is tried."""
    configs = [setting.config for setting in settings if setting.config.method == "fsl"]
    return configs[-1] if configs else None


def _compute_agreement(data: FederatedDataset, task: Task, params: Params) -> LabelAgreement:
    server = data.server
    assert server is not None
    like = next(iter(params.values()))
    server_rows = subsample_evenly(server.splits["train"].get_rows(0), MAX_SCORED_EXAMPLES)
    server_batch = make_batch(server, server_rows, data.example_spec, like)
    client_rows = sample_train_examples(data, "validation", MAX_SCORED_EXAMPLES)
    client_batch = make_batch(data.clients, client_rows, data.example_spec, like)
    majority_share = None
    if data.classes is not None and server.y.ndim == 1:
        label_counts = np.bincount(server.y[server_rows].astype(np.int64))
        majority_share = float(label_counts.max() / len(server_rows))
    return LabelAgreement(
        clients=compute_score(task, params, client_batch),
        server=compute_score(task, params, server_batch),
        majority_share=majority_share,
    )


def compute_score(task: Task, params: Params, batch: Batch) -> float:
    """Score a model on examples by the first metric of its task, negated if lower is better."""
    metric = task.metrics[0]
    with torch.no_grad():
        total, weight = task.compute_metric_sums(params, batch)[metric.name].tolist()
    mean = float(total / max(weight, 1.0))
    return mean if metric.higher_is_better else -mean


def _count_server_examples(data: FederatedDataset) -> int:
    return 0 if data.server is None else len(data.server.splits["train"].get_rows(0))


def _check_data(data: FederatedDataset) -> None:
    """Raise an InputError if trials cannot be run with the data."""
    num_examples = _count_server_examples(data)
    server_advice = "hold some out for it, for example with data.server=0.05"
    require(
        num_examples > 0,
        f"inspect: the server of data set '{data.name}' has no examples; {server_advice}.",
    )
    require(
        num_examples >= MIN_SERVER_EXAMPLES,
        f"inspect: the server of data set '{data.name}' must have at least {MIN_SERVER_EXAMPLES} "
        f"examples, got {num_examples}; {server_advice}.",
    )
    validation_ids = data.groups["validation"]
    require(
        len(validation_ids) > 0,
        f"inspect: data set '{data.name}' has no validation clients to score models on; set some "
        "aside, for example with data.validation_clients=0.2.",
    )
    sizes = data.clients.splits["train"].compute_sizes()
    pool = np.concatenate([validation_ids, data.groups["train"]])
    require(
        bool((sizes[pool] >= MIN_JUDGED_EXAMPLES).all()),
        f"inspect: every client of data set '{data.name}' that is not unseen must have at least "
        f"{MIN_JUDGED_EXAMPLES} train examples, one to personalize on and one to score, but one "
        f"has {int(sizes[pool].min())}; leave small clients out.",
    )


def _ignore(_: str) -> None:
    """Do nothing with a message."""
