"""Clients one after another, through autograd and torch's own libraries: for what stacking makes slower on a CPU.

Keys and batches are those of every other way of running a work. Convolutions and recurrent layers of one client fill
a processor by themselves, and torch has no kernels for stacks of them there.
"""

import numpy as np
from torch import Tensor, nn

from fedtailor import calculus, keyed, trees
from fedtailor.data.batching import places, step_counts
from fedtailor.engines.base import Site
from fedtailor.models.text import LSTM
from fedtailor.types import Phase, Tree, Work

_ALONE = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d, LSTM)


def is_better_alone(model: nn.Module) -> bool:
    """Return whether steps of one client of such a model are faster than its share of a stack's."""
    return any(isinstance(module, _ALONE) for module in model.modules())


def is_recurrent(model: nn.Module) -> bool:
    """Return whether a model has recurrent layers."""
    return any(isinstance(module, LSTM) for module in model.modules())


def run(work: Work, given: Tree, own: Tree, site: Site | None, client: int, key: Tensor) -> Tree:
    """Run a work for one client."""
    carry = work.start(given, own)
    for number, phase in enumerate(work.phases):
        carry = run_phase(phase, given, carry, site, client, keyed.fold(key, number))
    return work.finish(given, carry)


def run_phase(phase: Phase, given: Tree, carry: Tree, site: Site | None, client: int, key: Tensor) -> Tree:
    """Take all steps of a phase for one client."""
    with calculus.by_autograd():
        if site is None:
            for _ in range(phase.plan.steps or 0):
                carry = phase.step(given, carry, ())
            return carry
        who = np.array([client])
        count = int(step_counts(phase.plan, site.holders, who)[0])
        for draws in places(phase.plan, site.holders, who, key[None], count):
            batches = tuple(site.batch(place.of(0)) for place in draws)
            carry = phase.step(given, carry, batches)
    return carry


def run_each(phase: Phase, given: Tree, carry: Tree, site: Site | None, who: np.ndarray, keys: Tensor) -> Tree:
    """Take all steps of a phase for a stack of clients, with a key each."""
    rows = (trees.row(carry, at) for at in range(len(who)))
    return trees.stack(
        [run_phase(phase, given, own, site, int(client), key) for own, client, key in zip(rows, who, keys, strict=True)]
    )
