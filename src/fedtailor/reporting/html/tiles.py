"""Find the final figures of a method that are shown as large numbers."""

from collections.abc import Sequence

from fedtailor.reporting.html.figures import TableColumn, TableRow, build_rows, list_groups
from fedtailor.reporting.html.grouping import HeadlineMetric, ReportLine
from fedtailor.reporting.html.table import with_decimals
from fedtailor.reporting.html.wording import GROUP_NAMES, has_diverged

HEADINGS = {"after": "{}, after personalizing", "worst": "worst tenth of {}"}


def find_tiles(
    lines: Sequence[ReportLine], metric: HeadlineMetric
) -> list[tuple[TableRow, TableColumn]]:
    """Return each group's figure and worst tenth; none for several methods or unfinished runs."""
    if len(lines) > 1:
        return []
    made = [row for row in build_rows(lines, metric) if not has_diverged(lines[row.line])]
    found = []
    for group in list_groups(lines):
        scored = [row for row in made if f"{group}.after" in row.cells]
        for stage, heading in HEADINGS.items() if scored else ():
            key = f"{group}.{stage}"
            what = heading.format(GROUP_NAMES[group])
            column = TableColumn(key, group, what, metric.higher_is_better, metric.scale)
            found.append((scored[0], with_decimals(scored, column)))
    return found
