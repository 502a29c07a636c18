"""The steps of a phase for a stack of clients, as a program on tensors at fixed addresses.

A program owns buffers for the shared input, for the carry of every client and for the batch indices
of many steps. A step reads its number, gathers its examples and overwrites the carry, so that
nothing but the contents of the buffers changes from step to step: compiled once, or captured once
as a CUDA graph, a step only has to be launched again.
"""

from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from fedtailor.compat.torch_internals import copy_lists, is_tracing
from fedtailor.compiler.cuda_graphs import capture_graph
from fedtailor.compiler.inductor import Backend, BoundStep
from fedtailor.core import trees
from fedtailor.core.types import Batch, Tree
from fedtailor.data.batching import BatchIndices, compute_max_steps_per_block
from fedtailor.ops.transfer import pin_memory

Step = Callable[[Tree, Tree, tuple[Batch, ...]], Tree]
"""Takes the shared input, the carry of a client and a batch of each spec; returns the new carry."""

Decode = Callable[[tuple[Tensor, ...], BatchIndices], Batch]
"""Gathers a batch from the columns of a data set."""

IndexBlocks = Iterator[tuple[int, tuple[BatchIndices, ...]]]
"""Blocks of steps: their number, and one `BatchIndices` for each spec."""


class ProgramStep(NamedTuple):
    """The step of a program: that of each member of a stack, and where its batches come from."""

    function: Step  # of one member
    decode: Decode
    shares_batches: bool = False  # all members see the same batches


class StepBuffers(NamedTuple):
    """Tensors at fixed addresses that the steps of a program read and write."""

    shared_input: Tree
    carry: Tree  # stacked, [members, ...]
    batch_indices: tuple[BatchIndices, ...]  # blocks of [steps, members, ...], one for each spec
    step_idx: Tensor  # [1]: number of the next step in the block
    steps_left: Tensor  # [members]: from the first step of the block on

    def take(self, size: int) -> "StepBuffers":
        """Return the buffers of the first `size` members."""
        batch_indices = []
        for indices in self.batch_indices:
            batch_indices.append(BatchIndices(*(leaf[:, :size] for leaf in indices)))
        return self._replace(
            carry=trees.take_rows(self.carry, slice(0, size)),
            batch_indices=tuple(batch_indices),
            steps_left=self.steps_left[:size],
        )


class StepProgram:
    """Steps of one kind for a stack of clients, or of uploads that see the same batches.

    Args:
        step: Step of the stack.
        columns: Columns of the data set, on the device.
        shared_input: Input that all clients have in common; only its shapes and dtypes count here.
        carry: Stacked carries, [clients, ...]; only their shapes and dtypes count here.
        batch_indices: A block of batch indices, one for each spec; only its shapes count here.
    """

    def __init__(
        self,
        step: ProgramStep,
        columns: tuple[Tensor, ...],
        shared_input: Tree,
        carry: Tree,
        batch_indices: tuple[BatchIndices, ...],
    ) -> None:
        first_leaf = trees.leaves(carry)[0]
        device = first_leaf.device
        self._columns = columns
        self._buffers = StepBuffers(
            shared_input=trees.apply(_empty_like, shared_input),
            carry=trees.apply(_empty_like, carry),
            batch_indices=tuple(_make_index_buffers(indices, device) for indices in batch_indices),
            step_idx=torch.zeros(1, dtype=torch.int64, device=device),
            steps_left=torch.zeros(len(first_leaf), dtype=torch.int64, device=device),
        )
        self._function = partial(_step_in_place, step)
        # Both by number of clients, since they are for fixed shapes.
        self._bound_steps: dict[int, BoundStep] = {}
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}

    def run(
        self,
        shared_input: Tree,
        carry: Tree,
        index_blocks: IndexBlocks,
        counts: np.ndarray,
        backend: Backend,
        out: Tree,
    ) -> None:
        """Run all steps of a stack and write the final carry into `out`.

        Args:
            shared_input: Input that all clients have in common.
            carry: Stacked carries before the first step, [clients, ...].
            index_blocks: Batch indices of all steps, in blocks.
            counts: Number of steps of each client, [clients], in descending order.
            backend: Binds the steps to their buffers, with or without compiling them.
            out: Buffers for the carries after the last step.
        """
        _copy_into(self._buffers.shared_input, shared_input)
        _copy_into(self._buffers.carry, carry)
        begin = 0
        for steps, block in index_blocks:
            self._load_block(steps, block, counts - begin)
            step_ids = np.arange(begin, begin + steps)
            active_counts = (counts[:, None] > step_ids).sum(0)
            for num_active in active_counts.tolist():
                self._run_step(choose_stack_size(num_active, len(counts)), backend)
            begin += steps
        _copy_into(out, self._buffers.carry)

    def _load_block(
        self, steps: int, block: tuple[BatchIndices, ...], steps_left: np.ndarray
    ) -> None:
        """Copy the batch indices of a block into the buffers, and begin with its first step."""
        for index_buffers, indices in zip(self._buffers.batch_indices, block, strict=True):
            for buffer, leaf in zip(index_buffers, indices, strict=True):
                buffer[:steps].copy_(pin_memory(leaf, buffer.device), non_blocking=True)
        pinned = pin_memory(torch.from_numpy(steps_left), self._buffers.steps_left.device)
        self._buffers.steps_left.copy_(pinned, non_blocking=True)
        self._buffers.step_idx.zero_()

    def _run_step(self, size: int, backend: Backend) -> None:
        """Run one step of the first `size` clients.

        On a GPU, the first step of a size runs uncaptured, which warms everything up.
        """
        step_idx = self._buffers.step_idx
        if size not in self._bound_steps:
            args = (self._columns, self._buffers.take(size))
            self._bound_steps[size] = backend(self._function, args)
        elif step_idx.is_cuda:
            if size not in self._graphs:
                self._graphs[size] = capture_graph(self._bound_steps[size], step_idx.device)
            self._graphs[size].replay()
            return
        self._bound_steps[size]()


@lru_cache(4096)
def choose_stack_size(active: int, full_size: int) -> int:
    """Return the smallest stack size that holds `active` of `full_size` clients.

    Sizes are full_size, full_size / 2, full_size / 4, ..., 1, and 3/4 of the first two, rounded up:
    few, so that little is compiled, but large ones, whose idle clients cost most, are closer.
    """
    sizes = []
    size = full_size
    while size > 1:
        sizes.append(size)
        if 2 * size >= full_size:
            sizes.append(-(-3 * size // 4))
        size = -(-size // 2)
    sizes.append(1)
    return min((candidate for candidate in sizes if candidate >= active), default=full_size)


def step_stack(
    step: Step,
    shared_input: Tree,
    carry: Tree,
    batches: tuple[Batch, ...],
    index: Tensor,
    shares_batches: bool = False,
) -> Tree:
    """Return the carry of a stack after one step.

    Args:
        step: Step of one member.
        shared_input: Input that all members have in common.
        carry: Stacked carries, [members, ...].
        batches: One batch for each spec, stacked unless all members share it.
        index: Any tensor of [members]: `vmap` needs one, and carry and batches may be empty.
        shares_batches: Whether all members see the same batches.
    """
    if len(index) == 1 and index.device.type == "cpu":
        # Without vmap, since compilers and libraries know less about batched operations.
        member_carry = trees.take_row(carry, 0)
        member_batches = batches if shares_batches else trees.take_row(batches, 0)
        return trees.apply(_add_row_dim, step(shared_input, member_carry, member_batches))
    batch_dim = None if shares_batches else 0
    stacked_step = vmap(
        partial(_step_without_index, step), (None, 0, batch_dim, 0), randomness="error"
    )
    result: Tree = stacked_step(shared_input, carry, batches, index)
    return result


def _add_row_dim(leaf: Tensor) -> Tensor:
    return leaf[None]


def _step_without_index(
    step: Step, shared_input: Tree, carry: Tree, batches: tuple[Batch, ...], index: Tensor
) -> Tree:
    return step(shared_input, carry, batches)


def _step_in_place(step: ProgramStep, columns: tuple[Tensor, ...], buffers: StepBuffers) -> None:
    """Run one step of a stack and overwrite its carry; finished clients keep theirs.

    The step is the one with the number `step_idx` in the block, which is increased.
    """
    batches = []
    for indices in buffers.batch_indices:
        step_indices = BatchIndices(*(_select_step(leaf, buffers.step_idx) for leaf in indices))
        if step.shares_batches:
            step_indices = step_indices.select(0)
        batches.append(step.decode(columns, step_indices))
    new_carry = step_stack(
        step.function,
        buffers.shared_input,
        buffers.carry,
        tuple(batches),
        buffers.steps_left,
        step.shares_batches,
    )
    is_active = buffers.step_idx < buffers.steps_left
    values = trees.apply(partial(_update_active, is_active), new_carry, buffers.carry)
    _copy_into(buffers.carry, values)
    buffers.step_idx.add_(1)


def _select_step(leaf: Tensor, step_idx: Tensor) -> Tensor:
    """Return the part of a block that belongs to a step.

    In code for CPUs it is behind a view, so that it is gathered once and not again for each reader.
    For some reductions torch 2.11 would gather it with an index that it has not read yet, and that
    does not compile.
    """
    selected = leaf.index_select(0, step_idx)[0]
    if is_tracing() and not selected.is_cuda:
        return selected.as_strided(selected.shape, selected.stride())
    return selected


def _update_active(is_active: Tensor, new: Tensor, old: Tensor) -> Tensor:
    mask = is_active.reshape(-1, *(1 for _ in old.shape[1:]))
    return torch.where(mask, new, old)


def _empty_like(leaf: Tensor) -> Tensor:
    return torch.empty_like(leaf, memory_format=torch.contiguous_format)


def _make_index_buffers(indices: BatchIndices, device: torch.device) -> BatchIndices:
    """Return buffers for blocks of as many steps as there ever are in a block."""
    max_steps = compute_max_steps_per_block(indices.rows.shape[1], indices.rows.shape[2])
    buffers = []
    for leaf in indices:
        shape = (max_steps, *leaf.shape[1:])
        buffers.append(torch.empty(shape, dtype=leaf.dtype, device=device))
    return BatchIndices(*buffers)


def _copy_into(buffers: Tree, tree: Tree) -> None:
    """Copy a tree into buffers of the same shape, in one operation unless it is traced.

    A step computes its tree from the buffers, and Inductor compiles the one operation into code
    that computes later leaves from earlier ones that it has already overwritten.
    """
    buffer_leaves = trees.leaves(buffers)
    values = trees.leaves(trees.apply(_take_second, buffers, tree))
    if is_tracing():
        for buffer, value in zip(buffer_leaves, values, strict=True):
            buffer.copy_(value)
    elif buffer_leaves:
        copy_lists(buffer_leaves, values)


def _take_second(_: Tensor, leaf: Tensor) -> Tensor:
    return leaf
