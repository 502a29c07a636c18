"""The figures of a part, from its record: how methods rose, and what they reached as something varied."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedtailor.run.commands import word_of
from fedtailor.run.study.reading import Part, Scalar
from fedtailor.run.study.svg import Chart, Line, Point, svg
from fedtailor.run.study.tables import by_line, figures, in_percent, title_of, values_of

Record = Mapping[str, Any]
Run = Mapping[str, Any]


def drawings(record: Record, part: Part) -> dict[str, str]:
    """The figures as SVG, by the names of their files."""
    made, values = {}, values_of(record)
    for value in values or (None,):
        chart = curves(record, part, value)
        beside = "" if value is None else f"-{word_of(value)}"
        if any(len(line.points) > 1 for line in chart.lines):
            made[f"{part.name}{beside}-curves.svg"] = svg(chart)
    if record["vary"]:
        made[f"{part.name}-sweep.svg"] = svg(sweep(record, part))
    return made


def curves(record: Record, part: Part, value: Scalar | None) -> Chart:
    """The figure of each method round by round, the band from the lowest seed to the highest."""
    own = {name: runs for (name, at), runs in by_line(record).items() if at == value}
    lines = [_curve(name, runs, part.column, _unit(record)) for name, runs in own.items()]
    varied = "" if value is None else f", {record['vary']['key']} = {word_of(value)}"
    statistic = "macro" if part.statistic == "macro" else "micro"
    return Chart(f"{title_of(record, part)}{varied}", "rounds", _up(record, part.column, statistic), lines)


def sweep(record: Record, part: Part) -> Chart:
    """The figure that stands for each method's runs, value by value."""
    lines, values = by_line(record), values_of(record)
    drawn = []
    for name in dict.fromkeys(name for name, _ in lines):
        runs = [lines.get((name, value), []) for value in values]
        found = [figures(own, part.column, part.statistic) for own in runs]
        points = [_point(place, each, _unit(record)) for place, each in enumerate(found) if each]
        drawn.append(Line(_named(name, [run for own in runs for run in own]), points))
    ticks = [(float(place), word_of(value)) for place, value in enumerate(values)]
    return Chart(title_of(record, part), record["vary"]["key"], _up(record, part.column, part.statistic), drawn, ticks)


def _curve(name: str, runs: Sequence[Run], column: str, unit: float) -> Line:
    """Of the runs that came to their end or, if there are none, of those that diverged."""
    kept = [run for run in runs if run["status"] == "finished"] or runs
    seen = [dict(zip(run["curve"]["round"], run["curve"][column], strict=True)) for run in kept if _has(run, column)]
    rounds = sorted({number for values in seen for number in values})
    found = [(number, [values[number] for values in seen if values.get(number) is not None]) for number in rounds]
    return Line(_named(name, runs), [_point(number, values, unit) for number, values in found if values])


def _has(run: Run, column: str) -> bool:
    return column in run.get("curve", {})


def _point(place: float, values: Sequence[float], unit: float) -> Point:
    scaled = unit * np.array(values)
    return Point(place, float(scaled.mean()), float(scaled.min()), float(scaled.max()))


def _named(name: str, runs: Sequence[Run]) -> str:
    """A method's name, with how many of its runs diverged."""
    diverged = sum(run["status"] == "diverged" for run in runs)
    many = "" if diverged == len(runs) else f"{diverged} of {len(runs)} "
    return f"{name} ({many}diverged)" if diverged else name


def _unit(record: Record) -> float:
    return 100.0 if in_percent(record) else 1.0


def _up(record: Record, column: str, statistic: str) -> str:
    percent = ", %" if in_percent(record) else ""
    return f"{record['metric']['name']}{percent}: {column} personalising ({statistic}); mean and range over seeds"
