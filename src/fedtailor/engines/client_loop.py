"""Steps of one client after another, by autograd: for models that are slower in stacks on a CPU.

Convolutions and recurrent layers of one client keep a CPU busy by themselves, and torch has no CPU
kernels for stacks of them. Keys and batches are the same as in every other way of running a
routine.
"""

from collections.abc import Iterator

import numpy as np
from torch import Tensor, nn

from fedtailor import prng
from fedtailor.core import autodiff, trees
from fedtailor.core.types import Batch, BatchPlan, Phase, Routine, Tree
from fedtailor.data.batching import count_steps, iter_batch_indices
from fedtailor.engines.device_data import DeviceDataset
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


def run_routine(
    routine: Routine,
    shared_input: Tree,
    client_input: Tree,
    device_data: DeviceDataset | None,
    client: int,
    key: Tensor,
) -> Tree:
    """Return the result of a routine for one client.

    Args:
        routine: Its phases run in their order.
        shared_input: Input that all clients have in common, such as the broadcast.
        client_input: The client's own input, such as its state.
        device_data: Examples of all clients; None if steps see no batches.
        client: Index of the client.
        key: Random key of the client for this routine and round.
    """
    carry = routine.init(shared_input, client_input)
    for phase_idx, phase in enumerate(routine.phases):
        phase_key = prng.fold(key, phase_idx)
        carry = run_phase(phase, shared_input, carry, device_data, client, phase_key)
    return routine.finalize(shared_input, carry)


def run_phase(
    phase: Phase,
    shared_input: Tree,
    carry: Tree,
    device_data: DeviceDataset | None,
    client: int,
    key: Tensor,
) -> Tree:
    """Return the carry of one client after all steps of a phase.

    Args:
        phase: Step and batches.
        shared_input: Input that all clients have in common.
        carry: The client's carry before the first step.
        device_data: Examples of all clients; None if steps see no batches.
        client: Index of the client.
        key: Random key of the client for this phase.
    """
    with autodiff.use_autograd():
        for batches in _iter_batches(phase.plan, device_data, client, key):
            carry = phase.step(shared_input, carry, batches)
    return carry


def run_phase_per_client(
    phase: Phase,
    shared_input: Tree,
    carry: Tree,
    device_data: DeviceDataset | None,
    client_ids: np.ndarray,
    keys: Tensor,
) -> Tree:
    """Return the carries of a stack of clients after all steps of a phase, stacked again.

    Args:
        phase: Step and batches.
        shared_input: Input that all clients have in common.
        carry: Stacked carries before the first step, [clients, ...].
        device_data: Examples of all clients; None if steps see no batches.
        client_ids: Indices of the clients, [clients].
        keys: Random key of each client for this phase, [clients].
    """
    carries = []
    for index, (client, key) in enumerate(zip(client_ids.tolist(), keys, strict=True)):
        client_carry = trees.take_row(carry, index)
        carries.append(run_phase(phase, shared_input, client_carry, device_data, client, key))
    return trees.stack(carries)


def _iter_batches(
    plan: BatchPlan, device_data: DeviceDataset | None, client: int, key: Tensor
) -> Iterator[tuple[Batch, ...]]:
    """Yield the batches of each step of one client, one for each spec of the plan."""
    if device_data is None:
        for _ in range(plan.steps or 0):
            yield ()
        return
    examples = device_data.examples
    client_ids = np.array([client])
    num_steps = int(count_steps(plan, examples, client_ids)[0])
    for step_indices in iter_batch_indices(plan, examples, client_ids, key[None], num_steps):
        yield tuple(device_data.load_batch(indices.select(0)) for indices in step_indices)
