"""The final figures of a method as large numbers."""

from collections.abc import Sequence

from fedtailor.run.report.figures import Column, Row, groups_of, rows
from fedtailor.run.report.formats import number
from fedtailor.run.report.grouping import Line, Metric
from fedtailor.run.report.pieces import swatch, text
from fedtailor.run.report.table import decimals_in
from fedtailor.run.report.wording import PEOPLE, diverged

HEADINGS = {"after": "{}, after personalising", "worst": "worst tenth of {}"}


def tiles(lines: Sequence[Line], metric: Metric) -> str:
    """Return one for each group and its worst tenth; none for several methods or before a run has finished."""
    if len(lines) > 1:
        return ""
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
    if not made:
        return ""
    row = made[0]
    figure = row.cells[column.key]
    decimals = decimals_in(made, column)
    unit = '<span class="unit">%</span>' if metric.percent else ""
    swing = "" if figure.over_seeds is None else f" ± {number(figure.over_seeds / column.scale, decimals)}"
    return (
        f'<div class="tile"><p class="what">{text(column.heading)}</p>'
        f'<p class="big">{number(figure.mean / column.scale, decimals)}{unit}<span class="swing">{swing}</span></p>'
        f'<p class="who">{swatch(row.line)}{text(row.label)}</p><p class="next">{text(metric.name)}</p></div>'
    )
