"""The figures of a part, from its record: how methods rose, and what they reached as something varied."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedtailor.reporting.svg import Chart, ChartLine, ChartPoint, render_svg
from fedtailor.studies.config import Part, Scalar
from fedtailor.studies.tables import (
    collect_figures,
    group_runs,
    is_percent,
    list_values,
    make_title,
)
from fedtailor.training.command_lines import format_value

Record = Mapping[str, Any]
Run = Mapping[str, Any]


def render_figures(record: Record, part: Part) -> dict[str, str]:
    """The figures as SVG, by the names of their files."""
    figures, values = {}, list_values(record)
    for value in values or (None,):
        chart = build_curve_chart(record, part, value)
        suffix = "" if value is None else f"-{format_value(value)}"
        if any(len(line.points) > 1 for line in chart.lines):
            figures[f"{part.name}{suffix}-curves.svg"] = render_svg(chart)
    if record["vary"]:
        figures[f"{part.name}-sweep.svg"] = render_svg(build_sweep_chart(record, part))
    return figures


def build_curve_chart(record: Record, part: Part, value: Scalar | None) -> Chart:
    """The figure of each method round by round, the band from the lowest seed to the highest."""
    own = {
        name: runs for (name, run_value), runs in group_runs(record).items() if run_value == value
    }
    lines = [
        _build_curve(name, runs, part.column, _get_scale(record)) for name, runs in own.items()
    ]
    varied = "" if value is None else f", {record['vary']['key']} = {format_value(value)}"
    statistic = "macro" if part.statistic == "macro" else "micro"
    return Chart(
        f"{make_title(record, part)}{varied}",
        "rounds",
        _label_y_axis(record, part.column, statistic),
        lines,
    )


def build_sweep_chart(record: Record, part: Part) -> Chart:
    """The figure that stands for each method's runs, value by value."""
    lines, values = group_runs(record), list_values(record)
    chart_lines = []
    for name in dict.fromkeys(name for name, _ in lines):
        runs = [lines.get((name, value), []) for value in values]
        found = [collect_figures(own, part.column, part.statistic) for own in runs]
        points = [
            _make_point(index, each, _get_scale(record)) for index, each in enumerate(found) if each
        ]
        chart_lines.append(
            ChartLine(_label_line(name, [run for own in runs for run in own]), points)
        )
    ticks = [(float(index), format_value(value)) for index, value in enumerate(values)]
    return Chart(
        make_title(record, part),
        record["vary"]["key"],
        _label_y_axis(record, part.column, part.statistic),
        chart_lines,
        ticks,
    )


def _build_curve(name: str, runs: Sequence[Run], column: str, unit: float) -> ChartLine:
    """Of the runs that came to their end or, if there are none, of those that diverged."""
    kept_runs = [run for run in runs if run["status"] == "finished"] or runs
    seen = [
        dict(zip(run["curve"]["round"], run["curve"][column], strict=True))
        for run in kept_runs
        if _has_column(run, column)
    ]
    rounds = sorted({round_idx for values in seen for round_idx in values})
    found = [
        (round_idx, [values[round_idx] for values in seen if values.get(round_idx) is not None])
        for round_idx in rounds
    ]
    return ChartLine(
        _label_line(name, runs),
        [_make_point(round_idx, values, unit) for round_idx, values in found if values],
    )


def _has_column(run: Run, column: str) -> bool:
    return column in run.get("curve", {})


def _make_point(x: float, values: Sequence[float], unit: float) -> ChartPoint:
    scaled = unit * np.array(values)
    return ChartPoint(x, float(scaled.mean()), float(scaled.min()), float(scaled.max()))


def _label_line(name: str, runs: Sequence[Run]) -> str:
    """A method's name, with how many of its runs diverged."""
    diverged = sum(run["status"] == "diverged" for run in runs)
    many = "" if diverged == len(runs) else f"{diverged} of {len(runs)} "
    return f"{name} ({many}diverged)" if diverged else name


def _get_scale(record: Record) -> float:
    return 100.0 if is_percent(record) else 1.0


def _label_y_axis(record: Record, column: str, statistic: str) -> str:
    percent = ", %" if is_percent(record) else ""
    return f"{record['metric']['name']}{percent}: {column} personalizing ({statistic}); mean and range over seeds"
