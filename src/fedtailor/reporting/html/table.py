"""Arrange figures in tables."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from fedtailor.reporting.html.figures import (
    TRAFFIC_KEYS,
    TableColumn,
    TableRow,
    build_columns,
    build_rows,
    list_groups,
    list_known_costs,
)
from fedtailor.reporting.html.formats import choose_decimals, choose_unit
from fedtailor.reporting.html.grouping import HeadlineMetric, ReportLine


class Grid(NamedTuple):
    """Arrange rows of figures under columns, and columns in groups with how many each has."""

    groups: list[tuple[str, int]]
    columns: list[TableColumn]
    rows: Sequence[TableRow]


def tabulate(lines: Sequence[ReportLine], metric: HeadlineMetric) -> Grid:
    """Return the table of scores and costs."""
    made = build_rows(lines, metric)
    shown = build_columns(list_groups(lines), metric, _list_cost_columns(lines))
    return arrange(made, [_add_unit(column, made) for column in shown], lines)


def arrange(
    made: Sequence[TableRow], shown: Sequence[TableColumn], lines: Sequence[ReportLine]
) -> Grid:
    """Return rows under columns, and the groups' sizes."""
    clients = lines[0].runs[0]["data"]["groups"]
    widths = Counter(column.group for column in shown)
    groups = [
        (f"{group} clients ({len(clients[group]):,})" if group in clients else group, width)
        for group, width in widths.items()
    ]
    return Grid(groups, [with_decimals(made, column) for column in shown], made)


def with_decimals(made: Sequence[TableRow], column: TableColumn) -> TableColumn:
    """Return the column with as many decimals as its figures need, unless it says how many."""
    if column.decimals is not None:
        return column
    return column._replace(decimals=_decimals_in(made, column))


def _decimals_in(made: Sequence[TableRow], column: TableColumn) -> int:
    """Return one for %; else as many as four digits of a score or three of a cost need."""
    if column.group != "cost" and column.scale != 1:
        return 1
    figures = (abs(row.cells[column.key].mean) for row in made if column.key in row.cells)
    largest = max(figures, default=0.0)
    return max(choose_decimals(largest / column.scale, 3 if column.group == "cost" else 4), 1)


def _list_cost_columns(lines: Sequence[ReportLine]) -> list[str]:
    """Return the costs that are known; steps only where no floating-point operations are."""
    known = list_known_costs(lines)
    return [key for key in known if key != "steps" or "flops" not in known]


def _add_unit(column: TableColumn, rows: Sequence[TableRow]) -> TableColumn:
    """Return a column with the unit that fits its largest figure, if it is one of costs."""
    if column.key in TRAFFIC_KEYS:  # down and up have the same
        scale, unit = choose_unit("mb", _means(rows, TRAFFIC_KEYS))
        return column._replace(heading=f"{unit} {column.key}", scale=scale)
    if column.key == "flops":
        scale, unit = choose_unit("flops", _means(rows, ["flops"]))
        return column._replace(heading=f"client {unit}", scale=scale)
    if column.key == "steps":
        return column._replace(heading="client steps")
    return column


def _means(made: Sequence[TableRow], keys: Sequence[str]) -> list[float]:
    return [row.cells[key].mean for row in made for key in keys]
