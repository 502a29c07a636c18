"""The routine that scores a model."""

from functools import partial

import torch
from torch import Tensor

from fedtailor.core import trees
from fedtailor.core.task import Task
from fedtailor.core.types import Batch, BatchPlan, BatchSpec, Params, Phase, Routine, Tree

SCORE_BATCH_SIZE = 256
"""Examples scored at a time."""


def build_scoring_routine(task: Task, split: str = "test") -> Routine:
    """Return a routine (unused, params) -> (sum, weight) [2] of the loss and of each metric."""
    plan = BatchPlan((BatchSpec(split, SCORE_BATCH_SIZE),), epochs=1)
    step = partial(_accumulate_sums, task)
    return Routine(partial(_init_sums, task), (Phase(step, plan),), _finalize_sums)


def compute_mean_loss(sums: dict[str, Tensor]) -> Tensor:
    """Return the mean loss from the result of a scoring routine; infinity if it is not finite."""
    total, weight = sums["loss"].unbind(-1)
    return torch.nan_to_num(total / weight.clamp(min=1), nan=torch.inf)


def _init_sums(task: Task, shared_input: Tree, params: Params) -> tuple[Params, dict[str, Tensor]]:
    # Sums over many examples lose too many digits in a shorter type.
    dtype = torch.promote_types(task.dtype, torch.float32)
    device = next(iter(params.values())).device
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
