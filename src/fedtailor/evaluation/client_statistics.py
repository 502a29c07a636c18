"""Figures over clients (mean, standard deviation, worst tenth), over classes (F1) and over rounds (rise time)."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from torch import Tensor


class Scores(NamedTuple):
    """What a group of clients scored: for each figure a number per client, NaN for one with nothing to test on."""

    ids: np.ndarray
    before: dict[str, np.ndarray]
    after: dict[str, np.ndarray]
    weights: dict[str, np.ndarray]  # how much of a client was tested: examples, or tokens


class Spread(NamedTuple):
    """A figure over the clients of a group."""

    mean: float
    std: float
    worst_tenth: float  # the mean over the tenth of the clients that fare worst


def compute_ratios(sums: Tensor) -> np.ndarray:
    """Ratios of (sum, weight) pairs; NaN where the weight is 0. A model that has diverged has an infinite loss."""
    total, weight = sums.double().numpy().T
    ratios: np.ndarray = np.divide(
        total, weight, out=np.full(len(total), math.nan), where=weight > 0
    )
    return ratios


def compute_spread(values: np.ndarray, higher_is_better: bool = True) -> Spread:
    """Mean, standard deviation and worst tenth (at least one client) over the clients that could be tested."""
    tested = np.sort(values[~np.isnan(values)])
    if not len(tested):
        return Spread(math.nan, math.nan, math.nan)
    worst = tested if higher_is_better else tested[::-1]
    return Spread(
        float(tested.mean()),
        float(tested.std()),
        float(worst[: math.ceil(len(tested) / 10)].mean()),
    )


def compute_micro_mean(values: np.ndarray, weights: np.ndarray) -> float:
    """The mean over all examples: clients count by how much of them was tested."""
    tested = ~np.isnan(values) & (weights > 0)
    return float(np.average(values[tested], weights=weights[tested])) if tested.any() else math.nan


def compute_macro_f1(pairs: np.ndarray) -> float:
    """The mean over classes of 2 hits / (said + true), from these two for each class [classes, 2].

    A class that nobody has and that was never said is left out.
    """
    present = pairs[pairs[:, 1] > 0]
    return float((present[:, 0] / present[:, 1]).mean()) if len(present) else math.nan


def compute_share_better(
    values: np.ndarray, others: np.ndarray, higher_is_better: bool = True
) -> float:
    """The share of clients who fare better with `values` than with `others`, of those tested with both."""
    both = ~np.isnan(values) & ~np.isnan(others)
    if not both.any():
        return math.nan
    better = values > others if higher_is_better else values < others
    return float(better[both].mean())


def compute_rolling_mean(rounds: Sequence[int], values: Sequence[float], width: int) -> np.ndarray:
    """At every look the mean over the looks of the last `width` rounds, itself among them."""
    eval_rounds, figures = np.asarray(rounds), np.asarray(values, dtype=float)
    return np.array(
        [
            figures[(eval_rounds > round_idx - width) & (eval_rounds <= round_idx)].mean()
            for round_idx in eval_rounds
        ]
    )


def find_first_reaching(
    rounds: Sequence[int],
    values: Sequence[float] | np.ndarray,
    target: float,
    higher_is_better: bool = True,
) -> int | None:
    """The first of the rounds at which the target is reached; None if it never is. T_0.5 has the target 0.5."""
    seen = np.asarray(values, dtype=float)
    indices = np.flatnonzero(seen >= target if higher_is_better else seen <= target)
    return int(rounds[indices[0]]) if len(indices) else None


def compute_rise_time(
    rounds: Sequence[int], values: Sequence[float] | np.ndarray, share: float = 0.9
) -> int | None:
    """The first of the rounds at which a figure reaches that share of what it ends at (FSL, section V)."""
    return find_first_reaching(rounds, values, share * float(values[-1])) if len(rounds) else None
