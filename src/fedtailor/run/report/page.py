"""Gather what the page shows, and make the page."""

from collections.abc import Sequence

from fedtailor.run.record import have_same_data
from fedtailor.run.report import wording
from fedtailor.run.report.charts import payload
from fedtailor.run.report.frame import make_page, read_own
from fedtailor.run.report.grouping import Line, metric_of, runs_of
from fedtailor.run.report.more import tabulate_more
from fedtailor.run.report.runs import describe_runs, describe_versions
from fedtailor.run.report.sections import describe_charts
from fedtailor.run.report.table import tabulate
from fedtailor.run.report.tiles import find_tiles

TEMPLATE = "report/templates/report.html.j2"
SCRIPTS = (
    "labels.js",
    "curves.js",
    "glance.js",
    "scores.js",
    "marks.js",
    "alone.js",
    "costs.js",
    "data.js",
)


def page(lines: Sequence[Line]) -> str:
    """Return the whole HTML page."""
    metric = metric_of(lines)
    drawn = payload(lines)
    has_several_seeds = any(len(line.runs) > 1 for line in lines)
    view = {
        "title": wording.title(lines),
        "summary": wording.summary(lines),
        "status": wording.status(lines),
        "notes": wording.notes(lines),
        "lines": lines,
        "metric": metric,
        "has_several_seeds": has_several_seeds,
        "has_one_split": has_several_seeds and have_same_data([run for _, run in runs_of(lines)]),
        "tiles": find_tiles(lines, metric),
        "figures": tabulate(lines, metric),
        "more": tabulate_more(lines, metric),
        "charts": describe_charts(drawn, lines, metric),
        "data": drawn["data"],
        "runs": [describe_runs(line) for line in lines],
        "made_with": describe_versions(lines),
    }
    return make_page(TEMPLATE, view, drawn, [read_own(name) for name in SCRIPTS])
