"""Add more figures: of the last round, after a few passes, over examples, over classes; pace."""

from collections.abc import Sequence
from typing import Any

from fedtailor.run.metrics import spread
from fedtailor.run.report.figures import Column, Row, groups_of, rows, scored, stages_of, summed_up, windowed
from fedtailor.run.report.grouping import Line, Metric, Record
from fedtailor.run.report.table import Grid, arrange

_SUMMED = ("acc_micro", "f1_macro", "loss")


def tabulate_more(lines: Sequence[Line], metric: Metric) -> Grid | None:
    """Return the second table; None where records have no such figures."""
    made = [_row(row, lines[row.line], metric) for row in rows(lines, metric) if _is_after(row)]
    known = _columns(lines, metric)
    shown = [column for column in known if any(column.key in row.cells for row in made)]
    return arrange(made, shown, lines) if shown else None


def _columns(lines: Sequence[Line], metric: Metric) -> list[Column]:
    higher, scale = metric.higher_is_better, metric.scale
    found = []
    for group in groups_of(lines):
        found.append(Column(f"{group}.last", group, "last round", higher, scale))
        for step in stages_of(lines)[1:-1]:
            found.append(Column(f"{group}.{step}", group, f"{step} pass{'' if step == '1' else 'es'}", higher, scale))
        found.append(Column(f"{group}.acc_micro", group, "over examples", higher, scale))
        found.append(Column(f"{group}.f1_macro", group, "F1", True, 0.01))
        found.append(Column(f"{group}.loss", group, "loss", False, decimals=3))
        found.append(Column(f"{group}.T_0.5", group, "rounds to 50 %", False, decimals=0))
    return found


def _is_after(row: Row) -> bool:
    return any(key.endswith(".after") for key in row.cells)


def _row(row: Row, line: Line, metric: Metric) -> Row:
    """The same row with more figures."""
    cells = {key: figure._replace(over_clients=None) for key, figure in row.cells.items()}
    for group in groups_of([line]):
        if windowed(line, group, "after", metric.name):  # else the table has the last round's already
            last = [spread(values).mean for values in scored(line, group, "after", metric.name)]
            cells |= summed_up(f"{group}.last", last)
        cells |= summed_up(f"{group}.T_0.5", _found(line, "pace", group, "after", "T_0.5"))
        for name in _SUMMED:
            cells |= summed_up(f"{group}.{name}", _found(line, "summary", group, "after", name))
    return row._replace(cells=cells)


def _found(line: Line, *keys: str) -> list[float]:
    """What the runs' records say under these keys, of those that say something."""
    return [value for run in line.runs if (value := _under(run, keys)) is not None]


def _under(record: Record, keys: Sequence[str]) -> float | None:
    found: Any = record
    for key in keys:
        found = (found or {}).get(key)
    return None if found is None else float(found)
