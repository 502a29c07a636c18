"""Learning-rate schedules: a factor for every round, as pure functions."""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from fedtailor.errors import require

Schedule = Callable[[Tensor], Tensor]
"""From a round's number, counted from 0, to a factor in [0, 1] for the learning rate."""


def constant() -> Schedule:
    """1 in every round."""
    return _constant_factor


def linear(rounds: int) -> Schedule:
    """From 1 at round 0 in a straight line to 0 at round `rounds`, and 0 from there on."""
    require(rounds >= 1, f"linear: rounds must be at least 1, got {rounds}.")
    return partial(_linear_factor, rounds)


def cosine(rounds: int) -> Schedule:
    """From 1 at round 0 along half a cosine to 0 at round `rounds`, and 0 from there on."""
    require(rounds >= 1, f"cosine: rounds must be at least 1, got {rounds}.")
    return partial(_cosine_factor, rounds)


def _constant_factor(round_idx: Tensor) -> Tensor:
    return torch.ones_like(_to_float(round_idx))


def _linear_factor(rounds: int, round_idx: Tensor) -> Tensor:
    return 1 - _compute_progress(round_idx, rounds)


def _cosine_factor(rounds: int, round_idx: Tensor) -> Tensor:
    return 0.5 * (1 + torch.cos(math.pi * _compute_progress(round_idx, rounds)))


def _compute_progress(round_idx: Tensor, rounds: int) -> Tensor:
    return (_to_float(round_idx) / rounds).clamp(0, 1)


def _to_float(round_idx: Tensor) -> Tensor:
    # In double precision lr * factor is as exact as lr; without dimensions, it promotes nothing that it multiplies.
    return round_idx if round_idx.is_floating_point() else round_idx.to(torch.float64)
