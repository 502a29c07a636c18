"""A phase's steps for a stack of clients as a program on tensors that stay where they are.

A program owns room for what is given, for the carry of every client and for the places of the examples of many steps.
One step reads which step it is, gathers its examples, and writes the carry over itself, so that nothing but the room's
contents changes from step to step: compiled once, or recorded once as a CUDA graph, it is then only told to go on.
"""

import warnings
from collections.abc import Callable, Iterator
from functools import cache, lru_cache, partial

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from fedtailor.compat.torch_internals import copy_lists, is_tracing
from fedtailor.compiler.cuda_graphs import _record_graph
from fedtailor.compiler.inductor import Backend, BoundStep, bind_eager
from fedtailor.core import trees
from fedtailor.core.types import Batch, Tree
from fedtailor.data.batching import BatchIndices, max_steps_per_block
from fedtailor.ops.transfer import pin_memory

Step = Callable[[Tree, Tree, tuple[Batch, ...]], Tree]


Decode = Callable[[tuple[Tensor, ...], BatchIndices], Batch]


IndexBlocks = Iterator[tuple[int, tuple[BatchIndices, ...]]]


class StepProgram:
    """Steps of one kind for a stack of clients, or of uploads that see the same batches (`shared`)."""

    def __init__(
        self,
        step: Step,
        columns: tuple[Tensor, ...],
        decode: Decode | None,
        shared_input: Tree,
        carry: Tree,
        batch_indices: tuple[BatchIndices, ...],
        shared: bool,
    ) -> None:
        count, device = len(trees.leaves(carry)[0]), trees.leaves(carry)[0].device
        self._shared_input, self._carry = (
            trees.apply(_empty_like, tree) for tree in (shared_input, carry)
        )
        self._batch_indices = tuple(
            BatchIndices(*(_make_index_buffer(leaf, each.rows, device) for leaf in each))
            for each in batch_indices
        )
        self._step_idx, self._steps_left = (
            torch.zeros(size, dtype=torch.int64, device=device) for size in (1, count)
        )
        self._columns = columns
        self._function = partial(_step_in_place, step, shared, decode)
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
        """Leaves the carry after all steps somewhere: each client takes its own number of them, the first the most."""
        _copy_into(self._shared_input, shared_input)
        _copy_into(self._carry, carry)
        begin = 0
        for steps, block in index_blocks:
            for buffers, indices in zip(self._batch_indices, block, strict=True):
                for buffer, leaf in zip(buffers, indices, strict=True):
                    buffer[:steps].copy_(pin_memory(leaf, buffer.device), non_blocking=True)
            self._steps_left.copy_(
                pin_memory(torch.from_numpy(counts - begin), self._steps_left.device),
                non_blocking=True,
            )
            self._step_idx.zero_()
            for active in (counts[:, None] > np.arange(begin, begin + steps)).sum(0).tolist():
                self._run_step(choose_stack_size(active, len(counts)), backend)
            begin += steps
        _copy_into(out, self._carry)

    def _run_step(self, size: int, backend: Backend) -> None:
        """One step of the first so many clients: done the first time, which warms everything up, and then recorded."""
        if size not in self._bound_steps:
            self._bound_steps[size] = _bind_or_fall_back(
                backend, self._function, (self._columns, *self._slice_buffers(size))
            )
        elif self._step_idx.is_cuda:
            if size not in self._graphs:
                self._graphs[size] = _record_graph(self._bound_steps[size], self._step_idx.device)
            self._graphs[size].replay()
            return
        self._bound_steps[size]()

    def _slice_buffers(self, size: int) -> tuple[Tree, ...]:
        """The room of the first so many clients."""
        batch_indices = tuple(
            BatchIndices(*(leaf[:, :size] for leaf in indices)) for indices in self._batch_indices
        )
        return (
            self._shared_input,
            trees.take_rows(self._carry, slice(0, size)),
            batch_indices,
            self._step_idx,
            self._steps_left[:size],
        )


def _bind_or_fall_back(
    backend: Backend, function: Callable[..., None], args: tuple[Tree, ...]
) -> BoundStep:
    """A step that only has to be called; as it is, if the compiler cannot make anything of it."""
    try:
        return backend(function, args)
    except Exception as problem:
        _warn_once(next(iter(str(problem).splitlines()), type(problem).__name__))
        return bind_eager(function, args)


@cache
def _warn_once(reason: str) -> None:
    message = f"torch {torch.__version__} cannot compile a step, which runs uncompiled, with the same results: {reason}"
    warnings.warn(message, RuntimeWarning, stacklevel=2)


@lru_cache(4096)
def choose_stack_size(active: int, full_size: int) -> int:
    """The smallest of some sizes that holds all: few, so that little is compiled, but large ones, which cost, closer.

    They are most, most/2, most/4, ... and 3/4 of the first two of these.
    """
    sizes, size = [], full_size
    while size > 1:
        sizes += [size, -(-3 * size // 4)] if 2 * size >= full_size else [size]
        size = -(-size // 2)
    return min((each for each in (*sizes, 1) if each >= active), default=full_size)


def step_stack(
    step: Step,
    shared: bool,
    shared_input: Tree,
    carry: Tree,
    batches: tuple[Batch, ...],
    index: Tensor,
) -> Tree:
    """One step of a stack. `index` is any tensor of its length: `vmap` needs one, carry and batches may have none.

    On a CPU the step of a stack of one is done as it is: compilers and libraries know less about stacks of operations.
    """
    if len(index) == 1 and index.device.type == "cpu":
        one = step(
            shared_input,
            trees.take_row(carry, 0),
            batches if shared else trees.take_row(batches, 0),
        )
        return trees.apply(_add_row_dim, one)
    in_dims = (None, 0, None if shared else 0, 0)
    result: Tree = vmap(partial(_step_without_index, step), in_dims, randomness="error")(
        shared_input, carry, batches, index
    )
    return result


def _add_row_dim(leaf: Tensor) -> Tensor:
    return leaf[None]


def _step_without_index(
    step: Step, shared_input: Tree, carry: Tree, batches: tuple[Batch, ...], index: Tensor
) -> Tree:
    return step(shared_input, carry, batches)


def _step_in_place(
    step: Step,
    shared: bool,
    decode: Decode | None,
    columns: tuple[Tensor, ...],
    shared_input: Tree,
    carry: Tree,
    batch_indices: tuple[BatchIndices, ...],
    step_idx: Tensor,
    steps_left: Tensor,
) -> None:
    """One step of everybody, written over the carry; whoever has no steps left stays as it is."""
    now = (
        BatchIndices(*(_select_step(leaf, step_idx) for leaf in indices))
        for indices in batch_indices
    )
    batches = (
        tuple(decode(columns, indices.select(0) if shared else indices) for indices in now)
        if decode
        else ()
    )
    new, is_active = (
        step_stack(step, shared, shared_input, carry, batches, steps_left),
        step_idx < steps_left,
    )
    values = trees.apply(partial(_update_active, is_active), new, carry)
    _copy_into(carry, values)
    step_idx.add_(1)


def _select_step(leaf: Tensor, step_idx: Tensor) -> Tensor:
    """What belongs to a step; in code for CPUs behind a view, so that it is looked up once and not wherever it is read.

    For some reductions torch 2.11 would look it up in an index that it has not read yet, which does not compile.
    """
    found = leaf.index_select(0, step_idx)[0]
    return (
        found.as_strided(found.shape, found.stride())
        if is_tracing() and not found.is_cuda
        else found
    )


def _update_active(is_active: Tensor, new: Tensor, old: Tensor) -> Tensor:
    return torch.where(is_active.reshape(-1, *(1 for _ in old.shape[1:])), new, old)


def _empty_like(leaf: Tensor) -> Tensor:
    """Room for a leaf's like."""
    return torch.empty_like(leaf, memory_format=torch.contiguous_format)


def _make_index_buffer(leaf: Tensor, rows: Tensor, device: torch.device) -> Tensor:
    """Room for as many steps as are ever laid out at a time."""
    steps = max_steps_per_block(rows.shape[1], rows.shape[2])
    return torch.empty((steps, *leaf.shape[1:]), dtype=leaf.dtype, device=device)


def _copy_into(buffers: Tree, tree: Tree) -> None:
    """Fills room with a tree of its shape: in one operation, but leaf by leaf in code that is to be compiled.

    A step's tree is made of what is in the room, and torch.compile, of one operation, makes code that computes later
    leaves from what it has already written over earlier ones.
    """
    buffer_leaves, values = (
        trees.leaves(buffers),
        trees.leaves(trees.apply(_take_second, buffers, tree)),
    )
    if is_tracing():
        for each, value in zip(buffer_leaves, values, strict=True):
            each.copy_(value)
    elif buffer_leaves:
        copy_lists(buffer_leaves, values)


def _take_second(_: Tensor, leaf: Tensor) -> Tensor:
    return leaf
