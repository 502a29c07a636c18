"""The numbers of the curves: scores after rounds over seeds, and what had been spent by then."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedtailor.reporting.html.figures import BYTES_PER_MB, REPORT_GROUPS
from fedtailor.reporting.html.grouping import HeadlineMetric, ReportLine
from fedtailor.reporting.html.thinning import MAX_POINTS, thin
from fedtailor.training.record.schema import Figures, RunRecord

CURVE_STAGES = ("before", "after")

StageMeans = Mapping[str, Mapping[str, Figures]]
"""Mean scores by group and stage."""


class RoundState(NamedTuple):
    """A round, its scores, and what the run had cost at its end."""

    round: int
    scores: StageMeans
    mb: float
    flops: int
    steps: int


class CurvePoint(NamedTuple):
    """A score, and what the run had cost by then."""

    score: float
    mb: float
    flops: float
    steps: float


def build_curves(line: ReportLine, metric: HeadlineMetric) -> dict[str, Any]:
    """Return points by group, stage and metric, where any run was evaluated."""
    histories = [_build_history(run) for run in line.runs]
    curves: dict[str, Any] = {}
    for group in REPORT_GROUPS:
        for stage in CURVE_STAGES:
            for metric_name in metric.choices:
                points_by_run = [
                    _collect_points(history, group, stage, metric_name) for history in histories
                ]
                points = _aggregate_seeds(points_by_run)
                if points["round"]:
                    curves.setdefault(group, {}).setdefault(stage, {})[metric_name] = points
    return curves


def _build_history(run: RunRecord) -> list[RoundState]:
    """Return the state after each round."""
    history = []
    mb = 0.0
    flops = 0
    steps = 0
    for entry in run.rounds:
        mb += (entry.bytes_down + entry.bytes_up) / BYTES_PER_MB
        flops += entry.flops
        steps += entry.steps
        history.append(RoundState(entry.round, entry.scores or {}, mb, flops, steps))
    return history


def _collect_points(
    history: Sequence[RoundState], group: str, stage: str, metric_name: str
) -> dict[int, CurvePoint]:
    """Return the points of a run by round, where it was evaluated."""
    points = {}
    for state in history:
        score = state.scores.get(group, {}).get(stage, {}).get(metric_name)
        if score is not None:
            points[state.round] = CurvePoint(score, state.mb, state.flops, state.steps)
    return points


def _aggregate_seeds(points_by_run: Sequence[Mapping[int, CurvePoint]]) -> dict[str, list[Any]]:
    """Return mean, lowest and highest score over the seeds that were evaluated after a round.

    Costs are means over the same seeds. Of very many rounds, some are taken.
    """
    all_rounds = {round_idx for points in points_by_run for round_idx in points}
    rounds = thin(sorted(all_rounds), MAX_POINTS)
    columns: dict[str, list[Any]] = {
        name: [] for name in ("round", "mb", "flops", "steps", "mean", "low", "high", "seeds")
    }
    for round_idx in rounds:
        points = [points[round_idx] for points in points_by_run if round_idx in points]
        scores, traffic, flops, steps = np.array(points, dtype=float).T
        columns["round"].append(round_idx)
        columns["mb"].append(float(traffic.mean()))
        columns["flops"].append(float(flops.mean()))
        columns["steps"].append(float(steps.mean()))
        columns["mean"].append(float(scores.mean()))
        columns["low"].append(float(scores.min()))
        columns["high"].append(float(scores.max()))
        columns["seeds"].append(len(points))
    return columns
