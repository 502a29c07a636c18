"""Steps of one client after another, by autograd: for models that are slower in stacks on a CPU.

Convolutions and recurrent layers of one client keep a CPU busy by themselves, and torch has no CPU
kernels for stacks of them. Keys and batches are the same as in every other way of running a
routine.
"""

from collections.abc import Iterator
from itertools import repeat

import numpy as np
from torch import nn

from fedtailor import prng
from fedtailor.core import autodiff
from fedtailor.core.types import Batch, BatchPlan, Phase, Routine, Tree
from fedtailor.data.batching import count_steps, iter_batch_indices
from fedtailor.engines.base import ClientWork
from fedtailor.models.text import LSTM

_UNSTACKED_LAYERS = (
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
    LSTM,
)


def is_faster_unstacked(model: nn.Module) -> bool:
    """Return whether a step of one client is faster than its share of a stack's step, on a CPU."""
    return any(isinstance(module, _UNSTACKED_LAYERS) for module in model.modules())


def is_recurrent(model: nn.Module) -> bool:
    """Return whether a model has recurrent layers."""
    return any(isinstance(module, LSTM) for module in model.modules())


def run_routine(routine: Routine, shared_input: Tree, client_input: Tree, work: ClientWork) -> Tree:
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
        carry = run_phase(phase, shared_input, carry, phase_work)
    return routine.finalize(shared_input, carry)


def run_phase(phase: Phase, shared_input: Tree, carry: Tree, work: ClientWork) -> Tree:
    """Return the carry of one client after all steps of a phase.

    Args:
        phase: Step and batches.
        shared_input: Input that all clients have in common.
        carry: The client's carry before the first step.
        work: The client, with its key for this phase.
    """
    with autodiff.use_autograd():
        for batches in _iter_batches(phase.plan, work):
            carry = phase.step(shared_input, carry, batches)
    return carry


def _iter_batches(plan: BatchPlan, work: ClientWork) -> Iterator[tuple[Batch, ...]]:
    """Yield the batches of each step of a phase, one for each spec of its plan."""
    if work.device_data is None:
        yield from repeat((), plan.steps or 0)
        return
    examples = work.device_data.examples
    client_ids = np.array([work.client])
    num_steps = int(count_steps(plan, examples, client_ids)[0])
    for step_indices in iter_batch_indices(plan, examples, client_ids, work.key[None], num_steps):
        yield tuple(work.device_data.load_batch(indices.select(0)) for indices in step_indices)
