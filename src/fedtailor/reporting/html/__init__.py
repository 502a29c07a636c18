"""One run, or a comparison of several, as one HTML file that needs nothing else, no network included.

    grouping (lines) -> figures -> table, more, tiles (figures as they are shown)
                     -> curves, alone, holdings -> charts (what is drawn) -> sections (where)
                     -> wording, runs (how to repeat it)
    all of these     -> page -> templates (all HTML), frame (with styles, numbers and scripts)

The charts are sent as plain numbers; the page's scripts turn them into pictures with plotly.js, which is inlined.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedtailor.reporting.html.grouping import group_into_lines
from fedtailor.reporting.html.page import render_page
from fedtailor.storage.atomic import write_bytes


def render(records: Sequence[Mapping[str, Any]]) -> str:
    """The whole page; records of one method that differ in their seed alone become one line with a band."""
    return render_page(group_into_lines(records))


def write_report(records: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Writes the page, all or nothing; an `OSError` leaves the file that was there before."""
    write_bytes(path, render(records).encode())
