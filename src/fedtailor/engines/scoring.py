"""The routine that scores a model, and the choice of the states that unseen clients may try."""

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
    """Return a routine (unused, params) -> (sum, weight) [2] of the loss and of each metric."""
    plan = BatchPlan((BatchSpec(split, SCORE_BATCH_SIZE),), epochs=1)
    step = partial(_accumulate_sums, task)
    return Routine(partial(_init_sums, task), (Phase(step, plan),), _finalize_sums)


def select_offered(
    client_states: ClientStateStore, client_ids: np.ndarray, num_offered: int, seed: int
) -> np.ndarray:
    """Return the clients whose states unseen clients may try, in the order of `client_ids`.

    They are all that have a state, or a random sample that depends on the seed and on their number.

    Args:
        client_states: Which clients have a state.
        client_ids: Clients to choose from.
        num_offered: Maximum number of clients.
        seed: Seed of the run.
    """
    is_initialized = client_states.initialized.numpy()[client_ids]
    initialized_ids: np.ndarray = client_ids[is_initialized]
    if len(initialized_ids) <= num_offered:
        return initialized_ids
    key = prng.key(seed, Stream.OFFERED_STATES)
    positions = prng.choice(key, len(initialized_ids), num_offered).sort().values
    return np.asarray(initialized_ids[positions.numpy()])


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
