"""The report of a run or of a comparison: one HTML file that needs nothing else, nor a network.

    grouping    records -> lines, whose runs differ in their seed alone
    figures     numbers of the table; table, details and tiles arrange them
    curves      numbers of the charts, with local_comparison and data_overview
    charts      the numbers of all charts together
    sections    the controls and headings of the charts
    wording     sentences
    runs        how to repeat each run
    page        all of these -> templates (all HTML) and frame (styles, numbers and scripts)

The charts are sent as plain numbers; the page's scripts draw them with plotly.js, which is inlined.
"""

from collections.abc import Sequence
from pathlib import Path

from fedtailor.reporting.html.grouping import group_into_lines
from fedtailor.reporting.html.page import render_page
from fedtailor.storage.atomic import write_bytes
from fedtailor.training.record.schema import RunRecord


def render(records: Sequence[RunRecord]) -> str:
    """Return the whole page; records that differ in their seed alone become one line with a band.

    Raises:
        InputError: There are no records, or they cannot be compared.
    """
    return render_page(group_into_lines(records))


def write_report(records: Sequence[RunRecord], path: Path) -> None:
    """Write the page, all or nothing; an `OSError` leaves the file that was there before."""
    write_bytes(path, render(records).encode(errors="backslashreplace"))
