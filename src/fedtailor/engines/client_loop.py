"""Steps of one client after another, by autograd: for models that are slower in stacks on a CPU.

Convolutions and recurrent layers of one client keep a CPU busy by themselves, and torch has no CPU
kernels for stacks of them. Keys and batches are the same as in every other way of running a
routine. A step that has run often is traced, and its graph called from then on: that costs the CPU
less than autograd does, and gives the same bits.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from math import prod

import numpy as np
import torch
from torch import Tensor, nn

from fedtailor import prng
from fedtailor.compiler.trace import trace_step
from fedtailor.core import autodiff, trees
from fedtailor.core.types import Batch, BatchPlan, Phase, Routine, Tree
from fedtailor.data.batching import BatchIndices, count_steps, iter_batch_index_blocks
from fedtailor.engines.base import ClientWork
from fedtailor.engines.device_data import DeviceDataset
from fedtailor.models.text import LSTM

TRACE_AFTER_STEPS = 1000
"""Steps of a kind after which it is traced: tracing takes as long as some thousand steps gain."""

_LOADED_BYTES = 1 << 20
"""Bytes of inputs that are decoded at a time, which stay in the cache until their steps."""

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


def run_phase(
    phase: Phase,
    shared_input: Tree,
    carry: Tree,
    work: ClientWork,
    graphs: "StepGraphs | None" = None,
) -> Tree:
    """Return the carry of one client after all steps of a phase.

    Args:
        phase: Step and batches.
        shared_input: Input that all clients have in common.
        carry: The client's carry before the first step.
        work: The client, with its key for this phase.
        graphs: The graphs of the step; None runs every step by autograd.
    """
    all_batches = _iter_batches(phase.plan, work)
    if graphs is not None:
        return graphs.run_steps(shared_input, carry, all_batches)
    return _run_eagerly(phase, shared_input, carry, all_batches)


class StepGraphs:
    """The graphs of a phase's step, one for each size of batches that has been met often.

    Args:
        phase: The phase.
    """

    def __init__(self, phase: Phase) -> None:
        self._phase = phase
        self._num_steps: Counter[Hashable] = Counter()
        # None: the step cannot be traced for this kind of batches, or not to the same bits.
        self._graphs: dict[Hashable, Callable[..., list[Tensor]] | None] = {}

    def run_steps(
        self, shared_input: Tree, carry: Tree, all_batches: Iterator[tuple[Batch, ...]]
    ) -> Tree:
        """Return the carry of one client after steps on these batches.

        Args:
            shared_input: Input that all clients have in common.
            carry: The client's carry before the first step.
            all_batches: The batches of each step.
        """
        signature = trees.signature((shared_input, carry))
        for shapes, batches_of_kind in itertools.groupby(all_batches, _get_shapes):
            carry = self._run_kind((signature, shapes), shared_input, carry, batches_of_kind)
        return carry

    def _run_kind(
        self,
        kind: Hashable,
        shared_input: Tree,
        carry: Tree,
        all_batches: Iterator[tuple[Batch, ...]],
    ) -> Tree:
        """Return the carry after steps on batches of one kind."""
        first_batches = next(all_batches)
        graph = self._find_graph(kind, shared_input, carry, first_batches)
        counted = self._count(kind, itertools.chain([first_batches], all_batches))
        if graph is None:
            return _run_eagerly(self._phase, shared_input, carry, counted)
        return _run_graph(graph, shared_input, carry, counted)

    def _count(
        self, kind: Hashable, all_batches: Iterator[tuple[Batch, ...]]
    ) -> Iterator[tuple[Batch, ...]]:
        """Yield the batches of steps of a kind, and count them."""
        for batches in all_batches:
            self._num_steps[kind] += 1
            yield batches

    def _find_graph(
        self, kind: Hashable, shared_input: Tree, carry: Tree, batches: tuple[Batch, ...]
    ) -> Callable[..., list[Tensor]] | None:
        """Return the graph of a kind of steps, traced when the kind has run often enough."""
        if self._num_steps[kind] < TRACE_AFTER_STEPS:
            return None
        if kind not in self._graphs:
            graph = trace_step(self._phase.step, shared_input, carry, batches)
            if graph is not None:
                expected = _run_eagerly(self._phase, shared_input, carry, iter([batches]))
                result = _run_graph(graph, shared_input, carry, iter([batches]))
                if not _has_same_bits(expected, result):
                    graph = None
            self._graphs[kind] = graph
        return self._graphs[kind]


def _run_eagerly(
    phase: Phase, shared_input: Tree, carry: Tree, all_batches: Iterator[tuple[Batch, ...]]
) -> Tree:
    with autodiff.use_autograd():
        for batches in all_batches:
            carry = phase.step(shared_input, carry, batches)
    return carry


def _run_graph(
    graph: Callable[..., list[Tensor]],
    shared_input: Tree,
    carry: Tree,
    all_batches: Iterator[tuple[Batch, ...]],
) -> Tree:
    """Return the carry after the steps of a graph, which takes and returns leaves of trees."""
    shared_leaves = trees.leaves(shared_input)
    carry_leaves = trees.leaves(carry)
    with torch.no_grad():
        for batches in all_batches:
            batch_leaves = itertools.chain.from_iterable(batches)
            carry_leaves = graph(*shared_leaves, *carry_leaves, *batch_leaves)
    return trees.unflatten(carry, carry_leaves)


def _has_same_bits(tree: Tree, other: Tree) -> bool:
    return all(map(torch.equal, trees.leaves(tree), trees.leaves(other)))


def _get_shapes(batches: tuple[Batch, ...]) -> tuple[torch.Size, ...]:
    return tuple(batch.x.shape for batch in batches)


def _iter_batches(plan: BatchPlan, work: ClientWork) -> Iterator[tuple[Batch, ...]]:
    """Yield the batches of each step of a phase, one for each spec of its plan."""
    if work.device_data is None or not plan.specs:
        yield from itertools.repeat((), _count_client_steps(plan, work))
        return
    client_ids = np.array([work.client])
    blocks = iter_batch_index_blocks(
        plan,
        work.device_data.examples,
        client_ids,
        work.key[None],
        _count_client_steps(plan, work),
    )
    for num_steps, block in blocks:
        batches_by_spec = [_iter_loaded(work.device_data, num_steps, spec) for spec in block]
        yield from zip(*batches_by_spec, strict=True)


def _count_client_steps(plan: BatchPlan, work: ClientWork) -> int:
    if work.device_data is None:
        return plan.steps or 0
    return int(count_steps(plan, work.device_data.examples, np.array([work.client]))[0])


def _iter_loaded(
    device_data: DeviceDataset, num_steps: int, indices: BatchIndices
) -> Iterator[Batch]:
    """Yield the batches of the only client of a block, step by step; several are loaded at once.

    Args:
        device_data: Examples of all clients.
        num_steps: Steps in the block.
        indices: The batches of one spec, [steps, 1, size].
    """
    numbers_per_batch = indices.rows.shape[2] * prod(device_data.examples.x.shape[1:])
    batch_bytes = max(1, numbers_per_batch * device_data.dtype.itemsize)
    steps_per_load = max(1, _LOADED_BYTES // batch_bytes)
    for begin in range(0, num_steps, steps_per_load):
        steps = slice(begin, min(begin + steps_per_load, num_steps))
        client_indices = BatchIndices(*(leaf[steps, 0] for leaf in indices))
        batches = device_data.load_batch(client_indices)
        yield from map(Batch, *(leaf.unbind() for leaf in batches))
