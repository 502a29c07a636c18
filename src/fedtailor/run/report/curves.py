"""Curves over rounds, as plain numbers: means over seeds with their bands, and what they had cost by then."""

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from fedtailor.run.report.figures import GROUPS
from fedtailor.run.report.grouping import Line, Metric, Record
from fedtailor.run.report.thinning import MOST_POINTS, thinned

STAGES = ("before", "after")
SPENT = ("mb", "flops", "steps")


def curves(line: Line, metric: Metric) -> dict[str, Any]:
    """group -> stage -> figure -> points, where any run has been scored."""
    found: dict[str, Any] = {}
    histories = [_history(run) for run in line.runs]
    for group in GROUPS:
        for stage in STAGES:
            for figure in metric.figures:
                points = _band([_points(history, group, stage, figure) for history in histories])
                if points["round"]:
                    found.setdefault(group, {}).setdefault(stage, {})[figure] = points
    return found


def _history(run: Record) -> list[dict[str, Any]]:
    """The rounds that were scored, with what they had cost by then; the final scores stand in for the last round's."""
    entries = run["rounds"]
    spent = {
        "mb": accumulate((entry["bytes_down"] + entry["bytes_up"]) / 1e6 for entry in entries),
        "steps": accumulate(entry["steps"] for entry in entries),
        "flops": accumulate(entry.get("flops") or 0 for entry in entries),
    }
    history = [
        {"round": entry["round"], "scores": entry["scores"] or {}, **dict(zip(spent, costs, strict=True))}
        for entry, *costs in zip(entries, *spent.values(), strict=True)
    ]
    if history and run["scores"]:
        history[-1]["scores"] = _means(run["scores"]) | history[-1]["scores"]
    return history


def _means(scores: dict[str, Any]) -> dict[str, Any]:
    return {
        group: {stage: {figure: _mean(values) for figure, values in found[stage].items()} for stage in STAGES}
        for group, found in scores.items()
    }


def _mean(values: Sequence[float | None]) -> float | None:
    tested = [value for value in values if value is not None]
    return float(np.mean(tested)) if tested else None


def _points(history: list[dict[str, Any]], group: str, stage: str, figure: str) -> dict[int, tuple[float, ...]]:
    """round -> (figure, what it had cost by then), where there is one."""
    found = {
        entry["round"]: (_look(entry["scores"], group, stage, figure), *(entry[key] for key in SPENT))
        for entry in history
    }
    return {number: point for number, point in found.items() if point[0] is not None and math.isfinite(point[0])}


def _look(scores: dict[str, Any], *keys: str) -> float | None:
    found: Any = scores
    for key in keys:
        found = (found or {}).get(key)
    return None if found is None else float(found)


def _band(runs: list[dict[int, tuple[float, ...]]]) -> dict[str, list[float]]:
    """Mean, lowest and highest over the seeds that were scored in a round, and mean costs; of many rounds some."""
    rounds = thinned(sorted({number for run in runs for number in run}), MOST_POINTS)
    there = [np.array([run[number] for run in runs if number in run], dtype=float) for number in rounds]
    spent = {key: [float(found[:, place].mean()) for found in there] for place, key in enumerate(SPENT, 1)}
    return {
        "round": list(rounds),
        **spent,
        "mean": [float(found[:, 0].mean()) for found in there],
        "low": [float(found[:, 0].min()) for found in there],
        "high": [float(found[:, 0].max()) for found in there],
        "seeds": [len(found) for found in there],
    }
