"""The table's figures: means over clients, averaged over seeds, and what is best."""

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedtailor.run.metrics import spread
from fedtailor.run.report.grouping import Line, Metric, Record

GROUPS = ("local", "new")
COSTS = ("down", "up", "steps", "seconds")


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


def groups_of(lines: Sequence[Line]) -> list[str]:
    """Groups of clients with somebody in them."""
    return [group for group in GROUPS if any(run["data"]["groups"].get(group) for line in lines for run in line.runs)]


def columns(groups: Sequence[str], metric: Metric) -> list[Column]:
    """The table's columns from left to right."""
    names = (("before", "before"), ("after", "after"), ("worst", "worst tenth"))
    scores = [
        Column(f"{group}.{key}", group, heading, metric.higher_is_better) for group in groups for key, heading in names
    ]
    headings = ("MB down", "MB up", "client steps", "seconds")
    return scores + [Column(key, "cost", heading, False) for key, heading in zip(COSTS, headings, strict=True)]


def rows(lines: Sequence[Line], metric: Metric) -> list[Row]:
    """A row for each line; averaging gets a second one, with fine-tuning."""
    made = []
    for number, line in enumerate(lines):
        if line.tuned_label != line.label:
            made.append(_row(line.label, number, line, metric, ("before",)))
        made.append(_row(line.tuned_label, number, line, metric, ("before", "after")))
    return made


def best(made: Sequence[Row], column: Column) -> set[int]:
    """The rows with the column's best figure; none where there is no choice."""
    found = {place: row.cells[column.key].mean for place, row in enumerate(made) if column.key in row.cells}
    if not found:
        return set()
    wanted = max(found.values()) if column.higher_is_better else min(found.values())
    winners = {place for place, value in found.items() if math.isclose(value, wanted, abs_tol=1e-12)}
    return winners if len(winners) < len(found) else set()


def leader(lines: Sequence[Line], metric: Metric) -> int:
    """The line that does best after personalising, on new clients if there are any; the first that is scored."""
    made = rows(lines, metric)
    scored = [column for column in columns(GROUPS, metric) if column.heading == "after"]
    winners = [min(best(made, column), default=None) for column in scored]
    return next((made[place].line for place in reversed(winners) if place is not None), _first_scored(made))


def _first_scored(made: Sequence[Row]) -> int:
    return next((row.line for row in made if any(key.endswith(".after") for key in row.cells)), 0)


def cost_of(run: Record) -> dict[str, float]:
    """Megabytes, steps and seconds so far; the rounds are summed up where the run has not done so yet."""
    names = ("bytes_down", "bytes_up", "steps", "seconds")
    cost = run["cost"] or {name: sum(entry[name] for entry in run["rounds"]) for name in names}
    values = (cost["bytes_down"] / 1e6, cost["bytes_up"] / 1e6, cost["steps"], cost["seconds"])
    return dict(zip(COSTS, values, strict=True))


def numbers(values: Iterable[Any]) -> np.ndarray:
    """As floats, NaN for None."""
    return np.array([math.nan if value is None else value for value in values], dtype=float)


def _row(label: str, number: int, line: Line, metric: Metric, stages: tuple[str, ...]) -> Row:
    cells: dict[str, Figure] = {}
    for group in GROUPS:
        for stage in stages:
            spreads = [spread(values, metric.higher_is_better) for values in _scored(line, group, stage, metric.name)]
            clients = [found.std for found in spreads]
            cells |= _cell(f"{group}.{stage}", [found.mean for found in spreads], clients)
            cells |= _cell(f"{group}.worst", [found.worst_tenth for found in spreads])
    costs = [cost_of(run) for run in line.runs]
    for key in COSTS:
        cells |= _cell(key, [cost[key] for cost in costs])
    return Row(label, number, cells)


def _scored(line: Line, group: str, stage: str, figure: str) -> list[np.ndarray]:
    """For each finished run its clients' figures; runs in which nobody could be tested are left out."""
    found = [run["scores"][group][stage] for run in line.runs if run["scores"] and group in run["scores"]]
    values = [numbers(stage_scores[figure]) for stage_scores in found if figure in stage_scores]
    return [each for each in values if not np.isnan(each).all()]


def _cell(key: str, values: list[float], clients: list[float] | None = None) -> dict[str, Figure]:
    if not values:
        return {}
    over_seeds = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return {key: Figure(float(np.mean(values)), float(np.mean(clients)) if clients else None, over_seeds)}
