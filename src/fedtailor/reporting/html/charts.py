"""What is drawn, as plain numbers: curves over rounds, means of seeds, clients one by one, costs, and the data."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedtailor.reporting.html.curves import build_curves
from fedtailor.reporting.html.data_overview import build_data_payload
from fedtailor.reporting.html.figures import (
    collect_scores,
    compute_run_cost,
    get_stage_scores,
    list_groups,
    list_known_costs,
    list_stages,
)
from fedtailor.reporting.html.grouping import (
    HeadlineMetric,
    Record,
    ReportLine,
    get_metric,
    get_seed,
)
from fedtailor.reporting.html.local_comparison import compare_with_local, find_local_line
from fedtailor.reporting.html.thinning import get_max_clients, thin


def build_payload(lines: Sequence[ReportLine]) -> dict[str, Any]:
    """Everything that the page's scripts draw."""
    metric = get_metric(lines)
    groups, stages = list_groups(lines), list_stages(lines)
    max_clients = get_max_clients(sum(len(line.runs) for line in lines), len(groups))
    local_idx = find_local_line(lines)
    return {
        "metric": {
            "name": metric.name,
            "higher": metric.higher_is_better,
            "percent": metric.percent,
        },
        "stages": stages,
        "groups": groups,
        "alone": local_idx,
        "lines": [
            _line_to_json(line, metric)
            | {"clients": collect_client_scores(line, metric, groups, stages, max_clients)}
            | {"seeds": collect_seed_means(line, metric, groups, stages)}
            | {
                "against": None
                if local_idx is None
                else _compare_line_with_local(line, lines[local_idx], metric, groups)
            }
            for line in lines
        ],
        "costs": list_known_costs(lines),
        "data": build_data_payload(lines[0].runs[0]),
    }


def collect_seed_means(
    line: ReportLine, metric: HeadlineMetric, groups: Sequence[str], stages: Sequence[str]
) -> dict[str, Any]:
    """group -> stage -> figure -> for each seed the mean over its clients."""
    return {
        group: {
            stage: {
                metric_name: [
                    float(np.nanmean(values))
                    for values in collect_scores(line, group, stage, metric_name)
                ]
                for metric_name in metric.figures
            }
            for stage in stages
        }
        for group in groups
    }


def collect_client_scores(
    line: ReportLine,
    metric: HeadlineMetric,
    groups: Sequence[str],
    stages: Sequence[str],
    max_clients: int,
) -> dict[str, dict[str, list[Any]]]:
    """group -> the final figures of the clients of all runs at every stage, with ids and seeds."""
    found = {}
    for group in groups:
        runs = [run for run in line.runs if run["scores"] and group in run["scores"]]
        parts = [_collect_run_clients(run, group, metric, stages, max_clients) for run in runs]
        if parts:
            found[group] = {
                key: [value for part in parts for value in part[key]] for key in parts[0]
            }
    return found


def _line_to_json(line: ReportLine, metric: HeadlineMetric) -> dict[str, Any]:
    costs = [compute_run_cost(run) for run in line.runs]
    return {
        "label": line.label,
        "tuned": line.tuned_label,
        "curves": build_curves(line, metric),
        "cost": {
            key: float(np.mean([cost[key] for cost in costs if key in cost])) for key in costs[0]
        },
    }


def _compare_line_with_local(
    line: ReportLine, local_line: ReportLine, metric: HeadlineMetric, groups: Sequence[str]
) -> dict[str, Any]:
    """group -> figure -> how many clients fare better, the same and worse than alone."""
    return {
        group: {
            metric_name: compare_with_local(
                line,
                local_line,
                group,
                metric_name,
                metric.higher_is_better and metric_name == metric.name,
            )
            for metric_name in metric.figures
        }
        for group in groups
    }


def _collect_run_clients(
    run: Record, group: str, metric: HeadlineMetric, stages: Sequence[str], max_clients: int
) -> dict[str, list[Any]]:
    scores = run["scores"][group]
    indices = thin(range(len(scores["ids"])), max_clients)
    values_by_stage = {
        (stage, metric_name): get_stage_scores(scores, stage).get(metric_name)
        for stage in stages
        for metric_name in metric.figures
    }
    values = {
        f"{stage}.{metric_name}": [
            None if client_values is None else client_values[index] for index in indices
        ]
        for (stage, metric_name), client_values in values_by_stage.items()
    }
    return {
        "ids": [scores["ids"][index] for index in indices],
        "seed": [get_seed(run)] * len(indices),
        **values,
    }
