"""Batches as rows of the columns: which examples each client sees at each step.

Every epoch is a fresh permutation of a client's split, cut into batches; only the last batch of an
epoch is padded. What a client sees depends on the plan, its key and its size alone, so it is the
same alone, in any stack of clients and in any order. No column is read here: engines gather the
examples on their device.

Engines pass stacks of clients. A `client` below is the index of a client in the stack, whereas
`client_ids` are its numbers in the data set.
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

_KEY_NAMES = np.array([[0], [1]])
"""Names of the two keys below that of a stream: for the order of its examples, and for its steps."""
_MAX_WINDOW_INDICES = 1 << 21
"""Number of indices computed at a time, for active clients alone; it bounds memory."""
_MAX_BLOCK_INDICES = 1 << 16
"""Number of indices in a block of steps, with those of clients that have finished."""


class BatchIndices(NamedTuple):
    """Batches of one spec of a plan for a stack of clients; in a block, [steps] comes first."""

    rows: Tensor  # [clients, size] rows of the columns
    mask: Tensor  # [clients, size] bool: True for an example, False for padding
    key: Tensor  # [clients]

    def select(self, client_ids: int | slice) -> "BatchIndices":
        """Return the batches of one client or of a slice of the stack."""
        return BatchIndices(self.rows[client_ids], self.mask[client_ids], self.key[client_ids])


def count_steps(plan: BatchPlan, clients: ClientExamples, client_ids: np.ndarray) -> np.ndarray:
    """Return the number of steps that a phase has for each client, [clients].

    Args:
        plan: Plan of the phase; an epoch is a pass over the split of its last spec.
        clients: Examples of all clients.
        client_ids: Clients to count the steps of, [clients].
    """
    if plan.steps is not None:
        return np.full(len(client_ids), plan.steps, dtype=np.int64)
    if plan.epochs is None or not plan.specs:
        raise InputError(
            f"Plan: a number of steps, or of epochs over a split, is needed, got {plan}."
        )
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
    """Yield steps 0, ..., steps - 1 of a phase: for each of them one `BatchIndices` for each spec.

    They are the steps in the blocks of `iter_batch_index_blocks`, which takes the same arguments:
    plan, clients, client_ids, keys, steps and full_width.
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
    sees padding alone in later ones. Without examples or specs, one block has all steps and no
    batches.

    Args:
        plan: Plan of the phase.
        clients: Examples of all clients, or None for work that needs no data.
        client_ids: Clients in the stack, [clients].
        keys: Key of each client, [clients]; all that is random follows from it.
        steps: Number of steps, which may differ from what the plan has for some clients.
        full_width: Make batches as wide as the plan says even if no client has as many examples,
            and round the size of the largest split up where a batch is a complete split: shapes
            then hardly depend on the clients. Otherwise the largest batch sets the width.
    """
    if clients is None or not plan.specs or not steps:
        yield steps, ()
        return
    # Streams are numbered from the last spec on: a method's last stream is then the same whatever
    # other specs it has.
    stream_ids = range(len(plan.specs))[::-1]
    streams = []
    for stream_id, batch_spec in zip(stream_ids, plan.specs, strict=True):
        split = clients.splits[batch_spec.split]
        stream_keys = prng.fold(keys.numpy(), stream_id)
        streams.append(_BatchStream(batch_spec, split, client_ids, stream_keys, full_width))
    step_counts = np.minimum(count_steps(plan, clients, client_ids), steps)
    width = max(stream.width for stream in streams)
    block_size = max_steps_per_block(len(client_ids), width)
    for window in _iter_windows(step_counts, steps, _MAX_WINDOW_INDICES // width):
        window_batches = [stream.compute_batches(window) for stream in streams]
        for first in range(0, len(window.steps), block_size):
            last = min(first + block_size, len(window.steps))
            block = []
            for stream, batches in zip(streams, window_batches, strict=True):
                block.append(_scatter_batches(batches, window, first, last, stream.padding_batch))
            yield last - first, tuple(block)


def max_steps_per_block(num_clients: int, width: int) -> int:
    """Return the maximum number of steps in a block, for batches of `width` examples."""
    return max(1, _MAX_BLOCK_INDICES // (num_clients * width))


def get_client_sizes(split: Split, client_ids: np.ndarray) -> IntArray:
    """Return the number of examples of some clients, [clients], reading their offsets alone."""
    return np.asarray(split.offsets[client_ids + 1] - split.offsets[client_ids])


def _count_epoch_batches(batch_spec: BatchSpec, sizes: IntArray) -> IntArray:
    """Return the number of batches in an epoch of each client, 0 without examples, [clients]."""
    if batch_spec.size is None:
        return np.minimum(sizes, 1)
    return -(-sizes // batch_spec.size)


def _compute_batch_width(batch_spec: BatchSpec, sizes: IntArray, full_width: bool) -> int:
    """Return the number of examples, padding included, in every batch of a stack of clients."""
    largest = int(sizes.max(initial=1))
    if batch_spec.size is None:
        return _round_up(largest) if full_width else largest
    return batch_spec.size if full_width else min(batch_spec.size, largest)


def _round_up(value: int) -> int:
    """Round up by at most a quarter, to limit the number of distinct shapes."""
    unit = 1 << max(0, value.bit_length() - 3)
    return -(-value // unit) * unit


class _BatchArrays(NamedTuple):
    """`BatchIndices` as arrays; batches of different clients and steps are one after another."""

    rows: IntArray  # [batches, width]
    mask: NDArray[np.bool_]  # [batches, width]
    key: IntArray  # [batches]


class _Window(NamedTuple):
    """Consecutive steps, and the batches of the clients that are still active in them.

    The batches are sorted by step. A client that has taken all its steps has none.
    """

    steps: range
    step_counts: IntArray  # [clients] steps of each client, those outside of the window too
    step: IntArray  # [batches] step that each batch belongs to
    client: IntArray  # [batches] client that each batch belongs to
    offsets: IntArray  # [steps + 1] index of each step's first batch, and the number of batches


def _iter_windows(step_counts: IntArray, steps: int, max_batches: int) -> Iterator[_Window]:
    """Cut all steps into windows of at most `max_batches` batches, or of a single step."""
    # With the longest-working clients first, the active ones of each step are the first ones.
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
    """Return steps first, ..., last - 1 of a window for all clients, with padding for finished ones.

    Args:
        batches: Batches of the active clients at all steps of the window, [batches, width].
        window: The window that the batches are of.
        first: First step, counted within the window.
        last: First step that is left out, counted within the window.
        padding_batch: What finished clients see, [clients, width].
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
    """The batches that one spec of a plan gives a stack of clients.

    Padding repeats an example that some client has, since rows of no client may not even be
    finite. A client without examples in the split sees padding alone.
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
            f"Plan: batches of split '{batch_spec.split}' are wanted, but no client has an example "
            "in it.",
        )
        self._index = split.index
        self._offsets = np.asarray(split.offsets[client_ids])
        self._sizes = get_client_sizes(split, client_ids)
        self._batch_size = batch_spec.size or 0  # 0: an epoch is one batch, which begins at 0
        self._epoch_batches = np.maximum(_count_epoch_batches(batch_spec, self._sizes), 1)
        self._order_keys, self._step_keys = prng.fold(keys, _KEY_NAMES)
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
        """Return the batches of a window, in its order."""
        client = window.client
        step = window.step
        epoch, batch = np.divmod(step, self._epoch_batches[client])
        begin = batch * self._batch_size
        position = begin[:, None] + np.arange(self.width)  # within the epoch
        mask = position < self._sizes[client][:, None]
        position = np.where(mask, position, 0)
        order = self._permute_window(window).lookup(client, epoch, position)
        rows = self._get_rows(self._offsets[client][:, None] + order)
        return _BatchArrays(rows, mask, prng.fold(self._step_keys[client], step))

    def _permute_window(self, window: _Window) -> Permutations:
        """Return permutations for the epochs in a window; windows of the same epochs share them."""
        first_step = window.steps[0]
        last_step = np.minimum(window.steps[-1], window.step_counts - 1)
        first_epoch = first_step // self._epoch_batches
        last_epoch = last_step // self._epoch_batches
        # Nothing is shuffled for clients that have finished before the window.
        last_epoch = np.where(last_step < first_step, first_epoch - 1, last_epoch)
        cached = self._permutations
        if cached is None or not cached.has_epochs(first_epoch, last_epoch):
            cached = permute_epochs(self._sizes, first_epoch, last_epoch, self._order_keys)
            self._permutations = cached
        return cached

    def _get_rows(self, positions: IntArray) -> IntArray:
        """Return rows of the columns; a last client without examples points behind the index."""
        rows: IntArray = self._index[np.minimum(positions, len(self._index) - 1)]
        return rows
