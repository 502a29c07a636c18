"""Curves over rounds, as plain numbers: means over seeds with their bands, and what they had cost by then."""

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from fedtailor.reporting.html.figures import REPORT_GROUPS
from fedtailor.reporting.html.grouping import HeadlineMetric, Record, ReportLine
from fedtailor.reporting.html.thinning import MAX_POINTS, thin

CURVE_STAGES = ("before", "after")
COST_AXES = ("mb", "flops", "steps")


def build_curves(line: ReportLine, metric: HeadlineMetric) -> dict[str, Any]:
    """group -> stage -> figure -> points, where any run has been scored."""
    found: dict[str, Any] = {}
    histories = [_build_history(run) for run in line.runs]
    for group in REPORT_GROUPS:
        for stage in CURVE_STAGES:
            for metric_name in metric.figures:
                points = _aggregate_seeds(
                    [_collect_points(history, group, stage, metric_name) for history in histories]
                )
                if points["round"]:
                    found.setdefault(group, {}).setdefault(stage, {})[metric_name] = points
    return found


def _build_history(run: Record) -> list[dict[str, Any]]:
    """The rounds that were scored, with what they had cost by then; the final scores stand in for the last round's."""
    entries = run["rounds"]
    spent = {
        "mb": accumulate((entry["bytes_down"] + entry["bytes_up"]) / 1e6 for entry in entries),
        "steps": accumulate(entry["steps"] for entry in entries),
        "flops": accumulate(entry.get("flops") or 0 for entry in entries),
    }
    history = [
        {
            "round": entry["round"],
            "scores": entry["scores"] or {},
            **dict(zip(spent, costs, strict=True)),
        }
        for entry, *costs in zip(entries, *spent.values(), strict=True)
    ]
    if history and run["scores"]:
        history[-1]["scores"] = _average_scores(run["scores"]) | history[-1]["scores"]
    return history


def _average_scores(scores: dict[str, Any]) -> dict[str, Any]:
    return {
        group: {
            stage: {
                metric_name: _average_known(values) for metric_name, values in found[stage].items()
            }
            for stage in CURVE_STAGES
        }
        for group, found in scores.items()
    }


def _average_known(values: Sequence[float | None]) -> float | None:
    tested = [value for value in values if value is not None]
    return float(np.mean(tested)) if tested else None


def _collect_points(
    history: list[dict[str, Any]], group: str, stage: str, metric_name: str
) -> dict[int, tuple[float, ...]]:
    """round -> (figure, what it had cost by then), where there is one."""
    found = {
        entry["round"]: (
            _get_score(entry["scores"], group, stage, metric_name),
            *(entry[key] for key in COST_AXES),
        )
        for entry in history
    }
    return {
        round_idx: point
        for round_idx, point in found.items()
        if point[0] is not None and math.isfinite(point[0])
    }


def _get_score(scores: dict[str, Any], *keys: str) -> float | None:
    found: Any = scores
    for key in keys:
        found = (found or {}).get(key)
    return None if found is None else float(found)


def _aggregate_seeds(runs: list[dict[int, tuple[float, ...]]]) -> dict[str, list[float]]:
    """Mean, lowest and highest over the seeds that were scored in a round, and mean costs; of many rounds some."""
    rounds = thin(sorted({round_idx for run in runs for round_idx in run}), MAX_POINTS)
    points_by_round = [
        np.array([run[round_idx] for run in runs if round_idx in run], dtype=float)
        for round_idx in rounds
    ]
    spent = {
        key: [float(found[:, column_idx].mean()) for found in points_by_round]
        for column_idx, key in enumerate(COST_AXES, 1)
    }
    return {
        "round": list(rounds),
        **spent,
        "mean": [float(found[:, 0].mean()) for found in points_by_round],
        "low": [float(found[:, 0].min()) for found in points_by_round],
        "high": [float(found[:, 0].max()) for found in points_by_round],
        "seeds": [len(found) for found in points_by_round],
    }
