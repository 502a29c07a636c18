"""Tables: rows of figures under columns with headings, units and decimals."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from fedtailor.reporting.html.figures import (
    TableColumn,
    TableRow,
    build_columns,
    build_rows,
    list_groups,
)
from fedtailor.reporting.html.formats import choose_decimals, choose_unit
from fedtailor.reporting.html.grouping import HeadlineMetric, ReportLine

SCORE_DIGITS = 4
COST_DIGITS = 3


class Grid(NamedTuple):
    """Rows under columns; `groups` are headings with the number of columns that they span."""

    groups: list[tuple[str, int]]
    columns: list[TableColumn]
    rows: Sequence[TableRow]


def tabulate(lines: Sequence[ReportLine], metric: HeadlineMetric) -> Grid:
    """Return the table of scores and costs."""
    rows = build_rows(lines, metric)
    columns = build_columns(list_groups(lines), metric)
    return arrange(rows, [_add_unit(column, rows) for column in columns], lines)


def arrange(
    rows: Sequence[TableRow], columns: Sequence[TableColumn], lines: Sequence[ReportLine]
) -> Grid:
    """Return rows under columns, with the number of clients of each group."""
    clients_by_group = lines[0].runs[0].data.groups
    groups = []
    for group, width in Counter(column.group for column in columns).items():
        heading = group
        if group in clients_by_group:
            heading = f"{group} clients ({len(clients_by_group[group]):,})"
        groups.append((heading, width))
    return Grid(groups, [with_decimals(rows, column) for column in columns], rows)


def with_decimals(rows: Sequence[TableRow], column: TableColumn) -> TableColumn:
    """Return the column with the decimals that its figures need, unless it has some already."""
    if column.decimals is not None:
        return column
    return column._replace(decimals=_choose_column_decimals(rows, column))


def _choose_column_decimals(rows: Sequence[TableRow], column: TableColumn) -> int:
    is_cost = column.group == "cost"
    is_percent = not is_cost and column.scale != 1
    if is_percent:
        return 1
    largest = max(map(abs, _collect_means(rows, [column.key])), default=0.0)
    num_digits = COST_DIGITS if is_cost else SCORE_DIGITS
    return max(choose_decimals(largest / column.scale, num_digits), 1)


def _add_unit(column: TableColumn, rows: Sequence[TableRow]) -> TableColumn:
    """Return a column of costs with the unit that fits its largest figure, others as they are."""
    if column.key == "traffic":
        scale, unit = choose_unit("mb", _collect_means(rows, ["traffic"]))
        return column._replace(heading=unit, scale=scale)
    if column.key == "personalize":
        return column._replace(heading="gradients to personalize")
    if column.key == "seconds":
        scale, unit = choose_unit("seconds", _collect_means(rows, ["seconds"]))
        return column._replace(heading=unit, scale=scale)
    if column.key == "flops":
        scale, unit = choose_unit("flops", _collect_means(rows, ["flops"]))
        return column._replace(heading=f"client {unit}", scale=scale)
    return column


def _collect_means(rows: Sequence[TableRow], keys: Sequence[str]) -> list[float]:
    return [row.cells[key].mean for row in rows for key in keys if key in row.cells]
