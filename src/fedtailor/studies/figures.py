"""The charts of a part, made from its record: curves over rounds, sweeps over varied values."""

from collections.abc import Sequence

import numpy as np

from fedtailor.reporting.svg import Chart, ChartLine, ChartPoint, render_svg
from fedtailor.studies.config import Part, Scalar
from fedtailor.studies.record import PartRecord, RunSummary
from fedtailor.studies.tables import (
    collect_figures,
    get_varied_key,
    group_runs,
    list_values,
    make_title,
)
from fedtailor.training.shell_commands import format_value


def render_figures(record: PartRecord, part: Part) -> dict[str, str]:
    """Return the charts of a part as SVG, by file name."""
    figures = {}
    values: Sequence[Scalar | None] = list_values(record) or [None]
    for value in values:
        chart = build_curve_chart(record, part, value)
        suffix = "" if value is None else f"-{format_value(value)}"
        if any(len(line.points) > 1 for line in chart.lines):
            figures[f"{part.name}{suffix}-curves.svg"] = render_svg(chart)
    if record.vary:
        figures[f"{part.name}-sweep.svg"] = render_svg(build_sweep_chart(record, part))
    return figures


def build_curve_chart(record: PartRecord, part: Part, value: Scalar | None) -> Chart:
    """Return the headline metric of each method round by round.

    Args:
        record: The record of the part.
        part: The part.
        value: The varied value whose runs are shown; None if nothing varies.
    """
    lines = [
        _build_curve(name, runs, part.column, _get_scale(record))
        for (name, run_value), runs in group_runs(record).items()
        if run_value == value
    ]
    title = make_title(record, part)
    if value is not None:
        title += f", {get_varied_key(record)} = {format_value(value)}"
    statistic = "macro" if part.statistic == "macro" else "micro"
    return Chart(title, "rounds", _label_y_axis(record, part.column, statistic), lines)


def build_sweep_chart(record: PartRecord, part: Part) -> Chart:
    """Return the headline figure of each method at the varied values."""
    runs_by_key = group_runs(record)
    values = list_values(record)
    lines = []
    for name in dict.fromkeys(name for name, _ in runs_by_key):
        points = []
        all_runs: list[RunSummary] = []
        for index, value in enumerate(values):
            runs = runs_by_key.get((name, value), [])
            all_runs += runs
            figures = collect_figures(runs, part.column, part.statistic)
            if figures:
                points.append(_make_point(index, figures, _get_scale(record)))
        lines.append(ChartLine(_label_line(name, all_runs), points))
    ticks = [(float(index), format_value(value)) for index, value in enumerate(values)]
    return Chart(
        make_title(record, part),
        get_varied_key(record),
        _label_y_axis(record, part.column, part.statistic),
        lines,
        ticks,
    )


def _build_curve(name: str, runs: Sequence[RunSummary], column: str, scale: float) -> ChartLine:
    """Return the curve of the finished runs, or of the diverged ones if none has finished."""
    finished_runs = [run for run in runs if run.status == "finished"]
    values_by_round: dict[int, list[float]] = {}
    for run in finished_runs or runs:
        values = run.curve.figures.get(column, [])
        for round_idx, value in zip(run.curve.rounds, values, strict=bool(values)):
            if value is not None:
                values_by_round.setdefault(round_idx, []).append(value)
    points = [
        _make_point(round_idx, values, scale)
        for round_idx, values in sorted(values_by_round.items())
    ]
    return ChartLine(_label_line(name, runs), points)


def _make_point(x: float, values: Sequence[float], scale: float) -> ChartPoint:
    """Return the mean of values over seeds, with a band from the lowest to the highest."""
    scaled = scale * np.array(values)
    return ChartPoint(x, float(scaled.mean()), float(scaled.min()), float(scaled.max()))


def _label_line(name: str, runs: Sequence[RunSummary]) -> str:
    """Return the name of a method, with the number of its runs that diverged if any did."""
    num_diverged = sum(run.status == "diverged" for run in runs)
    if not num_diverged:
        return name
    if num_diverged == len(runs):
        return f"{name} (diverged)"
    return f"{name} ({num_diverged} of {len(runs)} diverged)"


def _get_scale(record: PartRecord) -> float:
    """Return the factor from figures to what is shown."""
    return 100.0 if record.metric.is_percent else 1.0


def _label_y_axis(record: PartRecord, column: str, statistic: str) -> str:
    metric = f"{record.metric.name}, %" if record.metric.is_percent else record.metric.name
    return f"{metric}: {column} personalizing ({statistic}); mean and range over seeds"
