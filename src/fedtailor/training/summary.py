"""What a record says in short: figures of groups of clients, the last rounds together, and how fast it got there.

Nothing here chooses: there is no best round. What stands for a run is its last round, scored on everybody, and the mean
over the looks in the last fifth of its rounds.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from fedtailor.evaluation.client_statistics import (
    compute_micro_mean,
    compute_rise_time,
    compute_rolling_mean,
    compute_spread,
    find_first_reaching,
)
from fedtailor.evaluation.evaluate import FinalScores

FINAL_WINDOW_DIVISOR = 5
"""The looks in the last one in so many of the rounds count."""
ROLLING_WINDOW_DIVISOR = 50
"""A rolling mean is over one in so many of the rounds: 20 of 1,000, as in FSL's figures."""
HALF_ACCURACY = 0.5
"""The accuracy that T_0.5 is the time of."""

Record = Mapping[str, Any]


def get_last_eval_points(rounds: Sequence[Record], total: int) -> list[Record]:
    """The rounds of the last fifth at which was looked."""
    return [
        entry
        for entry in rounds
        if entry["scores"] and entry["round"] > total - max(1, total // FINAL_WINDOW_DIVISOR)
    ]


def compute_final_window(rounds: Sequence[Record], total: int) -> dict[str, Any]:
    """The last looks: at which rounds they were, and for each group, before and after, the mean of each figure."""
    eval_points = get_last_eval_points(rounds, total)
    groups = eval_points[-1]["scores"] if eval_points else {}
    means = {
        group: {
            stage: {
                name: _average_known(
                    [eval_point["scores"][group][stage].get(name) for eval_point in eval_points]
                )
                for name in figures
            }
            for stage, figures in figures_by_stage.items()
        }
        for group, figures_by_stage in groups.items()
    }
    return {"eval_points": [eval_point["round"] for eval_point in eval_points], "mean": means}


def summarize_group(final: FinalScores, metric: Mapping[str, Any]) -> dict[str, Any]:
    """A group's figures before personalizing, after it, and after a few passes of it."""
    found = {"before": final.scores.before, "after": final.scores.after, **final.after_passes}
    weights, headline, higher_is_better = (
        final.scores.weights,
        metric["name"],
        metric["higher_is_better"],
    )
    return {
        stage: _summarize_scores(figures, weights, headline, higher_is_better)
        | _get_f1(final.f1, stage)
        for stage, figures in found.items()
    }


def _summarize_scores(
    figures: Mapping[str, np.ndarray],
    weights: Mapping[str, np.ndarray],
    metric: str,
    higher_is_better: bool,
) -> dict[str, float | None]:
    over_clients = compute_spread(figures[metric], higher_is_better)
    found = {
        "acc_micro": compute_micro_mean(figures[metric], weights[metric]),
        "acc_macro": over_clients.mean,
        "std": over_clients.std,
        "worst_tenth": over_clients.worst_tenth,
        "loss": compute_micro_mean(figures["loss"], weights["loss"]),
    }
    return {name: _to_json_number(value) for name, value in found.items()}


def _get_f1(f1: Mapping[str, float], stage: str) -> dict[str, float | None]:
    return {"f1_macro": _to_json_number(f1[stage])} if stage in f1 else {}


def compute_convergence(rounds: Sequence[Record], record: Record) -> dict[str, Any]:
    """How fast each group's figure rose, before and after personalizing: rounds, and bytes sent, until it was there.

    The figure is the rolling mean over a fiftieth of the rounds, known at the rounds at which was looked.
    """
    eval_points = [entry for entry in rounds if entry["scores"]]
    groups = eval_points[-1]["scores"] if eval_points else {}
    sent = list(accumulate(entry["bytes_down"] + entry["bytes_up"] for entry in rounds))
    return {
        group: {
            stage: _compute_group_convergence(eval_points, group, stage, sent, record)
            for stage in ("before", "after")
        }
        for group in groups
    }


def _compute_group_convergence(
    eval_points: Sequence[Record], group: str, stage: str, sent: Sequence[int], record: Record
) -> dict[str, Any]:
    metric, higher_is_better, target = (
        record["metric"]["name"],
        record["metric"]["higher_is_better"],
        record["config"]["target"],
    )
    seen = [
        (eval_point["round"], eval_point["scores"][group][stage][metric])
        for eval_point in eval_points
    ]
    eval_rounds, values = zip(
        *((round_idx, math.nan if value is None else value) for round_idx, value in seen),
        strict=True,
    )
    smooth = compute_rolling_mean(
        eval_rounds, values, max(1, record["config"]["rounds"] // ROLLING_WINDOW_DIVISOR)
    )
    target_round = (
        None
        if target is None
        else find_first_reaching(eval_rounds, smooth, target, higher_is_better)
    )
    is_share = metric in ("accuracy", "f1")
    return {
        "rise_time": compute_rise_time(eval_rounds, smooth) if higher_is_better else None,
        "T_0.5": find_first_reaching(eval_rounds, smooth, HALF_ACCURACY) if is_share else None,
        "target": target,
        "rounds_to_target": target_round,
        "bytes_to_target": None if target_round is None else sent[target_round - 1],
    }


def _average_known(values: Sequence[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return float(np.mean(there)) if there else None


def _to_json_number(value: float) -> float | None:
    return value if math.isfinite(value) else None
