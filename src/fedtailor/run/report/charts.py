"""What is drawn, as plain numbers: curves over rounds, clients one by one, costs, and the data."""

import json
import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from fedtailor.run.report.figures import GROUPS, cost_of, numbers
from fedtailor.run.report.grouping import Line, Metric, Record, metric_of, seed_of

CURVE_GROUPS = ("local", "new", "validation")
STAGES = ("before", "after")
MOST_CLIENTS = 2000  # drawn one by one, per run and group


def payload(lines: Sequence[Line]) -> dict[str, Any]:
    """Everything that the page's scripts draw."""
    metric = metric_of(lines)
    return {
        "metric": {"name": metric.name, "higher": metric.higher_is_better, "percent": metric.percent},
        "lines": [_line(line, metric) for line in lines],
        "data": picture(lines[0].runs[0]),
    }


def curves(line: Line, metric: Metric) -> dict[str, Any]:
    """group -> stage -> figure -> points, where any run has been scored."""
    found: dict[str, Any] = {}
    histories = [_history(run) for run in line.runs]
    for group in CURVE_GROUPS:
        for stage in STAGES:
            for figure in figure_names(metric):
                points = _band([_points(history, group, stage, figure) for history in histories])
                if points["round"]:
                    found.setdefault(group, {}).setdefault(stage, {})[figure] = points
    return found


def clients(line: Line, metric: Metric) -> dict[str, Any]:
    """group -> the final figures of the clients of all runs, before and after, with ids and seeds."""
    found = {}
    for group in GROUPS:
        parts = [_clients(run, group, metric) for run in line.runs if run["scores"] and group in run["scores"]]
        if parts:
            found[group] = {key: [value for part in parts for value in part[key]] for key in parts[0]}
    return found


def picture(run: Record) -> dict[str, Any]:
    """The first run's data: clients in order of group and of their commonest label, with sizes and label counts."""
    data = run["data"]
    group_of = _group_of(data)
    order = _thinned(sorted(group_of, key=lambda client: (_ORDER.index(group_of[client]), *_commonest(data, client))))
    return {
        "seed": seed_of(run),
        "of": len(group_of),
        "ids": [data["clients"][client] for client in order],
        "group": [group_of[client] for client in order],
        "train": [data["train_sizes"][client] for client in order],
        "labels": None if data["labels"] is None else [data["labels"][client] for client in order],
        "server": data["server_examples"],
        "server_labels": data["server_labels"],
    }


def figure_names(metric: Metric) -> list[str]:
    """The headline figure, and the loss beside it."""
    return list(dict.fromkeys((metric.name, "loss")))


def as_json(value: Any) -> str:
    """JSON that can stand inside a script element: five digits, null for what is not finite, no `<`, `>` or `&`."""
    text = json.dumps(_rounded(value), separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


_ORDER = ("local", "train", "validation", "new")


def _line(line: Line, metric: Metric) -> dict[str, Any]:
    costs = [cost_of(run) for run in line.runs]
    return {
        "label": line.label,
        "tuned": line.tuned_label,
        "curves": curves(line, metric),
        "clients": clients(line, metric),
        "cost": {key: float(np.mean([cost[key] for cost in costs])) for key in costs[0]},
    }


def _history(run: Record) -> list[dict[str, Any]]:
    """The rounds that were scored, with what had been sent by then; the final scores stand in for the last round's."""
    sent = accumulate((entry["bytes_down"] + entry["bytes_up"]) / 1e6 for entry in run["rounds"])
    history = [
        {"round": entry["round"], "mb": mb, "scores": entry["scores"] or {}}
        for entry, mb in zip(run["rounds"], sent, strict=True)
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


def _points(history: list[dict[str, Any]], group: str, stage: str, figure: str) -> dict[int, tuple[float, float]]:
    """round -> (megabytes, figure), where there is one."""
    found = {entry["round"]: (entry["mb"], _look(entry["scores"], group, stage, figure)) for entry in history}
    return {number: (mb, value) for number, (mb, value) in found.items() if value is not None and math.isfinite(value)}


def _look(scores: dict[str, Any], *keys: str) -> float | None:
    found: Any = scores
    for key in keys:
        found = (found or {}).get(key)
    return None if found is None else float(found)


def _band(runs: list[dict[int, tuple[float, float]]]) -> dict[str, list[float]]:
    """Mean, lowest and highest over the seeds that were scored in a round."""
    rounds = sorted({number for run in runs for number in run})
    there = [[run[number] for run in runs if number in run] for number in rounds]
    return {
        "round": list(rounds),
        "mb": [float(np.mean([mb for mb, _ in found])) for found in there],
        "mean": [float(np.mean([value for _, value in found])) for found in there],
        "low": [min(value for _, value in found) for found in there],
        "high": [max(value for _, value in found) for found in there],
        "seeds": [len(found) for found in there],
    }


def _clients(run: Record, group: str, metric: Metric) -> dict[str, list[Any]]:
    scores = run["scores"][group]
    which = _thinned(range(len(scores["ids"])))
    values = {
        f"{stage}.{figure}": [scores[stage][figure][place] for place in which]
        for stage in STAGES
        for figure in figure_names(metric)
    }
    return {"ids": [scores["ids"][place] for place in which], "seed": [seed_of(run)] * len(which), **values}


def _group_of(data: dict[str, Any]) -> dict[int, str]:
    return {client: group for group in reversed(_ORDER) for client in data["groups"].get(group, ())}


def _commonest(data: dict[str, Any], client: int) -> tuple[int, int]:
    """The client's commonest label and its count, largest first, for sorting; its size where labels are unknown."""
    if data["labels"] is None:
        return 0, -data["train_sizes"][client]
    counts = data["labels"][client]
    return int(np.argmax(numbers(counts))), -max(counts)


def _thinned(places: Sequence[int]) -> list[int]:
    """At most so many of them, evenly spaced."""
    if len(places) <= MOST_CLIENTS:
        return list(places)
    return [places[int(place)] for place in np.linspace(0, len(places) - 1, MOST_CLIENTS)]


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(inner) for inner in value]
    if isinstance(value, float):
        return float(f"{value:.5g}") if math.isfinite(value) else None
    return value
