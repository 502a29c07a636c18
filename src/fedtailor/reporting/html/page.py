"""The whole page of a report, from everything that it shows."""

from collections.abc import Sequence

from fedtailor.evaluation.finetune_budgets import describe_finetune_budgets
from fedtailor.reporting.html import wording
from fedtailor.reporting.html.charts import build_payload
from fedtailor.reporting.html.conclusions import list_conclusions
from fedtailor.reporting.html.details import tabulate_details
from fedtailor.reporting.html.frame import make_page, read_asset
from fedtailor.reporting.html.grouping import ReportLine, get_metric, list_runs
from fedtailor.reporting.html.runs import describe_runs, describe_versions
from fedtailor.reporting.html.sections import describe_charts
from fedtailor.reporting.html.table import tabulate
from fedtailor.reporting.html.tiles import build_tiles
from fedtailor.training.record.schema import has_same_data

TEMPLATE = "html/templates/report.html.j2"
SCRIPTS = (
    "labels.js",
    "curves.js",
    "glance.js",
    "scores.js",
    "marks.js",
    "local.js",
    "costs.js",
    "data.js",
)


def render_page(lines: Sequence[ReportLine]) -> str:
    """Return the whole HTML page."""
    metric = get_metric(lines)
    payload = build_payload(lines)
    has_several_seeds = any(len(line.runs) > 1 for line in lines)
    has_one_split = has_same_data(run for _, run in list_runs(lines))
    view = {
        "title": wording.make_title(lines),
        "summary": wording.make_summary(lines),
        "status": wording.describe_status(lines),
        "notes": wording.collect_notes(lines),
        "lines": lines,
        "metric": metric,
        "has_several_seeds": has_several_seeds,
        "has_one_split": has_several_seeds and has_one_split,
        "tiles": build_tiles(lines, metric),
        "conclusions": list_conclusions(lines, metric),
        "budgets": describe_finetune_budgets(
            (line.label_after, run.hparams) for line, run in list_runs(lines)
        ),
        "figures": tabulate(lines, metric),
        "details": tabulate_details(lines, metric),
        "charts": describe_charts(payload, lines, metric),
        "data": payload["data"],
        "runs": [describe_runs(line) for line in lines],
        "made_with": describe_versions(lines),
    }
    return make_page(TEMPLATE, view, payload, [read_asset(name) for name in SCRIPTS])
