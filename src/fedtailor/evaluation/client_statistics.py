"""Statistics over clients (mean, spread, worst tenth), over classes (F1) and over rounds.

A client without test examples has NaN in place of its score, and statistics leave it out. A client
whose model has diverged has an infinite error; no statistic leaves that out.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from torch import Tensor

from fedtailor.errors import require, suggest_name


class Scores(NamedTuple):
    """Scores of a group of clients, before and after personalization; all arrays are [clients]."""

    ids: np.ndarray  # names of the clients
    before: dict[str, np.ndarray]  # by metric
    after: dict[str, np.ndarray]
    weights: dict[str, np.ndarray]  # number of test examples, or of tokens

    def mean(self, metric: str, stage: str = "after") -> float:
        """Return the mean of a metric over the clients that have test examples.

        It is the figure that tables, reports and records show.

        Args:
            metric: Name of the metric.
            stage: "before" or "after" personalization.
        """
        by_stage = {"before": self.before, "after": self.after}
        require(stage in by_stage, f"scores: stage must be 'before' or 'after', got {stage!r}.")
        figures = by_stage[stage]
        require(
            metric in figures,
            f"scores: there is no metric {metric!r}; {suggest_name(str(metric), figures)}",
        )
        return compute_spread(figures[metric]).mean


class Spread(NamedTuple):
    """A metric over the clients of a group."""

    mean: float
    std: float
    worst_tenth: float  # mean over the tenth of the clients with the worst scores


def compute_ratios(sums: Tensor) -> np.ndarray:
    """Return the ratios of (sum, weight) pairs [clients, 2], NaN where the weight is 0.

    A model that has diverged has an infinite loss.
    """
    total, weight = sums.double().numpy().T
    ratios = np.full(len(total), math.nan)
    is_tested = weight > 0
    np.divide(total, weight, out=ratios, where=is_tested)
    ratios[is_tested & np.isnan(ratios)] = math.inf
    return ratios


def compute_spread(values: np.ndarray, higher_is_better: bool = True) -> Spread:
    """Return mean, standard deviation and worst tenth; the tenth has at least one client."""
    tested = np.sort(values[~np.isnan(values)])
    if not len(tested):
        return Spread(math.nan, math.nan, math.nan)
    std = float(tested.std()) if np.isfinite(tested).all() else math.inf
    worst_first = tested if higher_is_better else tested[::-1]
    worst_tenth = worst_first[: math.ceil(len(tested) / 10)]
    return Spread(float(tested.mean()), std, float(worst_tenth.mean()))


def compute_micro_mean(values: np.ndarray, weights: np.ndarray) -> float:
    """Return the mean over the test examples of all clients together; NaN without any.

    `values` and `weights`, both [clients], are scores and numbers of test examples.
    """
    is_tested = ~np.isnan(values) & (weights > 0)
    if not is_tested.any():
        return math.nan
    return float(np.average(values[is_tested], weights=weights[is_tested]))


def compute_macro_f1(pairs: np.ndarray) -> float:
    """Return the mean over classes of 2 hits / (predicted + actual); NaN without classes.

    `pairs` has (2 hits, predicted + actual) for each class, [classes, 2]. A class that no example
    has and that was never predicted is left out.
    """
    present = pairs[pairs[:, 1] > 0]
    if not len(present):
        return math.nan
    return float((present[:, 0] / present[:, 1]).mean())


def compute_share_better(
    values: np.ndarray, others: np.ndarray, higher_is_better: bool = True
) -> float:
    """Return the fraction of the clients tested with both whose score in `values` is better.

    Args:
        values: Scores, [clients].
        others: Scores of the same clients to compare with, [clients].
        higher_is_better: Whether a higher score is better.
    """
    has_both = ~np.isnan(values) & ~np.isnan(others)
    if not has_both.any():
        return math.nan
    is_better = values > others if higher_is_better else values < others
    return float(is_better[has_both].mean())


def compute_rolling_mean(rounds: Sequence[int], values: Sequence[float], width: int) -> np.ndarray:
    """Return, for each evaluation, the mean over the evaluations of the last `width` rounds.

    Args:
        rounds: Rounds after which there was an evaluation, in ascending order.
        values: Result of each evaluation.
        width: Rounds in the window, the evaluation's own among them.
    """
    eval_rounds = np.asarray(rounds)
    eval_values = np.asarray(values, dtype=float)
    means = []
    for last_round in eval_rounds:
        is_in_window = (eval_rounds > last_round - width) & (eval_rounds <= last_round)
        means.append(eval_values[is_in_window].mean())
    return np.array(means)


def find_first_reaching(
    rounds: Sequence[int],
    values: Sequence[float] | np.ndarray,
    target: float,
    higher_is_better: bool = True,
) -> int | None:
    """Return the first round whose evaluation reaches the target, or None; T_0.5 has target 0.5.

    Args:
        rounds: Rounds after which there was an evaluation, in ascending order.
        values: Result of each evaluation.
        target: Value to reach.
        higher_is_better: Whether values reach the target from below.
    """
    eval_values = np.asarray(values, dtype=float)
    has_reached = eval_values >= target if higher_is_better else eval_values <= target
    indices = np.flatnonzero(has_reached)
    if not len(indices):
        return None
    return int(rounds[indices[0]])


def compute_rise_time(
    rounds: Sequence[int], values: Sequence[float] | np.ndarray, share: float = 0.9
) -> int | None:
    """Return the first round that reaches a share of the final value (FSL, section V).

    Args:
        rounds: Rounds after which there was an evaluation, in ascending order.
        values: Result of each evaluation; higher is better.
        share: Fraction of the last value.
    """
    if not len(rounds):
        return None
    return find_first_reaching(rounds, values, share * float(values[-1]))
