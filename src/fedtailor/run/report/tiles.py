"""Find the final figures of a method that are shown as large numbers."""

from collections.abc import Sequence

from fedtailor.run.report.figures import Column, Row, groups_of, rows
from fedtailor.run.report.grouping import Line, Metric
from fedtailor.run.report.table import with_decimals
from fedtailor.run.report.wording import PEOPLE, diverged

HEADINGS = {"after": "{}, after personalising", "worst": "worst tenth of {}"}


def find_tiles(lines: Sequence[Line], metric: Metric) -> list[tuple[Row, Column]]:
    """Return each group's figure and worst tenth; none for several methods or unfinished runs."""
    if len(lines) > 1:
        return []
    made = [row for row in rows(lines, metric) if not diverged(lines[row.line])]
    found = []
    for group in groups_of(lines):
        scored = [row for row in made if f"{group}.after" in row.cells]
        for stage, heading in HEADINGS.items() if scored else ():
            key = f"{group}.{stage}"
            what = heading.format(PEOPLE[group])
            column = Column(key, group, what, metric.higher_is_better, metric.scale)
            found.append((scored[0], with_decimals(scored, column)))
    return found
