"""Scoring a model, and whose stored states an unseen client is offered."""

from functools import partial

import numpy as np
import torch
from torch import Tensor

from fedtailor import prng
from fedtailor.core import trees
from fedtailor.core.task import Task
from fedtailor.core.types import Batch, BatchPlan, BatchSpec, Params, Phase, Routine, Tree
from fedtailor.engines.client_state import ClientStateStore
from fedtailor.prng.streams import Stream

SCORE_BATCH_SIZE = 256
"""Examples scored at a time."""


def scoring_routine(task: Task, split: str = "test") -> Routine:
    """The work of scoring a model: (nothing, params) -> sums and weights over the holder's examples of a split."""
    plan = BatchPlan((BatchSpec(split, SCORE_BATCH_SIZE),), epochs=1)
    return Routine(
        partial(_init_sums, task), (Phase(partial(_accumulate_sums, task), plan),), _finalize_sums
    )


def select_offered(
    client_states: ClientStateStore, client_ids: np.ndarray, num_offered: int, seed: int
) -> np.ndarray:
    """Of the people who remember something at most so many, always the same ones."""
    initialized_ids: np.ndarray = client_ids[client_states.initialized.numpy()[client_ids]]
    if len(initialized_ids) <= num_offered:
        return initialized_ids
    some = (
        prng.choice(prng.key(seed, Stream.OFFERED_STATES), len(initialized_ids), num_offered)
        .sort()
        .values
    )
    return np.asarray(initialized_ids[some.numpy()])


def compute_mean_loss(figures: dict[str, Tensor]) -> Tensor:
    """The mean loss that a scoring found; one that is no number is the worst."""
    total, weight = figures["loss"].unbind(-1)
    return torch.nan_to_num(total / weight.clamp(min=1), nan=torch.inf)


def _init_sums(task: Task, shared_input: Tree, params: Params) -> tuple[Params, dict[str, Tensor]]:
    dtype, device = (
        torch.promote_types(task.dtype, torch.float32),
        next(iter(params.values())).device,
    )
    names = ("loss", *(metric.name for metric in task.metrics))
    return params, {name: torch.zeros(2, dtype=dtype, device=device) for name in names}


def _accumulate_sums(
    task: Task, shared_input: Tree, carry: Tree, batches: tuple[Batch, ...]
) -> Tree:
    params, sums = carry
    return params, trees.add(sums, task.compute_metric_sums(params, batches[0]))


def _finalize_sums(shared_input: Tree, carry: Tree) -> dict[str, Tensor]:
    sums: dict[str, Tensor] = carry[1]
    return sums
