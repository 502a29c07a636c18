"""The table's figures: means over clients, averaged over seeds."""

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedtailor.evaluation.client_statistics import compute_spread
from fedtailor.reporting.html.grouping import HeadlineMetric, Record, ReportLine, list_runs

REPORT_GROUPS = ("participating", "unseen", "validation")
TRAFFIC_KEYS, WORK_KEYS = ("down", "up"), ("flops", "steps")
COST_KEYS = (*TRAFFIC_KEYS, "flops", "steps", "seconds")
_RECORD_KEYS = {"down": "bytes_down", "up": "bytes_up", "steps": "steps", "seconds": "seconds"}
_OPTIONAL_RECORD_KEYS = {"flops": "flops", "server": "server_flops"}  # not in every record


class Estimate(NamedTuple):
    """A number averaged over seeds."""

    mean: float
    over_clients: float | None = None  # standard deviation over clients, averaged over seeds
    over_seeds: float | None = None  # sample standard deviation over seeds, where there are several


class TableRow(NamedTuple):
    """A row of the table: column -> figure; a column without one is left out."""

    label: str
    line: int  # the line it belongs to
    cells: dict[str, Estimate]


class TableColumn(NamedTuple):
    """A column of figures, and which of them are better."""

    key: str
    group: str
    heading: str
    higher_is_better: bool
    scale: float = 1.0  # what one of the unit that it is shown in is
    decimals: int | None = None  # None: what its figures need


def list_groups(lines: Sequence[ReportLine]) -> list[str]:
    """Groups of clients with final scores or, before there are any, those that will have them."""
    runs = [run for _, run in list_runs(lines)]
    scored = {group for run in runs for group in run["scores"] or ()}
    expected_groups = (
        {"validation"}
        if runs[0]["config"].get("eval_groups") == "validation"
        else {"participating", "unseen"}
    )
    upcoming = {
        group for group in expected_groups for run in runs if run["data"]["groups"].get(group)
    }
    return [group for group in REPORT_GROUPS if group in (scored or upcoming)]


def build_columns(
    groups: Sequence[str], metric: HeadlineMetric, costs: Sequence[str] = COST_KEYS
) -> list[TableColumn]:
    """The table's columns from left to right."""
    names = (("before", "before"), ("after", "after"), ("worst", "worst tenth"))
    scores = [
        TableColumn(f"{group}.{key}", group, heading, metric.higher_is_better, metric.scale)
        for group in groups
        for key, heading in names
    ]
    return scores + [
        TableColumn(key, "cost", key, False, decimals=0 if key == "steps" else None)
        for key in costs
    ]


def build_rows(lines: Sequence[ReportLine], metric: HeadlineMetric) -> list[TableRow]:
    """A row for each line; averaging gets a second one, with fine-tuning."""
    table_rows = []
    stages = list_stages(lines)
    for line_idx, line in enumerate(lines):
        if line.tuned_label != line.label:
            table_rows.append(_build_row(line.label, line_idx, line, metric, ("before",)))
        table_rows.append(_build_row(line.tuned_label, line_idx, line, metric, stages))
    return table_rows


def rank_rows(rows: Sequence[TableRow], column: TableColumn) -> list[int]:
    """The rows with a figure in a column, the best first."""
    sign = -1 if column.higher_is_better else 1
    scored = [index for index, row in enumerate(rows) if column.key in row.cells]
    return sorted(scored, key=lambda index: sign * rows[index].cells[column.key].mean)


def rank_lines(lines: Sequence[ReportLine], metric: HeadlineMetric) -> list[int]:
    """The scored lines, best first after personalizing, on new clients if there are any."""
    rows = build_rows(lines, metric)
    after = [
        column for column in build_columns(list_groups(lines), metric) if column.heading == "after"
    ]
    found = [order for column in after if (order := rank_rows(rows, column))]
    return [rows[index].line for index in found[-1]] if found else []


def compute_run_cost(run: Record) -> dict[str, float]:
    """Megabytes, floating-point operations where they were counted, steps and seconds so far."""
    found: dict[str, float] = {}
    for key, name in {**_RECORD_KEYS, **_OPTIONAL_RECORD_KEYS}.items():
        total = _get_total_cost(run, name)
        if total is not None:
            found[key] = total / 1e6 if key in TRAFFIC_KEYS else total
    return found


def _get_total_cost(run: Record, name: str) -> float | None:
    """From the run's sum or, where it has made none yet, from its rounds."""
    if run["cost"]:
        found: float | None = run["cost"].get(name)
        return found
    parts = [entry[name] for entry in run["rounds"] if name in entry]
    return sum(parts) if parts or name in _RECORD_KEYS.values() else None


def list_known_costs(lines: Sequence[ReportLine]) -> list[str]:
    """The costs that every run knows of."""
    known = [compute_run_cost(run) for _, run in list_runs(lines)]
    return [key for key in COST_KEYS if all(key in cost for cost in known)]


def to_floats(values: Iterable[Any]) -> np.ndarray:
    """As floats, NaN for None."""
    return np.array([math.nan if value is None else value for value in values], dtype=float)


def collect_scores(line: ReportLine, group: str, stage: str, metric_name: str) -> list[np.ndarray]:
    """For each finished run its clients' figures; runs in which nobody could be tested are left out."""
    found = [
        get_stage_scores(run["scores"][group], stage)
        for run in line.runs
        if run["scores"] and group in run["scores"]
    ]
    values = [to_floats(scores[metric_name]) for scores in found if metric_name in scores]
    return [each for each in values if not np.isnan(each).all()]


def collect_window_means(line: ReportLine, group: str, stage: str, metric_name: str) -> list[float]:
    """For each run that knows it the mean over the looks in the last fifth of its rounds."""
    found = [
        run["final_window"]["mean"].get(group, {}).get(stage, {}).get(metric_name)
        for run in line.runs
        if run.get("final_window")
    ]
    return [float(value) for value in found if value is not None]


def get_stage_scores(scores: Record, stage: str) -> Record:
    """The figures before personalizing, after it, or after so many of its steps; none where there are none."""
    found: Record = scores.get(stage) or (scores.get("after_passes") or {}).get(stage) or {}
    return found


def list_stages(lines: Sequence[ReportLine]) -> list[str]:
    """Before personalizing, after so many steps where that was scored, and after it."""
    found = [
        scores.get("after_passes") or {}
        for _, run in list_runs(lines)
        for scores in (run["scores"] or {}).values()
    ]
    steps = sorted({step for each in found for step in each}, key=int)
    return ["before", *steps, "after"]


def summarize_over_seeds(
    key: str, values: Sequence[float], client_stds: Sequence[float] = ()
) -> dict[str, Estimate]:
    """A column's figure from one number a seed, and from its spread over clients where that is known."""
    if not values:
        return {}
    seed_std = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return {
        key: Estimate(
            float(np.mean(values)), float(np.mean(client_stds)) if client_stds else None, seed_std
        )
    }


def _build_row(
    label: str, line_idx: int, line: ReportLine, metric: HeadlineMetric, stages: Sequence[str]
) -> TableRow:
    cells: dict[str, Estimate] = {}
    for group in REPORT_GROUPS:
        for stage in stages:
            spreads = [
                compute_spread(values, metric.higher_is_better)
                for values in collect_scores(line, group, stage, metric.name)
            ]
            client_stds, means = [found.std for found in spreads], [found.mean for found in spreads]
            window_means = collect_window_means(line, group, stage, metric.name)
            cells |= summarize_over_seeds(
                f"{group}.{stage}",
                window_means if len(window_means) == len(means) else means,
                client_stds,
            )
            cells |= summarize_over_seeds(
                f"{group}.worst", [found.worst_tenth for found in spreads]
            )
    costs = [compute_run_cost(run) for run in line.runs]
    for key in COST_KEYS:
        cells |= summarize_over_seeds(key, [cost[key] for cost in costs if key in cost])
    return TableRow(label, line_idx, cells)
