"""Summaries of a run: figures of groups of clients, of its last rounds, and of its speed.

Nothing here chooses: there is no best round. A run is represented by its last round, with all
clients scored, and by the mean over the evaluations in the last fifth of its rounds.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate

import numpy as np

from fedtailor.evaluation.client_statistics import (
    compute_micro_mean,
    compute_rise_time,
    compute_rolling_mean,
    compute_spread,
    find_first_reaching,
)
from fedtailor.evaluation.evaluate import FinalScores
from fedtailor.training.record.schema import (
    Convergence,
    Figures,
    FinalWindow,
    MetricInfo,
    RoundEntry,
    RunRecord,
    StageSummary,
)

FINAL_WINDOW_DIVISOR = 5
"""The final window is the last fifth of the rounds."""
ROLLING_WINDOW_DIVISOR = 50
"""A rolling mean is over a fiftieth of the rounds: 20 of 1,000, as in FSL's figures."""
HALF = 0.5
"""Of a metric from 0 to 1: the accuracy whose time the paper of FSL calls T_0.5."""


def get_last_eval_points(rounds: Sequence[RoundEntry], total: int) -> list[RoundEntry]:
    """Return the rounds with scores among the last fifth of `total` rounds."""
    first = total - max(1, total // FINAL_WINDOW_DIVISOR)
    return [entry for entry in rounds if entry.scores and entry.round > first]


def compute_final_window(rounds: Sequence[RoundEntry], total: int) -> FinalWindow:
    """Return the evaluated rounds among the last fifth of `total`, and mean figures over them."""
    eval_points = get_last_eval_points(rounds, total)
    mean: dict[str, dict[str, Figures]] = {}
    last_scores = eval_points[-1].scores if eval_points else None
    for group, stages in (last_scores or {}).items():
        mean[group] = {}
        for stage, figures in stages.items():
            mean[group][stage] = {
                name: _average_all(_collect_figure(eval_points, group, stage, name))
                for name in figures
            }
    return FinalWindow(eval_points=[entry.round for entry in eval_points], mean=mean)


def _collect_figure(
    eval_points: Sequence[RoundEntry], group: str, stage: str, name: str
) -> list[float | None]:
    return [(entry.scores or {})[group][stage].get(name) for entry in eval_points]


def describe_early_stops(records: Sequence[RunRecord]) -> str:
    """Return that runs stopped early, in brackets after a number of rounds; "" if none did."""
    num_stopped = sum(record.stopped_early_after is not None for record in records)
    if not num_stopped:
        return ""
    if len(records) == 1:
        return f" (of {records[0].config.rounds:,}, stopped early by validation clients)"
    return f" ({num_stopped} of {len(records)} runs stopped early by validation clients)"


def summarize_group(final: FinalScores, metric: MetricInfo) -> dict[str, StageSummary]:
    """Return a group's figures before and after personalizing, and after 1 and 5 passes of it."""
    scores = final.scores
    stages = {"before": scores.before, "after": scores.after, **final.after_passes}
    return {
        stage: _summarize_stage(figures, scores.weights, metric, final.f1.get(stage))
        for stage, figures in stages.items()
    }


def _summarize_stage(
    figures: Mapping[str, np.ndarray],
    weights: Mapping[str, np.ndarray],
    metric: MetricInfo,
    f1: float | None,
) -> StageSummary:
    over_clients = compute_spread(figures[metric.name], metric.higher_is_better)
    is_tested = weights[metric.name] > 0
    is_diverged = ~np.isfinite(figures[metric.name]) | ~np.isfinite(figures["loss"])
    return StageSummary(
        tested=int(is_tested.sum()),
        untested=int((~is_tested).sum()),
        diverged=int((is_tested & is_diverged).sum()),
        acc_micro=_to_json_number(compute_micro_mean(figures[metric.name], weights[metric.name])),
        acc_macro=_to_json_number(over_clients.mean),
        std=_to_json_number(over_clients.std),
        worst_tenth=_to_json_number(over_clients.worst_tenth),
        loss=_to_json_number(compute_micro_mean(figures["loss"], weights["loss"])),
        f1_macro=None if f1 is None else _to_json_number(f1),
    )


def compute_convergence(
    rounds: Sequence[RoundEntry], total: int, metric: MetricInfo, target: float | None
) -> dict[str, dict[str, Convergence]]:
    """Return how fast the headline metric of each group rose, before and after personalizing.

    The metric is taken as the rolling mean over a fiftieth of the rounds, at the rounds with
    scores.

    Args:
        rounds: All rounds of the run.
        total: The number of rounds that the run has in all, which sets the width of the rolling
            mean.
        metric: The headline metric.
        target: The value of the metric to reach, if one was asked for.
    """
    eval_points = [entry for entry in rounds if entry.scores]
    last_scores = eval_points[-1].scores if eval_points else None
    bytes_by_round = list(accumulate(entry.bytes_down + entry.bytes_up for entry in rounds))
    eval_rounds = [entry.round for entry in eval_points]
    width = max(1, total // ROLLING_WINDOW_DIVISOR)
    convergence: dict[str, dict[str, Convergence]] = {}
    for group in last_scores or {}:
        convergence[group] = {}
        for stage in ("before", "after"):
            known = _collect_figure(eval_points, group, stage, metric.name)
            values = [math.nan if value is None else value for value in known]
            smooth = compute_rolling_mean(eval_rounds, values, width)
            convergence[group][stage] = _find_levels(
                eval_rounds, smooth, metric, target, bytes_by_round
            )
    return convergence


def _find_levels(
    eval_rounds: Sequence[int],
    values: np.ndarray,
    metric: MetricInfo,
    target: float | None,
    bytes_by_round: Sequence[int],
) -> Convergence:
    rise_time = None
    if metric.higher_is_better:
        rise_time = compute_rise_time(eval_rounds, values)
    rounds_to_half = None
    if metric.is_percent:
        rounds_to_half = find_first_reaching(eval_rounds, values, HALF)
    rounds_to_target = None
    if target is not None:
        rounds_to_target = find_first_reaching(eval_rounds, values, target, metric.higher_is_better)
    bytes_to_target = None
    if rounds_to_target is not None:
        bytes_to_target = bytes_by_round[rounds_to_target - 1]
    return Convergence(
        rise_time=rise_time,
        rounds_to_half=rounds_to_half,
        target=target,
        rounds_to_target=rounds_to_target,
        bytes_to_target=bytes_to_target,
    )


def _average_all(values: Sequence[float | None]) -> float | None:
    """Return the mean; None if any value is, for an evaluation that diverged is not left out."""
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if len(known) == len(values) else None


def _to_json_number(value: float) -> float | None:
    return value if math.isfinite(value) else None
