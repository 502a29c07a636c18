"""Everything that the page's scripts draw, as plain numbers."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedtailor.evaluation.client_statistics import compute_spread
from fedtailor.reporting.html.curves import build_curves
from fedtailor.reporting.html.data_overview import build_data_payload
from fedtailor.reporting.html.figures import (
    collect_scores,
    compute_run_cost,
    list_groups,
    list_scored_runs,
    list_stages,
)
from fedtailor.reporting.html.grouping import HeadlineMetric, ReportLine, get_metric
from fedtailor.reporting.html.local_comparison import compare_with_local, find_local_line
from fedtailor.reporting.html.thinning import get_max_clients, thin
from fedtailor.training.record.schema import GroupScores

Payload = dict[str, Any]
"""What becomes JSON in the page."""


def build_payload(lines: Sequence[ReportLine]) -> Payload:
    """Return the numbers of all charts.

    "local" is the index of the line of local training, with which the others are compared, or None.
    """
    metric = get_metric(lines)
    groups = list_groups(lines)
    stages = list_stages(lines)
    num_runs = sum(len(line.runs) for line in lines)
    max_clients = get_max_clients(num_runs, len(groups))
    local_idx = find_local_line(lines)
    local_line = None if local_idx is None else lines[local_idx]
    line_payloads = []
    for line in lines:
        line_payload = {
            "label": line.label,
            "label_after": line.label_after,
            "curves": build_curves(line, metric),
            "cost": _average_costs(line),
            "clients": _collect_client_scores(line, metric, groups, stages, max_clients),
            "seeds": _collect_seed_means(line, metric, groups, stages),
            "against_local": _compare_groups_with_local(line, local_line, metric, groups),
        }
        line_payloads.append(line_payload)
    return {
        "metric": {
            "name": metric.name,
            "higher": metric.higher_is_better,
            "percent": metric.is_percent,
        },
        "stages": stages,
        "groups": groups,
        "local": local_idx,
        "lines": line_payloads,
        "data": build_data_payload(lines[0].runs[0]),
    }


def _average_costs(line: ReportLine) -> dict[str, float]:
    costs = [compute_run_cost(run) for run in line.runs]
    return {key: float(np.mean([cost[key] for cost in costs])) for key in costs[0]}


def _collect_seed_means(
    line: ReportLine, metric: HeadlineMetric, groups: Sequence[str], stages: Sequence[str]
) -> Payload:
    """Return the mean over clients for each seed, by group, stage and metric."""
    means: Payload = {}
    for group in groups:
        means[group] = {}
        for stage in stages:
            means[group][stage] = {}
            for metric_name in metric.choices:
                scores = collect_scores(line, group, stage, metric_name)
                seed_means = [compute_spread(values).mean for values in scores]
                means[group][stage][metric_name] = [
                    mean for mean in seed_means if math.isfinite(mean)
                ]
    return means


def _collect_client_scores(
    line: ReportLine,
    metric: HeadlineMetric,
    groups: Sequence[str],
    stages: Sequence[str],
    max_clients: int,
) -> Payload:
    """Return the final scores of clients by group, in lists over the clients of all runs.

    Each group has ids, seeds and the lists "STAGE.METRIC"; of each run at most `max_clients` are
    taken.
    """
    clients: Payload = {}
    for group in groups:
        for run, group_scores in list_scored_runs(line, group):
            indices = thin(range(len(group_scores.ids)), max_clients)
            columns = clients.setdefault(group, {})
            ids = [group_scores.ids[index] for index in indices]
            columns.setdefault("ids", []).extend(ids)
            columns.setdefault("seed", []).extend([run.config.seed] * len(indices))
            for stage in stages:
                for metric_name in metric.choices:
                    scores = _select_scores(group_scores, stage, metric_name, indices)
                    columns.setdefault(f"{stage}.{metric_name}", []).extend(scores)
    return clients


def _select_scores(
    group_scores: GroupScores, stage: str, metric_name: str, indices: Sequence[int]
) -> list[float | None]:
    """Return scores of some clients; None where the stage was not scored."""
    scores = group_scores.get_stage(stage).get(metric_name)
    if scores is None:
        return [None] * len(indices)
    return [scores[index] for index in indices]


def _compare_groups_with_local(
    line: ReportLine,
    local_line: ReportLine | None,
    metric: HeadlineMetric,
    groups: Sequence[str],
) -> Payload | None:
    """Return by group and metric how many clients do better, the same and worse than locally."""
    if local_line is None:
        return None
    comparisons: Payload = {}
    for group in groups:
        comparisons[group] = {}
        for metric_name in metric.choices:
            higher_is_better = metric.higher_is_better and metric_name == metric.name
            comparisons[group][metric_name] = compare_with_local(
                line, local_line, group, metric_name, higher_is_better
            )
    return comparisons
