"""Add more figures: of the last round, after a few passes, over examples, over classes; pace."""

from collections.abc import Sequence
from typing import Any

from fedtailor.evaluation.client_statistics import compute_spread
from fedtailor.reporting.html.figures import (
    TableColumn,
    TableRow,
    build_rows,
    collect_scores,
    collect_window_means,
    list_groups,
    list_stages,
    summarize_over_seeds,
)
from fedtailor.reporting.html.grouping import HeadlineMetric, Record, ReportLine
from fedtailor.reporting.html.table import Grid, arrange

_SUMMARY_KEYS = ("acc_micro", "f1_macro", "loss")


def tabulate_more(lines: Sequence[ReportLine], metric: HeadlineMetric) -> Grid | None:
    """Return the second table; None where records have no such figures."""
    made = [
        _extend_row(row, lines[row.line], metric)
        for row in build_rows(lines, metric)
        if _has_after(row)
    ]
    known = _build_columns(lines, metric)
    shown = [column for column in known if any(column.key in row.cells for row in made)]
    return arrange(made, shown, lines) if shown else None


def _build_columns(lines: Sequence[ReportLine], metric: HeadlineMetric) -> list[TableColumn]:
    higher_is_better, scale = metric.higher_is_better, metric.scale
    found = []
    for group in list_groups(lines):
        found.append(TableColumn(f"{group}.last", group, "last round", higher_is_better, scale))
        for step in list_stages(lines)[1:-1]:
            found.append(
                TableColumn(
                    f"{group}.{step}",
                    group,
                    f"{step} pass{'' if step == '1' else 'es'}",
                    higher_is_better,
                    scale,
                )
            )
        found.append(
            TableColumn(f"{group}.acc_micro", group, "over examples", higher_is_better, scale)
        )
        found.append(TableColumn(f"{group}.f1_macro", group, "F1", True, 0.01))
        found.append(TableColumn(f"{group}.loss", group, "loss", False, decimals=3))
        found.append(TableColumn(f"{group}.T_0.5", group, "rounds to 50 %", False, decimals=0))
    return found


def _has_after(row: TableRow) -> bool:
    return any(key.endswith(".after") for key in row.cells)


def _extend_row(row: TableRow, line: ReportLine, metric: HeadlineMetric) -> TableRow:
    """The same row with more figures."""
    cells = {key: figure._replace(over_clients=None) for key, figure in row.cells.items()}
    for group in list_groups([line]):
        if collect_window_means(
            line, group, "after", metric.name
        ):  # else the table has the last round's already
            last = [
                compute_spread(values).mean
                for values in collect_scores(line, group, "after", metric.name)
            ]
            cells |= summarize_over_seeds(f"{group}.last", last)
        cells |= summarize_over_seeds(
            f"{group}.T_0.5", _collect_values(line, "convergence", group, "after", "T_0.5")
        )
        for name in _SUMMARY_KEYS:
            cells |= summarize_over_seeds(
                f"{group}.{name}", _collect_values(line, "summary", group, "after", name)
            )
    return row._replace(cells=cells)


def _collect_values(line: ReportLine, *keys: str) -> list[float]:
    """What the runs' records say under these keys, of those that say something."""
    return [value for run in line.runs if (value := _get_nested(run, keys)) is not None]


def _get_nested(record: Record, keys: Sequence[str]) -> float | None:
    found: Any = record
    for key in keys:
        found = (found or {}).get(key)
    return None if found is None else float(found)
