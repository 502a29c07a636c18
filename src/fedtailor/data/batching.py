"""Batches as rows of the columns: which examples each client sees at each step.

Every epoch is a fresh permutation of a client's split, cut into batches; only the last batch of an
epoch is padded. A client's batches depend on the plan, its key and its number of examples alone:
they are the same in any stack of clients and at any position in it. No column is read here:
engines gather the examples on their device.

Engines pass stacks of clients. Below, `client` is a client's index in the stack, and `client_ids`
are the clients' numbers in the data set.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedtailor import prng
from fedtailor.core.types import BatchPlan, BatchSpec
from fedtailor.data.examples import ClientExamples, Split
from fedtailor.data.shuffling import IntArray, Permutations, count_within, permute_epochs
from fedtailor.errors import InputError, require
from fedtailor.prng.streams import BatchStream

_MAX_WINDOW_INDICES = 1 << 21
"""Maximum number of indices computed at a time, for active clients only; it bounds memory."""
_MAX_BLOCK_INDICES = 1 << 16
"""Maximum number of indices in a block of steps, clients that have finished included."""


class BatchIndices(NamedTuple):
    """Batches of one spec of a plan for a stack of clients; blocks have [steps] as first axis."""

    rows: Tensor  # [clients, size] rows of the columns
    mask: Tensor  # [clients, size] bool: True for an example, False for padding
    key: Tensor  # [clients] key of each client's step

    def select(self, client: int | slice) -> "BatchIndices":
        """Return the batches of one client, or of a slice of the stack."""
        return BatchIndices(self.rows[client], self.mask[client], self.key[client])


def count_steps(plan: BatchPlan, clients: ClientExamples, client_ids: np.ndarray) -> np.ndarray:
    """Return the number of steps of each client in a phase, [clients].

    Args:
        plan: Plan of the phase; an epoch is a pass over the split of its last spec.
        clients: Examples of all clients.
        client_ids: Clients whose steps are counted, [clients].
    """
    if plan.steps is not None:
        return np.full(len(client_ids), plan.steps, dtype=np.int64)
    if plan.epochs is None or not plan.specs:
        raise InputError(f"Plan: steps must be given, or epochs and at least one spec, got {plan}.")
    last_spec = plan.specs[-1]
    sizes = get_client_sizes(clients.splits[last_spec.split], client_ids)
    return plan.epochs * _count_epoch_batches(last_spec, sizes)


def iter_batch_indices(
    plan: BatchPlan,
    clients: ClientExamples | None,
    client_ids: np.ndarray,
    keys: Tensor,
    steps: int,
    full_width: bool = False,
) -> Iterator[tuple[BatchIndices, ...]]:
    """Yield the steps 0, ..., steps - 1 of a phase, each as one `BatchIndices` for each spec.

    These are the steps in the blocks of `iter_batch_index_blocks`, which describes the arguments
    (plan, clients, client_ids, keys, steps and full_width).
    """
    blocks = iter_batch_index_blocks(plan, clients, client_ids, keys, steps, full_width)
    for num_steps, block in blocks:
        if not block:
            yield from (() for _ in range(num_steps))
            continue
        # Unbinding a block at once is much faster than indexing it at every step.
        steps_by_spec = []
        for indices in block:
            leaves = (leaf.unbind() for leaf in indices)
            steps_by_spec.append(map(BatchIndices, *leaves))
        yield from zip(*steps_by_spec, strict=True)


def iter_batch_index_blocks(
    plan: BatchPlan,
    clients: ClientExamples | None,
    client_ids: np.ndarray,
    keys: Tensor,
    steps: int,
    full_width: bool = False,
) -> Iterator[tuple[int, tuple[BatchIndices, ...]]]:
    """Yield blocks of consecutive steps: their number, and one `BatchIndices` for each spec.

    In a block, rows and mask are [steps, clients, width] and keys are [steps, clients]. The width
    is the same in all blocks and may differ between specs. A client that has taken all its steps
    gets only padding in later ones. Without examples or specs, one block has all steps and no
    batches.

    Args:
        plan: Plan of the phase.
        clients: Examples of all clients, or None for work that needs no data.
        client_ids: Clients in the stack, [clients].
        keys: Key of each client, [clients]; permutations and the keys of steps derive from it.
        steps: Number of steps to yield, whatever numbers of steps the clients have by the plan.
        full_width: Whether batches are as wide as their spec says even if no client has as many
            examples, and, where a batch is a complete split, as the largest split rounded up:
            shapes then hardly depend on the clients. Otherwise the largest batch sets the width.
    """
    if clients is None or not plan.specs or not steps:
        yield steps, ()
        return
    # Streams are numbered from the last spec on, so that the stream of a method's last spec does
    # not depend on how many other specs come before it.
    stream_ids = range(len(plan.specs))[::-1]
    streams = []
    for stream_id, batch_spec in zip(stream_ids, plan.specs, strict=True):
        split = clients.splits[batch_spec.split]
        stream_keys = prng.fold(keys.numpy(), stream_id)
        streams.append(_BatchStream(batch_spec, split, client_ids, stream_keys, full_width))
    step_counts = np.minimum(count_steps(plan, clients, client_ids), steps)
    width = max(stream.width for stream in streams)
    block_size = compute_max_steps_per_block(len(client_ids), width)
    for window in _iter_windows(step_counts, steps, _MAX_WINDOW_INDICES // width):
        window_batches = [stream.compute_batches(window) for stream in streams]
        for first in range(0, len(window.steps), block_size):
            last = min(first + block_size, len(window.steps))
            block = []
            for stream, batches in zip(streams, window_batches, strict=True):
                block.append(_scatter_batches(batches, window, first, last, stream.padding_batch))
            yield last - first, tuple(block)


def compute_max_steps_per_block(num_clients: int, width: int) -> int:
    """Return the maximum number of steps in a block, for batches of `width` examples."""
    return max(1, _MAX_BLOCK_INDICES // (num_clients * width))


def get_client_sizes(split: Split, client_ids: np.ndarray) -> IntArray:
    """Return the number of examples of some clients, [clients]; no other offsets are read."""
    return np.asarray(split.offsets[client_ids + 1] - split.offsets[client_ids])


def _count_epoch_batches(batch_spec: BatchSpec, sizes: IntArray) -> IntArray:
    """Return the number of batches in each client's epoch (0 without examples), [clients]."""
    if batch_spec.size is None:
        return np.minimum(sizes, 1)
    return -(-sizes // batch_spec.size)


def _compute_batch_width(batch_spec: BatchSpec, sizes: IntArray, full_width: bool) -> int:
    """Return the number of examples in each batch of a stack of clients, padding included."""
    largest_split = int(sizes.max(initial=1))
    if full_width:
        return batch_spec.size or _round_up(largest_split)
    if batch_spec.size is None:
        return largest_split
    return min(batch_spec.size, largest_split)


def _round_up(value: int) -> int:
    """Round up by at most a quarter, to limit the number of distinct shapes."""
    unit = 1 << max(0, value.bit_length() - 3)
    return -(-value // unit) * unit


class _BatchArrays(NamedTuple):
    """`BatchIndices` as arrays, with the batches of all clients and steps along one axis."""

    rows: IntArray  # [batches, width]
    mask: NDArray[np.bool_]  # [batches, width]
    key: IntArray  # [batches]


class _Window(NamedTuple):
    """Consecutive steps, and the batches of the clients that are still active in them.

    The batches are sorted by step. A client that has taken all its steps has none.
    """

    steps: range
    step_counts: IntArray  # [clients] number of steps of each client, inside the window or not
    step: IntArray  # [batches] step that each batch belongs to
    client: IntArray  # [batches] client that each batch belongs to
    offsets: IntArray  # [steps + 1] index of each step's first batch, and the number of batches


def _iter_windows(step_counts: IntArray, steps: int, max_batches: int) -> Iterator[_Window]:
    """Yield windows of at most `max_batches` batches, or of a single step, in order of steps."""
    # With the clients sorted by decreasing number of steps, those active at a step come first.
    order = np.argsort(-step_counts, kind="stable")
    num_finished = np.searchsorted(np.sort(step_counts), np.arange(steps), side="right")
    num_active = len(step_counts) - num_finished
    offsets = np.append(0, np.cumsum(num_active))
    begin = 0
    while begin < steps:
        end = int(np.searchsorted(offsets, offsets[begin] + max_batches, side="right")) - 1
        end = max(end, begin + 1)
        batches_per_step = num_active[begin:end]
        yield _Window(
            steps=range(begin, end),
            step_counts=step_counts,
            step=np.repeat(np.arange(begin, end), batches_per_step),
            client=order[count_within(batches_per_step)],
            offsets=offsets[begin : end + 1] - offsets[begin],
        )
        begin = end


def _scatter_batches(
    batches: _BatchArrays, window: _Window, first: int, last: int, padding_batch: _BatchArrays
) -> BatchIndices:
    """Return steps first, ..., last - 1 of a window for all clients; finished ones get padding.

    Args:
        batches: Batches of the active clients at all steps of the window, [batches, width].
        window: Steps and clients of the batches.
        first: Index of the first step in the window.
        last: Index in the window of the step after the last one.
        padding_batch: Batches of clients that have finished, [clients, width].
    """
    selection = slice(window.offsets[first], window.offsets[last])
    step = window.step[selection] - window.steps[first]
    client = window.client[selection]
    leaves = []
    for values, padding in zip(batches, padding_batch, strict=True):
        dense = np.broadcast_to(padding, (last - first, *padding.shape)).copy()
        dense[step, client] = values[selection]
        leaves.append(torch.from_numpy(dense))
    return BatchIndices(*leaves)


class _BatchStream:
    """Batches of one spec of a plan for a stack of clients.

    Padding repeats an example that some client has, since rows that belong to no client may hold
    anything, even NaN. A client without examples in the split gets only padding.
    """

    def __init__(
        self,
        batch_spec: BatchSpec,
        split: Split,
        client_ids: np.ndarray,
        keys: IntArray,
        full_width: bool,
    ) -> None:
        require(
            len(split.index) > 0,
            f"Plan: split '{batch_spec.split}' must have examples for batches, but no client has "
            "one in it.",
        )
        self._index = split.index
        self._offsets = np.asarray(split.offsets[client_ids])
        self._sizes = get_client_sizes(split, client_ids)
        # Without a size an epoch is a single batch, which begins at 0.
        self._batch_size = batch_spec.size or 0
        self._epoch_batches = np.maximum(_count_epoch_batches(batch_spec, self._sizes), 1)
        self._order_keys = prng.fold(keys, BatchStream.ORDER)
        self._step_keys = prng.fold(keys, BatchStream.STEP)
        self._permutations: Permutations | None = None
        self.width = _compute_batch_width(batch_spec, self._sizes, full_width)
        shape = (len(client_ids), self.width)
        first_rows = self._get_rows(self._offsets)
        self.padding_batch = _BatchArrays(
            rows=np.broadcast_to(first_rows[:, None], shape),
            mask=np.zeros(shape, dtype=np.bool_),
            key=self._step_keys,
        )

    def compute_batches(self, window: _Window) -> _BatchArrays:
        """Return the batches of a window, in its order, [batches, width]."""
        client = window.client
        step = window.step
        epoch, batch = np.divmod(step, self._epoch_batches[client])
        begin = batch * self._batch_size
        position = begin[:, None] + np.arange(self.width)  # in the epoch's permutation
        mask = position < self._sizes[client][:, None]
        position = np.where(mask, position, 0)
        order = self._permute_window(window).lookup(client, epoch, position)
        rows = self._get_rows(self._offsets[client][:, None] + order)
        return _BatchArrays(rows, mask, prng.fold(self._step_keys[client], step))

    def _permute_window(self, window: _Window) -> Permutations:
        """Return the permutations of a window's epochs; windows of the same epochs share them."""
        first_step = window.steps[0]
        last_step = np.minimum(window.steps[-1], window.step_counts - 1)
        first_epoch = first_step // self._epoch_batches
        last_epoch = last_step // self._epoch_batches
        # Clients that have finished before the window need no permutations.
        last_epoch = np.where(last_step < first_step, first_epoch - 1, last_epoch)
        cached = self._permutations
        if cached is None or not cached.has_epochs(first_epoch, last_epoch):
            cached = permute_epochs(self._sizes, first_epoch, last_epoch, self._order_keys)
            self._permutations = cached
        return cached

    def _get_rows(self, positions: IntArray) -> IntArray:
        """Return the rows at some positions of the index.

        Clients without examples need some row as padding, but their positions lie behind the end
        of the index if no client after them has examples.
        """
        rows: IntArray = self._index[np.minimum(positions, len(self._index) - 1)]
        return rows
