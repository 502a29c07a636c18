"""The figures of the report's table: means over clients, averaged over seeds, and costs."""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from fedtailor.evaluation.client_statistics import compute_spread
from fedtailor.reporting.html.grouping import HeadlineMetric, ReportLine, list_runs
from fedtailor.training.record.build import sum_costs
from fedtailor.training.record.schema import GroupScores, RunRecord

REPORT_GROUPS = ("participating", "unseen", "validation")
"""Groups of clients in the order in which they are shown."""
TRAFFIC_KEYS = ("down", "up")
TABLE_COSTS = ("down", "up", "flops", "seconds")
"""Costs in the table; `compute_run_cost` has what they are."""
BYTES_PER_MB = 1e6


class Estimate(NamedTuple):
    """A figure averaged over seeds."""

    mean: float
    client_std: float | None = None  # standard deviation over clients, averaged over seeds
    seed_std: float | None = None  # sample standard deviation over seeds; None for a single seed


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
    for key in TABLE_COSTS:
        columns.append(TableColumn(key, "cost", key, higher_is_better=False))
    return columns


def build_rows(lines: Sequence[ReportLine], metric: HeadlineMetric) -> list[TableRow]:
    """Return a row for each line, and for FedAvg one without and one with fine-tuning."""
    rows = []
    stages = list_stages(lines)
    for line_idx, line in enumerate(lines):
        if line.label_after != line.label:
            rows.append(TableRow(line.label, line_idx, _build_cells(line, metric, ["before"])))
        rows.append(TableRow(line.label_after, line_idx, _build_cells(line, metric, stages)))
    return rows


def _build_cells(line: ReportLine, metric: HeadlineMetric, stages: Sequence[str]) -> Cells:
    cells: Cells = {}
    for group in REPORT_GROUPS:
        for stage in stages:
            spreads = [
                compute_spread(values, metric.higher_is_better)
                for values in collect_scores(line, group, stage, metric.name)
            ]
            means = [spread.mean for spread in spreads]
            window_means = collect_window_means(line, group, stage, metric.name)
            if len(window_means) == len(means):
                means = window_means
            client_stds = [spread.std for spread in spreads]
            add_estimate(cells, f"{group}.{stage}", means, client_stds)
            # Stages are in their order, so that the worst tenth of the last one stays.
            worst_tenths = [spread.worst_tenth for spread in spreads]
            add_estimate(cells, f"{group}.worst", worst_tenths)
    costs = [compute_run_cost(run) for run in line.runs]
    for key in TABLE_COSTS:
        add_estimate(cells, key, [cost[key] for cost in costs])
    return cells


def add_estimate(
    cells: Cells, key: str, values: Sequence[float], client_stds: Sequence[float] = ()
) -> None:
    """Add the mean of the values to a row, unless there are none.

    Args:
        cells: The row, which is changed.
        key: Of the column.
        values: One for each seed.
        client_stds: The standard deviation over clients for each seed, where it is known.
    """
    if not values:
        return
    client_std = float(np.mean(client_stds)) if client_stds else None
    seed_std = float(np.std(values, ddof=1)) if len(values) > 1 else None
    cells[key] = Estimate(float(np.mean(values)), client_std, seed_std)


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

    "down" and "up" are in MB; "steps" and "flops" are those of clients, "server" has the FLOPs of
    the server; "seconds" are of training.
    """
    cost = run.cost
    if cost is None:
        cost = sum_costs(run.rounds)
    return {
        "down": cost.bytes_down / BYTES_PER_MB,
        "up": cost.bytes_up / BYTES_PER_MB,
        "steps": cost.steps,
        "seconds": cost.seconds,
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
        values = to_floats(group_scores.get_stage(stage).get(metric_name, []))
        if np.isfinite(values).any():
            scores.append(values)
    return scores


def to_floats(values: Iterable[float | None]) -> np.ndarray:
    """Return the values as an array with NaN for None."""
    return np.array([math.nan if value is None else value for value in values], dtype=float)


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
