"""Figures over clients: mean, standard deviation, worst tenth."""

import math
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


def per_client(sums: Tensor) -> np.ndarray:
    """Ratios of (sum, weight) pairs; NaN where the weight is 0. A model that has diverged has an infinite loss."""
    total, weight = sums.double().numpy().T
    ratios: np.ndarray = np.divide(total, weight, out=np.full(len(total), math.nan), where=weight > 0)
    return ratios


def spread(values: np.ndarray, higher_is_better: bool = True) -> Spread:
    """Mean, standard deviation and worst tenth (at least one client) over the clients that could be tested."""
    tested = np.sort(values[~np.isnan(values)])
    if not len(tested):
        return Spread(math.nan, math.nan, math.nan)
    worst = tested if higher_is_better else tested[::-1]
    return Spread(float(tested.mean()), float(tested.std()), float(worst[: math.ceil(len(tested) / 10)].mean()))
