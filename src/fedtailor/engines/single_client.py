"""A routine of one client, step by step: the reference for every other way of running it.

The fast engine shares random keys (`prng`) and the order of batches (`data/batching.py`) with it,
which make their numbers comparable, but no code that takes a step or loads a batch.
"""

from collections.abc import Iterator
from itertools import repeat

import numpy as np
import torch

from fedtailor import prng
from fedtailor.core import trees
from fedtailor.core.types import Batch, BatchPlan, Routine, Tree
from fedtailor.data.batching import BatchIndices, count_steps, iter_batch_indices
from fedtailor.engines.base import ClientWork
from fedtailor.engines.device_data import DeviceDataset


def run_single_client(
    routine: Routine, shared_input: Tree, client_input: Tree, work: ClientWork
) -> Tree:
    """Return the result of a routine for one client.

    Args:
        routine: Its phases run in their order.
        shared_input: Input that all clients have in common, such as the broadcast.
        client_input: The client's own input, such as its state.
        work: The client, with its key for this routine and round.
    """
    carry = routine.init(shared_input, client_input)
    for phase_idx, phase in enumerate(routine.phases):
        phase_work = work._replace(key=prng.fold(work.key, phase_idx))
        for batches in iter_batches(phase.plan, phase_work):
            carry = phase.step(shared_input, carry, batches)
    return routine.finalize(shared_input, carry)


def iter_batches(plan: BatchPlan, work: ClientWork) -> Iterator[tuple[Batch, ...]]:
    """Yield the batches of each step of a phase, one for each spec of its plan.

    The key of `work` is that of the phase.
    """
    if work.device_data is None:
        yield from repeat((), plan.steps or 0)
        return
    examples = work.device_data.examples
    client_ids = np.array([work.client])
    num_steps = int(count_steps(plan, examples, client_ids)[0])
    for step_indices in iter_batch_indices(plan, examples, client_ids, work.key[None], num_steps):
        yield tuple(load_batch(work.device_data, indices.select(0)) for indices in step_indices)


def load_batch(device_data: DeviceDataset, indices: BatchIndices) -> Batch:
    """Gather the examples of one batch and convert them to what models and losses take."""
    rows = indices.rows.numpy()
    x = torch.from_numpy(device_data.examples.x[rows])
    y = torch.from_numpy(device_data.examples.y[rows])
    dtype = device_data.dtype
    example_spec = device_data.example_spec
    inputs = x.long() if example_spec.tokens else x.to(dtype) * example_spec.scale
    targets = y.to(dtype) if y.is_floating_point() else y.long()
    batch = Batch(inputs, targets, indices.mask.to(dtype), indices.key)
    return trees.to(batch, device_data.device)
