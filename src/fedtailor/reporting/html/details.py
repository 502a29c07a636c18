"""The table of more figures after personalizing: last rounds, after a few passes, F1, loss."""

from collections.abc import Sequence

from fedtailor.reporting.html.figures import (
    TableColumn,
    TableRow,
    add_estimate,
    build_rows,
    collect_window_means,
    list_groups,
    list_stages,
)
from fedtailor.reporting.html.grouping import HeadlineMetric, ReportLine
from fedtailor.reporting.html.table import Grid, arrange
from fedtailor.training.record.schema import StageSummary

SUMMARY_FIELDS = ("acc_micro", "f1_macro", "loss")
"""Fields of `StageSummary` that have a column."""


def tabulate_details(lines: Sequence[ReportLine], metric: HeadlineMetric) -> Grid | None:
    """Return the second table; None before final scores."""
    rows = [
        _extend_row(row, lines[row.line], metric)
        for row in build_rows(lines, metric)
        if _has_scores_after(row)
    ]
    columns = [
        column
        for column in _build_columns(lines, metric)
        if any(column.key in row.cells for row in rows)
    ]
    return arrange(rows, columns, lines) if columns else None


def _build_columns(lines: Sequence[ReportLine], metric: HeadlineMetric) -> list[TableColumn]:
    higher_is_better = metric.higher_is_better
    scale = metric.scale
    passes = [stage for stage in list_stages(lines) if stage.isdecimal()]
    columns = []
    for group in list_groups(lines):
        headings = {"last": "last fifth"}
        for num_passes in passes:
            headings[num_passes] = "1 pass" if num_passes == "1" else f"{num_passes} passes"
        headings["acc_micro"] = "over examples"
        for key, heading in headings.items():
            columns.append(TableColumn(f"{group}.{key}", group, heading, higher_is_better, scale))
        columns += [
            TableColumn(f"{group}.f1_macro", group, "F1", True, scale=0.01),
            TableColumn(f"{group}.loss", group, "loss", False, decimals=3),
            TableColumn(f"{group}.rounds_to_half", group, "rounds to 50 %", False, decimals=0),
        ]
    return columns


def _has_scores_after(row: TableRow) -> bool:
    return any(key.endswith(".after") for key in row.cells)


def _extend_row(row: TableRow, line: ReportLine, metric: HeadlineMetric) -> TableRow:
    """Return the row with more figures, and without spreads over clients."""
    cells = {key: estimate._replace(client_std=None) for key, estimate in row.cells.items()}
    for group in list_groups([line]):
        window_means = collect_window_means(line, group, "after", metric.name)
        add_estimate(cells, f"{group}.last", window_means)
        add_estimate(cells, f"{group}.rounds_to_half", _collect_rounds_to_half(line, group))
        for name in SUMMARY_FIELDS:
            add_estimate(cells, f"{group}.{name}", _collect_summaries(line, group, name))
    return row._replace(cells=cells)


def _collect_rounds_to_half(line: ReportLine, group: str) -> list[float]:
    """Return the first round with an accuracy of 0.5, of the runs that reached it."""
    rounds = []
    for run in line.runs:
        if run.convergence is None or group not in run.convergence:
            continue
        rounds_to_half = run.convergence[group]["after"].rounds_to_half
        if rounds_to_half is not None:
            rounds.append(float(rounds_to_half))
    return rounds


def _collect_summaries(line: ReportLine, group: str, name: str) -> list[float]:
    """Return a field of the summary after personalizing, of the runs that have it."""
    values = []
    for run in line.runs:
        if run.summary is None or group not in run.summary:
            continue
        summary: StageSummary = run.summary[group]["after"]
        value = getattr(summary, name)
        if value is not None:
            values.append(value)
    return values
