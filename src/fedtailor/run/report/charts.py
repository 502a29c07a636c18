"""What is drawn, as plain numbers: curves over rounds, means of seeds, clients one by one, costs, and the data."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedtailor.run.report.alone import against, alone_in
from fedtailor.run.report.curves import curves
from fedtailor.run.report.figures import cost_of, costs_of, groups_of, scored, stage_of, stages_of
from fedtailor.run.report.grouping import Line, Metric, Record, metric_of, seed_of
from fedtailor.run.report.holdings import picture
from fedtailor.run.report.thinning import most_of, thinned


def payload(lines: Sequence[Line]) -> dict[str, Any]:
    """Everything that the page's scripts draw."""
    metric = metric_of(lines)
    groups, stages = groups_of(lines), stages_of(lines)
    most = most_of(sum(len(line.runs) for line in lines), len(groups))
    alone = alone_in(lines)
    return {
        "metric": {"name": metric.name, "higher": metric.higher_is_better, "percent": metric.percent},
        "stages": stages,
        "groups": groups,
        "alone": alone,
        "lines": [
            _line(line, metric)
            | {"clients": clients(line, metric, groups, stages, most)}
            | {"seeds": seeds(line, metric, groups, stages)}
            | {"against": None if alone is None else _against(line, lines[alone], metric, groups)}
            for line in lines
        ],
        "costs": costs_of(lines),
        "data": picture(lines[0].runs[0]),
    }


def seeds(line: Line, metric: Metric, groups: Sequence[str], stages: Sequence[str]) -> dict[str, Any]:
    """group -> stage -> figure -> for each seed the mean over its clients."""
    return {
        group: {
            stage: {
                figure: [float(np.nanmean(values)) for values in scored(line, group, stage, figure)]
                for figure in metric.figures
            }
            for stage in stages
        }
        for group in groups
    }


def clients(
    line: Line, metric: Metric, groups: Sequence[str], stages: Sequence[str], most: int
) -> dict[str, dict[str, list[Any]]]:
    """group -> the final figures of the clients of all runs at every stage, with ids and seeds."""
    found = {}
    for group in groups:
        runs = [run for run in line.runs if run["scores"] and group in run["scores"]]
        parts = [_clients(run, group, metric, stages, most) for run in runs]
        if parts:
            found[group] = {key: [value for part in parts for value in part[key]] for key in parts[0]}
    return found


def _line(line: Line, metric: Metric) -> dict[str, Any]:
    costs = [cost_of(run) for run in line.runs]
    return {
        "label": line.label,
        "tuned": line.tuned_label,
        "curves": curves(line, metric),
        "cost": {key: float(np.mean([cost[key] for cost in costs if key in cost])) for key in costs[0]},
    }


def _against(line: Line, alone: Line, metric: Metric, groups: Sequence[str]) -> dict[str, Any]:
    """group -> figure -> how many clients fare better, the same and worse than alone."""
    return {
        group: {
            figure: against(line, alone, group, figure, metric.higher_is_better and figure == metric.name)
            for figure in metric.figures
        }
        for group in groups
    }


def _clients(run: Record, group: str, metric: Metric, stages: Sequence[str], most: int) -> dict[str, list[Any]]:
    scores = run["scores"][group]
    which = thinned(range(len(scores["ids"])), most)
    found = {(stage, figure): stage_of(scores, stage).get(figure) for stage in stages for figure in metric.figures}
    values = {
        f"{stage}.{figure}": [None if inside is None else inside[place] for place in which]
        for (stage, figure), inside in found.items()
    }
    return {"ids": [scores["ids"][place] for place in which], "seed": [seed_of(run)] * len(which), **values}
