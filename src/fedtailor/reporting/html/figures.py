"""The figures of the report's table: means over clients, averaged over seeds, and costs."""

import math
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from fedtailor.reporting import results
from fedtailor.reporting.html.formats import format_number
from fedtailor.reporting.html.grouping import HeadlineMetric, ReportLine, list_runs
from fedtailor.training.record.build import sum_costs
from fedtailor.training.record.schema import GroupScores, RunRecord

REPORT_GROUPS = ("participating", "unseen", "validation")
"""Groups of clients in the order in which they are shown."""
TABLE_COSTS = ("traffic", "flops", "personalize", "seconds")
"""Costs in the table; `compute_run_cost` has what they are."""
DISTANCE = "distance"
"""The column of the interval of the distance to the best method."""
BYTES_PER_MB = 1e6


class Estimate(NamedTuple):
    """A figure averaged over seeds."""

    mean: float
    client_std: float | None = None  # standard deviation over clients, averaged over seeds
    seed_std: float | None = None  # sample standard deviation over seeds; None for a single seed
    num_missing: int = 0  # seeds that have no figure, as their training diverged
    text: str | None = None  # what is shown in place of the figure


Cells = dict[str, Estimate]
"""Figures of a row by the key of their column; a column without a figure is left out."""


class TableRow(NamedTuple):
    """A row of the table, and the index of the line that it belongs to."""

    label: str
    line: int
    cells: Cells


class TableColumn(NamedTuple):
    """A column of figures, which of them are better, and how they are written.

    `scale` is the value that is written as 1; `decimals` are None until they are chosen to fit the
    figures.
    """

    key: str
    group: str
    heading: str
    higher_is_better: bool
    scale: float = 1.0
    decimals: int | None = None


def list_groups(lines: Sequence[ReportLine]) -> list[str]:
    """Return the groups with final scores or, before there are any, those that will have them."""
    runs = [run for _, run in list_runs(lines)]
    scored = {group for run in runs for group in run.scores or {}}
    if scored:
        return [group for group in REPORT_GROUPS if group in scored]
    expected = {"participating", "unseen"}
    if runs[0].config.eval_groups == "validation":
        expected = {"validation"}
    has_clients = {group for run in runs for group, clients in run.data.groups.items() if clients}
    return [group for group in REPORT_GROUPS if group in expected & has_clients]


def build_columns(groups: Sequence[str], metric: HeadlineMetric) -> list[TableColumn]:
    """Return the table's columns from left to right; costs are as in `compute_run_cost`."""
    columns = []
    for group in groups:
        for key, heading in (("before", "before"), ("after", "after"), ("worst", "worst tenth")):
            column = TableColumn(
                f"{group}.{key}", group, heading, metric.higher_is_better, metric.scale
            )
            columns.append(column)
            if key == "after":
                columns.append(
                    TableColumn(
                        f"{group}.{DISTANCE}", group, "behind the best", False, metric.scale, 1
                    )
                )
    for key in TABLE_COSTS:
        columns.append(TableColumn(key, "cost", key, higher_is_better=False))
    return columns


def build_rows(lines: Sequence[ReportLine], metric: HeadlineMetric) -> list[TableRow]:
    """Return a row for each line, and for FedAvg one without and one with fine-tuning."""
    rows = []
    stages = list_stages(lines)
    standings = compare_lines(lines)
    for line_idx, line in enumerate(lines):
        if line.label_after != line.label:
            rows.append(TableRow(line.label, line_idx, _build_cells(line, ["before"])))
        cells = _build_cells(line, stages)
        for group, found in standings.items():
            text = results.format_distance(
                found.standings.get(line.label_after), make_score_format(metric)
            )
            if text:
                # An unknown distance is sorted behind all others.
                high = min(found.standings[line.label_after].high, sys.float_info.max)
                cells[f"{group}.{DISTANCE}"] = Estimate(high, text=text)
        rows.append(TableRow(line.label_after, line_idx, cells))
    return rows


def compare_lines(lines: Sequence[ReportLine]) -> dict[str, results.GroupStandings]:
    """Return which lines are best after personalizing, by group of clients."""
    runs_by_label = {line.label_after: line.runs for line in lines}
    return {group: results.compare_methods(runs_by_label, group) for group in list_groups(lines)}


def make_score_format(metric: HeadlineMetric) -> Callable[[float], str]:
    """Return how differences of the headline metric are written."""
    decimals = 1 if metric.is_percent else 3
    return lambda value: format_number(value / metric.scale, decimals)


def _build_cells(line: ReportLine, stages: Sequence[str]) -> Cells:
    cells: Cells = {}
    runs = results.list_ended(line.runs)
    for group in REPORT_GROUPS:
        for stage in stages:
            _add_figure(cells, f"{group}.{stage}", runs, (group, stage))
        # The worst tenth is that of the last stage that is shown.
        shown = [stage for stage in stages if f"{group}.{stage}" in cells]
        if shown:
            worst = results.estimate_figure(runs, group, shown[-1], "worst_tenth")
            if math.isfinite(worst.mean):
                cells[f"{group}.worst"] = Estimate(worst.mean, None, worst.seed_std)
    costs = [compute_run_cost(run) for run in line.runs]
    for key in TABLE_COSTS:
        add_estimate(cells, key, [cost[key] for cost in costs])
    return cells


def _add_figure(cells: Cells, key: str, runs: Sequence[RunRecord], place: tuple[str, str]) -> None:
    """Add the headline metric at a place (group, stage) to a row, unless no run has it."""
    group, stage = place
    found = results.estimate_figure(runs, group, stage)
    if math.isfinite(found.mean):
        client_std = results.estimate_figure(runs, group, stage, "std")
        std = client_std.mean if math.isfinite(client_std.mean) else None
        cells[key] = Estimate(found.mean, std, found.seed_std, found.num_missing)


def add_estimate(cells: Cells, key: str, values: Sequence[float]) -> None:
    """Add the mean of the values to a row, unless there are none.

    Args:
        cells: The row, which is changed.
        key: Of the column.
        values: One for each seed; NaN if unknown.
    """
    found = results.estimate(values)
    if math.isfinite(found.mean):
        cells[key] = Estimate(found.mean, None, found.seed_std)


def rank_lines(lines: Sequence[ReportLine], metric: HeadlineMetric) -> list[int]:
    """Return the indices of the scored lines, the best first.

    They are ranked by the mean after personalizing: over unseen clients, if any were scored.
    """
    rows = build_rows(lines, metric)
    for group in reversed(list_groups(lines)):
        key = f"{group}.after"
        scored = [row for row in rows if key in row.cells]
        if scored:
            scored.sort(key=lambda row: row.cells[key].mean, reverse=metric.higher_is_better)
            return [row.line for row in scored]
    return []


def compute_run_cost(run: RunRecord) -> dict[str, float]:
    """Return the cost of a run so far, without evaluations and personalizing.

    "down", "up" and "traffic", both together, are in MB; "steps" and "flops" are those of clients,
    "server" has the FLOPs of the server; "personalize" has the gradients to personalize for a
    client, NaN if unknown; "seconds" are of the whole run.
    """
    cost = run.cost
    if cost is None:
        cost = sum_costs(run.rounds)
    personalize = math.nan
    if cost.personalize_gradients is not None:
        personalize = cost.personalize_gradients
    return {
        "personalize": personalize,
        "traffic": (cost.bytes_down + cost.bytes_up) / BYTES_PER_MB,
        "down": cost.bytes_down / BYTES_PER_MB,
        "up": cost.bytes_up / BYTES_PER_MB,
        "steps": cost.steps,
        "seconds": cost.seconds if run.times is None else run.times.total,
        "flops": cost.flops,
        "server": cost.server_flops,
    }


def list_scored_runs(line: ReportLine, group: str) -> list[tuple[RunRecord, GroupScores]]:
    """Return the runs with final scores of a group, with these."""
    return [
        (run, run.scores[group])
        for run in line.runs
        if run.scores is not None and group in run.scores
    ]


def collect_scores(line: ReportLine, group: str, stage: str, metric_name: str) -> list[np.ndarray]:
    """Return the final scores of a group's clients [clients] for each run in which any was tested.

    Clients that could not be tested have NaN.
    """
    scores = []
    for _, group_scores in list_scored_runs(line, group):
        values = group_scores.get_values(stage, metric_name)
        if not np.isnan(values).all():
            scores.append(values)
    return scores


def collect_window_means(line: ReportLine, group: str, stage: str, metric_name: str) -> list[float]:
    """Return the mean over evaluations in the last fifth of the rounds, for each finished run."""
    means = []
    for run in line.runs:
        if run.final_window is None:
            continue
        mean = run.final_window.mean.get(group, {}).get(stage, {}).get(metric_name)
        if mean is not None:
            means.append(mean)
    return means


def list_stages(lines: Sequence[ReportLine]) -> list[str]:
    """Return "before", the numbers of passes of personalizing that were scored, and "after"."""
    passes: set[str] = set()
    for _, run in list_runs(lines):
        for group_scores in (run.scores or {}).values():
            passes.update(group_scores.after_passes)
    return ["before", *sorted(passes, key=int), "after"]
