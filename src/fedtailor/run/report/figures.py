"""The table's figures: means over clients, averaged over seeds."""

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedtailor.run.metrics import spread
from fedtailor.run.report.grouping import Line, Metric, Record, runs_of

GROUPS = ("local", "new", "validation")
SENT, WORK = ("down", "up"), ("flops", "steps")
COSTS = (*SENT, "flops", "steps", "seconds")
_NAMES = {"down": "bytes_down", "up": "bytes_up", "steps": "steps", "seconds": "seconds"}
_COUNTED = {"flops": "flops", "server": "server_flops"}  # not in every record


class Figure(NamedTuple):
    """A number averaged over seeds."""

    mean: float
    over_clients: float | None = None  # standard deviation over clients, averaged over seeds
    over_seeds: float | None = None  # sample standard deviation over seeds, where there are several


class Row(NamedTuple):
    """A row of the table: column -> figure; a column without one is left out."""

    label: str
    line: int  # the line it belongs to
    cells: dict[str, Figure]


class Column(NamedTuple):
    """A column of figures, and which of them are better."""

    key: str
    group: str
    heading: str
    higher_is_better: bool
    scale: float = 1.0  # what one of the unit that it is shown in is
    decimals: int | None = None  # None: what its figures need


def groups_of(lines: Sequence[Line]) -> list[str]:
    """Groups of clients with final scores or, before there are any, those that will have them."""
    runs = [run for _, run in runs_of(lines)]
    scored = {group for run in runs for group in run["scores"] or ()}
    only = {"validation"} if runs[0]["spec"].get("scored") == "validation" else {"local", "new"}
    coming = {group for group in only for run in runs if run["data"]["groups"].get(group)}
    return [group for group in GROUPS if group in (scored or coming)]


def columns(groups: Sequence[str], metric: Metric, costs: Sequence[str] = COSTS) -> list[Column]:
    """The table's columns from left to right."""
    names = (("before", "before"), ("after", "after"), ("worst", "worst tenth"))
    scores = [
        Column(f"{group}.{key}", group, heading, metric.higher_is_better, metric.scale)
        for group in groups
        for key, heading in names
    ]
    return scores + [Column(key, "cost", key, False, decimals=0 if key == "steps" else None) for key in costs]


def rows(lines: Sequence[Line], metric: Metric) -> list[Row]:
    """A row for each line; averaging gets a second one, with fine-tuning."""
    made = []
    stages = stages_of(lines)
    for number, line in enumerate(lines):
        if line.tuned_label != line.label:
            made.append(_row(line.label, number, line, metric, ("before",)))
        made.append(_row(line.tuned_label, number, line, metric, stages))
    return made


def in_order(made: Sequence[Row], column: Column) -> list[int]:
    """The rows with a figure in a column, the best first."""
    sign = -1 if column.higher_is_better else 1
    scored = [place for place, row in enumerate(made) if column.key in row.cells]
    return sorted(scored, key=lambda place: sign * made[place].cells[column.key].mean)


def ranking(lines: Sequence[Line], metric: Metric) -> list[int]:
    """The scored lines, best first after personalising, on new clients if there are any."""
    made = rows(lines, metric)
    after = [column for column in columns(groups_of(lines), metric) if column.heading == "after"]
    found = [order for column in after if (order := in_order(made, column))]
    return [made[place].line for place in found[-1]] if found else []


def cost_of(run: Record) -> dict[str, float]:
    """Megabytes, floating-point operations where they were counted, steps and seconds so far."""
    found: dict[str, float] = {}
    for key, name in {**_NAMES, **_COUNTED}.items():
        total = _total(run, name)
        if total is not None:
            found[key] = total / 1e6 if key in SENT else total
    return found


def _total(run: Record, name: str) -> float | None:
    """From the run's sum or, where it has made none yet, from its rounds."""
    if run["cost"]:
        found: float | None = run["cost"].get(name)
        return found
    parts = [entry[name] for entry in run["rounds"] if name in entry]
    return sum(parts) if parts or name in _NAMES.values() else None


def costs_of(lines: Sequence[Line]) -> list[str]:
    """The costs that every run knows of."""
    known = [cost_of(run) for _, run in runs_of(lines)]
    return [key for key in COSTS if all(key in cost for cost in known)]


def numbers(values: Iterable[Any]) -> np.ndarray:
    """As floats, NaN for None."""
    return np.array([math.nan if value is None else value for value in values], dtype=float)


def scored(line: Line, group: str, stage: str, figure: str) -> list[np.ndarray]:
    """For each finished run its clients' figures; runs in which nobody could be tested are left out."""
    found = [stage_of(run["scores"][group], stage) for run in line.runs if run["scores"] and group in run["scores"]]
    values = [numbers(scores[figure]) for scores in found if figure in scores]
    return [each for each in values if not np.isnan(each).all()]


def windowed(line: Line, group: str, stage: str, figure: str) -> list[float]:
    """For each run that knows it the mean over the looks in the last fifth of its rounds."""
    found = [run["window"]["mean"].get(group, {}).get(stage, {}).get(figure) for run in line.runs if run.get("window")]
    return [float(value) for value in found if value is not None]


def stage_of(scores: Record, stage: str) -> Record:
    """The figures before personalising, after it, or after so many of its steps; none where there are none."""
    found: Record = scores.get(stage) or (scores.get("after_steps") or {}).get(stage) or {}
    return found


def stages_of(lines: Sequence[Line]) -> list[str]:
    """Before personalising, after so many steps where that was scored, and after it."""
    found = [scores.get("after_steps") or {} for _, run in runs_of(lines) for scores in (run["scores"] or {}).values()]
    steps = sorted({step for each in found for step in each}, key=int)
    return ["before", *steps, "after"]


def summed_up(key: str, values: Sequence[float], clients: Sequence[float] = ()) -> dict[str, Figure]:
    """A column's figure from one number a seed, and from its spread over clients where that is known."""
    if not values:
        return {}
    over_seeds = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return {key: Figure(float(np.mean(values)), float(np.mean(clients)) if clients else None, over_seeds)}


def _row(label: str, number: int, line: Line, metric: Metric, stages: Sequence[str]) -> Row:
    cells: dict[str, Figure] = {}
    for group in GROUPS:
        for stage in stages:
            spreads = [spread(values, metric.higher_is_better) for values in scored(line, group, stage, metric.name)]
            clients, means = [found.std for found in spreads], [found.mean for found in spreads]
            late = windowed(line, group, stage, metric.name)
            cells |= summed_up(f"{group}.{stage}", late if len(late) == len(means) else means, clients)
            cells |= summed_up(f"{group}.worst", [found.worst_tenth for found in spreads])
    costs = [cost_of(run) for run in line.runs]
    for key in COSTS:
        cells |= summed_up(key, [cost[key] for cost in costs if key in cost])
    return Row(label, number, cells)
