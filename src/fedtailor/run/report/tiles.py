"""The best final figures as large numbers."""

from collections.abc import Sequence

from fedtailor.run.report.figures import Column, Row, groups_of, in_order, level, rows
from fedtailor.run.report.formats import number
from fedtailor.run.report.grouping import Line, Metric
from fedtailor.run.report.pieces import swatch, text
from fedtailor.run.report.table import decimals_in
from fedtailor.run.report.wording import PEOPLE, diverged

HEADINGS = {"after": "{}, after personalising", "worst": "worst tenth of {}"}


def tiles(lines: Sequence[Line], metric: Metric) -> str:
    """One for each group and its worst tenth; nothing before a run has finished."""
    made = [row for row in rows(lines, metric) if not diverged(lines[row.line])]
    found = [
        _tile(
            [row for row in made if f"{group}.after" in row.cells],
            Column(f"{group}.{stage}", group, heading.format(PEOPLE[group]), metric.higher_is_better, metric.scale),
            metric,
        )
        for group in groups_of(lines)
        for stage, heading in HEADINGS.items()
    ]
    return f'<div class="tiles">{"".join(found)}</div>' if any(found) else ""


def _tile(made: Sequence[Row], column: Column, metric: Metric) -> str:
    order = [made[place] for place in in_order(made, column)]
    if not order:
        return ""
    first = order[0].cells[column.key]
    decimals = decimals_in(made, column)
    unit = '<span class="unit">%</span>' if metric.percent else ""
    swing = "" if first.over_seeds is None else f" ± {number(first.over_seeds / column.scale, decimals)}"
    rest = _rest(order, column, decimals) or metric.name
    return (
        f'<div class="tile"><p class="what">{text(column.heading)}</p>'
        f'<p class="big">{number(first.mean / column.scale, decimals)}{unit}<span class="swing">{swing}</span></p>'
        f'<p class="who">{swatch(order[0].line)}{text(order[0].label)}</p><p class="next">{text(rest)}</p></div>'
    )


def _rest(order: Sequence[Row], column: Column, decimals: int) -> str:
    """Who is level with the first, or comes next."""
    peers = [row for row in order[1:] if level(order[0].cells[column.key], row.cells[column.key])]
    if peers:
        return f"level with {peers[0].label}" + (f" and {len(peers) - 1} more" if len(peers) > 1 else "")
    if len(order) == 1:
        return ""
    return f"next: {order[1].label}, {number(order[1].cells[column.key].mean / column.scale, decimals)}"
