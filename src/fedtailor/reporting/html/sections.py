"""Describe the parts of the page that have charts: which there are, their controls, what to say."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fedtailor.reporting.html import wording
from fedtailor.reporting.html.figures import REPORT_GROUPS, rank_lines
from fedtailor.reporting.html.grouping import HeadlineMetric, ReportLine
from fedtailor.reporting.html.thinning import get_max_clients

Payload = Mapping[str, Any]
Options = dict[str, str]  # value -> label


class Choice(NamedTuple):
    """Offer lines by their numbers, of which one is chosen first."""

    options: Options
    first: str


class Charts(NamedTuple):
    """Say what charts, controls and sentences depend on."""

    figures: Options
    curves: Options  # groups that were scored in rounds
    groups: list[str]  # with final scores
    passes: Options  # of personalizing, where figures after some of them were scored
    scored: Choice | None  # lines with final scores; None where there are none
    others: Choice | None  # those compared with clients who learn alone; None where there are none
    drawn_of_group: int | None  # clients of a run; None where all are drawn
    watched: str
    has_flops: bool
    has_server_work: bool


def describe_charts(drawn: Payload, lines: Sequence[ReportLine], metric: HeadlineMetric) -> Charts:
    """Return what the parts about scores and costs depend on."""
    order = [str(number) for number in rank_lines(lines, metric)]
    curves = [group for group in REPORT_GROUPS if _is_any_in(drawn, "curves", group)]
    passes = [stage for stage in drawn["stages"] if stage.isdecimal()]
    scored = {str(n): line["tuned"] for n, line in enumerate(drawn["lines"]) if line["clients"]}
    others = {number: label for number, label in scored.items() if number != str(drawn["alone"])}
    return Charts(
        figures={name: name for name in metric.figures},
        curves={group: group for group in curves},
        groups=[group for group in drawn["groups"] if _is_any_in(drawn, "clients", group)],
        passes={step: f"{step} pass" if step == "1" else f"{step} passes" for step in passes},
        scored=_choice_of(scored, order),
        others=None if drawn["alone"] is None else _choice_of(others, order),
        drawn_of_group=_drawn_of_group(drawn, lines),
        watched=wording.describe_sampling(lines),
        has_flops="flops" in drawn["costs"],
        has_server_work=any(line["cost"].get("server") for line in drawn["lines"]),
    )


def _is_any_in(drawn: Payload, what: str, group: str) -> bool:
    return any(group in line[what] for line in drawn["lines"])


def _choice_of(options: Options, order: Sequence[str]) -> Choice | None:
    """Return the choice with the best line first chosen."""
    if not options:
        return None
    best = next((number for number in order if number in options), next(iter(options)))
    return Choice(options, best)


def _drawn_of_group(drawn: Payload, lines: Sequence[ReportLine]) -> int | None:
    """Return how many clients of a run and group are drawn, where there are more of them."""
    runs = [run for line in lines for run in line.runs]
    groups = [scores["ids"] for run in runs for scores in (run["scores"] or {}).values()]
    most = get_max_clients(len(runs), len(drawn["groups"]))
    return most if max(map(len, groups), default=0) > most else None
