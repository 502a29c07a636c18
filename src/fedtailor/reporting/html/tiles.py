"""The final figures of a single method, which the page shows in large numbers."""

from collections.abc import Sequence

from fedtailor.reporting.html.figures import TableColumn, TableRow, build_rows, list_groups
from fedtailor.reporting.html.grouping import HeadlineMetric, ReportLine
from fedtailor.reporting.html.table import with_decimals
from fedtailor.reporting.html.wording import GROUP_NAMES, has_diverged

HEADINGS = {"after": "{}, after personalizing", "worst": "worst tenth of {}"}
"""Headings by the key of the figure, with room for the name of the group."""


def build_tiles(
    lines: Sequence[ReportLine], metric: HeadlineMetric
) -> list[tuple[TableRow, TableColumn]]:
    """Return the mean and the worst tenth of each group, as a row and a column of it.

    There are none for several methods, and before final scores.
    """
    if len(lines) > 1 or has_diverged(lines[0]):
        return []
    rows = build_rows(lines, metric)
    tiles = []
    for group in list_groups(lines):
        scored = [row for row in rows if f"{group}.after" in row.cells]
        if not scored:
            continue
        for key, heading in HEADINGS.items():
            column = TableColumn(
                f"{group}.{key}",
                group,
                heading.format(GROUP_NAMES[group]),
                metric.higher_is_better,
                metric.scale,
            )
            tiles.append((scored[0], with_decimals(scored, column)))
    return tiles
