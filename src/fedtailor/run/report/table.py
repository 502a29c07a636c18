"""Arrange figures in tables."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from fedtailor.run.report.figures import SENT, Column, Row, columns, costs_of, groups_of, rows
from fedtailor.run.report.formats import decimals_of, unit_of
from fedtailor.run.report.grouping import Line, Metric


class Grid(NamedTuple):
    """Arrange rows of figures under columns, and columns in groups with how many each has."""

    groups: list[tuple[str, int]]
    columns: list[Column]
    rows: Sequence[Row]


def tabulate(lines: Sequence[Line], metric: Metric) -> Grid:
    """Return the table of scores and costs."""
    made = rows(lines, metric)
    shown = columns(groups_of(lines), metric, _costs(lines))
    return arrange(made, [_with_unit(column, made) for column in shown], lines)


def arrange(made: Sequence[Row], shown: Sequence[Column], lines: Sequence[Line]) -> Grid:
    """Return rows under columns, and the groups' sizes."""
    clients = lines[0].runs[0]["data"]["groups"]
    widths = Counter(column.group for column in shown)
    groups = [
        (f"{group} clients ({len(clients[group]):,})" if group in clients else group, width)
        for group, width in widths.items()
    ]
    return Grid(groups, [with_decimals(made, column) for column in shown], made)


def with_decimals(made: Sequence[Row], column: Column) -> Column:
    """Return the column with as many decimals as its figures need, unless it says how many."""
    if column.decimals is not None:
        return column
    return column._replace(decimals=_decimals_in(made, column))


def _decimals_in(made: Sequence[Row], column: Column) -> int:
    """Return one for %; else as many as four digits of a score or three of a cost need."""
    if column.group != "cost" and column.scale != 1:
        return 1
    figures = (abs(row.cells[column.key].mean) for row in made if column.key in row.cells)
    largest = max(figures, default=0.0)
    return max(decimals_of(largest / column.scale, 3 if column.group == "cost" else 4), 1)


def _costs(lines: Sequence[Line]) -> list[str]:
    """Return the costs that are known; steps only where no floating-point operations are."""
    known = costs_of(lines)
    return [key for key in known if key != "steps" or "flops" not in known]


def _with_unit(column: Column, made: Sequence[Row]) -> Column:
    """Return a column with the unit that fits its largest figure, if it is one of costs."""
    if column.key in SENT:  # down and up have the same
        scale, unit = unit_of("mb", _means(made, SENT))
        return column._replace(heading=f"{unit} {column.key}", scale=scale)
    if column.key == "flops":
        scale, unit = unit_of("flops", _means(made, ["flops"]))
        return column._replace(heading=f"client {unit}", scale=scale)
    if column.key == "steps":
        return column._replace(heading="client steps")
    return column


def _means(made: Sequence[Row], keys: Sequence[str]) -> list[float]:
    return [row.cells[key].mean for row in made for key in keys]
