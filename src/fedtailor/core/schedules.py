"""Learning-rate schedules as pure functions: a factor for every round."""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from fedtailor.errors import require

Schedule = Callable[[Tensor], Tensor]
"""Map a round's index, counted from 0, to a factor in [0, 1] for the learning rate."""


def constant() -> Schedule:
    """Return a schedule that is 1 in every round."""
    return _constant_factor


def linear(rounds: int) -> Schedule:
    """Return a schedule that falls linearly from 1 at round 0 to 0 at round `rounds`."""
    require(rounds >= 1, f"linear: rounds must be at least 1, got {rounds}.")
    return partial(_linear_factor, rounds)


def cosine(rounds: int) -> Schedule:
    """Return a schedule that falls along half a cosine from 1 at round 0 to 0 at round `rounds`."""
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
    # Double precision keeps lr * factor as exact as lr. A tensor without dimensions does not
    # promote the dtype of what it multiplies.
    if round_idx.is_floating_point():
        return round_idx
    return round_idx.to(torch.float64)
