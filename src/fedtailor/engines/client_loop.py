"""Clients one after another, through autograd and torch's own libraries: for what stacking makes slower on a CPU.

Keys and batches are those of every other way of running a work. Convolutions and recurrent layers of one client fill
a processor by themselves, and torch has no kernels for stacks of them there.
"""

import numpy as np
from torch import Tensor, nn

from fedtailor import prng
from fedtailor.core import autodiff, trees
from fedtailor.core.types import Phase, Routine, Tree
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
    """Return whether steps of one client of such a model are faster than its share of a stack's."""
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
    """Run a work for one client."""
    carry = routine.init(shared_input, client_input)
    for phase_idx, phase in enumerate(routine.phases):
        carry = run_phase(
            phase, shared_input, carry, device_data, client, prng.fold(key, phase_idx)
        )
    return routine.finalize(shared_input, carry)


def run_phase(
    phase: Phase,
    shared_input: Tree,
    carry: Tree,
    device_data: DeviceDataset | None,
    client: int,
    key: Tensor,
) -> Tree:
    """Take all steps of a phase for one client."""
    with autodiff.use_autograd():
        if device_data is None:
            for _ in range(phase.plan.steps or 0):
                carry = phase.step(shared_input, carry, ())
            return carry
        client_ids = np.array([client])
        count = int(count_steps(phase.plan, device_data.examples, client_ids)[0])
        for step_indices in iter_batch_indices(
            phase.plan, device_data.examples, client_ids, key[None], count
        ):
            batches = tuple(device_data.load_batch(indices.select(0)) for indices in step_indices)
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
    """Take all steps of a phase for a stack of clients, with a key each."""
    rows = (trees.take_row(carry, index) for index in range(len(client_ids)))
    return trees.stack(
        [
            run_phase(phase, shared_input, client_carry, device_data, int(client), key)
            for client_carry, client, key in zip(rows, client_ids, keys, strict=True)
        ]
    )
