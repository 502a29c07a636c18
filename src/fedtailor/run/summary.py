"""What a record says in short: figures of groups of clients, the last rounds together, and how fast it got there.

Nothing here chooses: there is no best round. What stands for a run is its last round, scored on everybody, and the mean
over the looks in the last fifth of its rounds.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from fedtailor.run.evaluate import Full
from fedtailor.run.metrics import first_reaching, micro, rise_time, rolling, spread

LAST = 5
"""The looks in the last one in so many of the rounds count."""
ROLLED = 50
"""A rolling mean is over one in so many of the rounds: 20 of 1,000, as in FSL's figures."""
HALF = 0.5
"""The accuracy that T_0.5 is the time of."""

Record = Mapping[str, Any]


def last_looks(rounds: Sequence[Record], total: int) -> list[Record]:
    """The rounds of the last fifth at which was looked."""
    return [entry for entry in rounds if entry["scores"] and entry["round"] > total - max(1, total // LAST)]


def window(rounds: Sequence[Record], total: int) -> dict[str, Any]:
    """The last looks: at which rounds they were, and for each group, before and after, the mean of each figure."""
    looks = last_looks(rounds, total)
    groups = looks[-1]["scores"] if looks else {}
    means = {
        group: {
            when: {name: _mean([look["scores"][group][when].get(name) for look in looks]) for name in figures}
            for when, figures in both.items()
        }
        for group, both in groups.items()
    }
    return {"looks": [look["round"] for look in looks], "mean": means}


def summarised(full: Full, metric: Mapping[str, Any]) -> dict[str, Any]:
    """A group's figures before personalising, after it, and after a few passes of it."""
    found = {"before": full.scores.before, "after": full.scores.after, **full.after_steps}
    weights, headline, higher = full.scores.weights, metric["name"], metric["higher_is_better"]
    return {when: _summary(figures, weights, headline, higher) | _f1(full.f1, when) for when, figures in found.items()}


def _summary(
    figures: Mapping[str, np.ndarray], weights: Mapping[str, np.ndarray], metric: str, higher_is_better: bool
) -> dict[str, float | None]:
    over_clients = spread(figures[metric], higher_is_better)
    found = {
        "acc_micro": micro(figures[metric], weights[metric]),
        "acc_macro": over_clients.mean,
        "std": over_clients.std,
        "worst_tenth": over_clients.worst_tenth,
        "loss": micro(figures["loss"], weights["loss"]),
    }
    return {name: _plain(value) for name, value in found.items()}


def _f1(f1: Mapping[str, float], when: str) -> dict[str, float | None]:
    return {"f1_macro": _plain(f1[when])} if when in f1 else {}


def pace(rounds: Sequence[Record], record: Record) -> dict[str, Any]:
    """How fast each group's figure rose, before and after personalising: rounds, and bytes sent, until it was there.

    The figure is the rolling mean over a fiftieth of the rounds, known at the rounds at which was looked.
    """
    looks = [entry for entry in rounds if entry["scores"]]
    groups = looks[-1]["scores"] if looks else {}
    sent = list(accumulate(entry["bytes_down"] + entry["bytes_up"] for entry in rounds))
    return {group: {when: _pace(looks, group, when, sent, record) for when in ("before", "after")} for group in groups}


def _pace(looks: Sequence[Record], group: str, when: str, sent: Sequence[int], record: Record) -> dict[str, Any]:
    metric, higher, target = record["metric"]["name"], record["metric"]["higher_is_better"], record["spec"]["target"]
    seen = [(look["round"], look["scores"][group][when][metric]) for look in looks]
    at, values = zip(*((number, math.nan if value is None else value) for number, value in seen), strict=True)
    smooth = rolling(at, values, max(1, record["spec"]["rounds"] // ROLLED))
    there = None if target is None else first_reaching(at, smooth, target, higher)
    share = metric in ("accuracy", "f1")
    return {
        "rise_time": rise_time(at, smooth) if higher else None,
        "T_0.5": first_reaching(at, smooth, HALF) if share else None,
        "target": target,
        "rounds_to_target": there,
        "bytes_to_target": None if there is None else sent[there - 1],
    }


def _mean(values: Sequence[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return float(np.mean(there)) if there else None


def _plain(value: float) -> float | None:
    return value if math.isfinite(value) else None
