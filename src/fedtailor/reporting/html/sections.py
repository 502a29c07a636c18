"""The parts of the page with charts: their controls, and what their headings say."""

from collections.abc import Sequence
from typing import NamedTuple

from fedtailor.reporting.html import wording
from fedtailor.reporting.html.charts import Payload
from fedtailor.reporting.html.figures import REPORT_GROUPS, rank_lines
from fedtailor.reporting.html.grouping import HeadlineMetric, ReportLine
from fedtailor.reporting.html.thinning import get_max_clients

Options = dict[str, str]
"""Labels of a control's options by their values."""


class LineChoice(NamedTuple):
    """A choice of one line, by its index as text; `first` is chosen at first."""

    options: Options
    first: str


class ChartSections(NamedTuple):
    """The facts that controls and sentences of the charts depend on.

    Attributes:
        metrics: The headline metric and the loss.
        curve_groups: Groups that were evaluated after rounds.
        groups: Groups with final scores.
        passes: Numbers of passes of personalizing after which clients were scored.
        scored_lines: Lines with final scores; None if there are none.
        compared_lines: Lines that are compared with local training; None if there are none.
        max_drawn_clients: Clients of a run and group that are drawn; None if all are.
        sampling: A sentence about evaluations of some clients only, or nothing.
        has_server_work: Whether the server computes, too.
    """

    metrics: Options
    curve_groups: Options
    groups: list[str]
    passes: Options
    scored_lines: LineChoice | None
    compared_lines: LineChoice | None
    max_drawn_clients: int | None
    sampling: str
    has_server_work: bool


def describe_charts(
    payload: Payload, lines: Sequence[ReportLine], metric: HeadlineMetric
) -> ChartSections:
    """Return what the charts' controls and sentences depend on.

    Args:
        payload: The numbers that are drawn.
        lines: The lines of the report.
        metric: The headline metric.
    """
    curve_groups = [group for group in REPORT_GROUPS if _has_group(payload, "curves", group)]
    passes = [stage for stage in payload["stages"] if stage.isdecimal()]
    ranking = [str(line_idx) for line_idx in rank_lines(lines, metric)]
    scored = {
        str(line_idx): line["label_after"]
        for line_idx, line in enumerate(payload["lines"])
        if line["clients"]
    }
    compared: Options = {}
    if payload["local"] is not None:
        local_value = str(payload["local"])
        compared = {value: label for value, label in scored.items() if value != local_value}
    return ChartSections(
        metrics={name: name for name in metric.choices},
        curve_groups={group: group for group in curve_groups},
        groups=[group for group in payload["groups"] if _has_group(payload, "clients", group)],
        passes={step: "1 pass" if step == "1" else f"{step} passes" for step in passes},
        scored_lines=_make_choice(scored, ranking),
        compared_lines=_make_choice(compared, ranking),
        max_drawn_clients=_get_max_drawn_clients(payload, lines),
        sampling=wording.describe_sampling(lines),
        has_server_work=any(line["cost"]["server"] for line in payload["lines"]),
    )


def _has_group(payload: Payload, part: str, group: str) -> bool:
    return any(group in line[part] for line in payload["lines"])


def _make_choice(options: Options, ranking: Sequence[str]) -> LineChoice | None:
    """Return a choice with the best line chosen at first; None without options."""
    if not options:
        return None
    # Lines without a test example are in no ranking.
    candidates = [*ranking, *options]
    best = next(value for value in candidates if value in options)
    return LineChoice(options, best)


def _get_max_drawn_clients(payload: Payload, lines: Sequence[ReportLine]) -> int | None:
    runs = [run for line in lines for run in line.runs]
    sizes = [len(scores.ids) for run in runs for scores in (run.scores or {}).values()]
    max_clients = get_max_clients(len(runs), len(payload["groups"]))
    return max_clients if max(sizes, default=0) > max_clients else None
