"""Which examples each step sees: a pure function of the plan, the holder's sizes and its key.

Every epoch is a fresh permutation of the holder's split, cut into batches; only the last batch of an epoch is padded.
What a holder sees depends on nothing but its own key and size, so it is the same alone, in any stack and in any order.
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
from fedtailor.errors import require

_KEY_STREAMS = np.array(
    [[0], [1]]
)  # what a draw's key is folded with: for the order of examples, and for the step's own
_MAX_WINDOW_INDICES = 1 << 21  # how many places in batches are laid out at a time
_MAX_BLOCK_INDICES = (
    1 << 16
)  # how many of them, with those of whoever has finished, are handed out at a time


class BatchIndices(NamedTuple):
    """One draw of one step, for a stack of holders: rows of the columns, which of them are real, and keys."""

    rows: Tensor  # [holders, size]
    mask: Tensor  # [holders, size] bool
    key: Tensor  # [holders]

    def select(self, client_ids: int | slice) -> "BatchIndices":
        """The same for one or some of the holders."""
        return BatchIndices(self.rows[client_ids], self.mask[client_ids], self.key[client_ids])


def count_steps(plan: BatchPlan, clients: ClientExamples, client_ids: np.ndarray) -> np.ndarray:
    """How many steps the plan is for each of the holders `who`."""
    if plan.steps is not None:
        return np.full(len(client_ids), plan.steps, dtype=np.int64)
    require(
        plan.epochs is not None and bool(plan.specs),
        f"Plan: epochs of something or steps are needed, got {plan}.",
    )
    return (plan.epochs or 0) * _count_epoch_batches(
        plan.specs[-1], get_client_sizes(clients.splits[plan.specs[-1].split], client_ids)
    )


def iter_batch_indices(
    plan: BatchPlan,
    clients: ClientExamples | None,
    client_ids: np.ndarray,
    keys: Tensor,
    steps: int,
    full_width: bool = False,
) -> Iterator[tuple[BatchIndices, ...]]:
    """What the holders `who`, with a key each, see at the steps 0, ..., steps - 1."""
    for count, several in iter_batch_index_blocks(
        plan, clients, client_ids, keys, steps, full_width
    ):
        if not several:
            yield from (() for _ in range(count))
        else:
            yield from zip(
                *(map(BatchIndices, *(whole.unbind() for whole in each)) for each in several),
                strict=True,
            )


def iter_batch_index_blocks(
    plan: BatchPlan,
    clients: ClientExamples | None,
    client_ids: np.ndarray,
    keys: Tensor,
    steps: int,
    full_width: bool = False,
) -> Iterator[tuple[int, tuple[BatchIndices, ...]]]:
    """The same for several consecutive steps at a time: how many, and places with one more dimension in front.

    A holder who has taken all steps that the plan is for it sees padding alone from then on, which costs next to
    nothing. Batches are as wide as the largest that anybody has, or as the plan says with `full_width`, so that shapes
    do not depend on who is there. Streams are numbered from the last draw on, so that a method's last draw is the same
    stream whatever other draws it makes beside it.
    """
    if clients is None or not plan.specs or not steps:
        yield steps, ()
        return
    streams = [
        _BatchStream(
            draw,
            clients.splits[draw.split],
            client_ids,
            prng.fold(keys.numpy(), stream_idx),
            full_width,
        )
        for stream_idx, draw in zip(range(len(plan.specs))[::-1], plan.specs, strict=True)
    ]
    counts, width = (
        np.minimum(count_steps(plan, clients, client_ids), steps),
        max(stream.width for stream in streams),
    )
    for window in _iter_windows(counts, steps, _MAX_WINDOW_INDICES // width):
        window_batches = [stream.compute_batches(window) for stream in streams]
        many = max_steps_per_block(len(client_ids), width)
        for first in range(0, len(window.steps), many):
            last = min(first + many, len(window.steps))
            spread = (
                _scatter_batches(window, first, last, *both)
                for both in zip(window_batches, streams, strict=True)
            )
            yield last - first, tuple(spread)


def max_steps_per_block(num_clients: int, width: int) -> int:
    """How many steps of so many holders, in batches of such a width, a stretch has at most."""
    return max(1, _MAX_BLOCK_INDICES // (num_clients * width))


def get_client_sizes(split: Split, client_ids: np.ndarray) -> IntArray:
    """How many examples some holders have, without a look at all the others."""
    return np.asarray(split.offsets[client_ids + 1] - split.offsets[client_ids])


def _count_epoch_batches(batch_spec: BatchSpec, sizes: IntArray) -> IntArray:
    return -(-sizes // batch_spec.size) if batch_spec.size else np.minimum(sizes, 1)


def _compute_batch_width(batch_spec: BatchSpec, sizes: IntArray, full: bool) -> int:
    largest = int(sizes.max(initial=1))
    if batch_spec.size is None:
        return _round_up(largest) if full else largest
    return batch_spec.size if full else min(batch_spec.size, largest)


def _round_up(value: int) -> int:
    """A little more, at most a quarter, so that few different numbers come of many."""
    unit = 1 << max(0, value.bit_length() - 3)
    return -(-value // unit) * unit


class _BatchArrays(NamedTuple):
    """Places as arrays."""

    rows: IntArray
    mask: NDArray[np.bool_]
    key: IntArray


class _Window(NamedTuple):
    """Some consecutive steps: the batches there are, one after another by step, and whose they are."""

    steps: range
    counts: IntArray  # of all steps of every holder
    step: IntArray  # [batches]
    client: IntArray  # [batches]
    ends: IntArray  # how many batches there are before each step, and in all


def _iter_windows(counts: IntArray, steps: int, max_batches: int) -> Iterator[_Window]:
    """All steps, in windows of at most so many batches, or of one step."""
    order = np.argsort(-counts, kind="stable")
    active = len(counts) - np.searchsorted(counts[order[::-1]], np.arange(steps), side="right")
    before, begin = np.append(0, np.cumsum(active)), 0
    while begin < steps:
        end = max(
            begin + 1, int(np.searchsorted(before, before[begin] + max_batches, side="right")) - 1
        )
        many = active[begin:end]
        step, client = np.repeat(np.arange(begin, end), many), order[count_within(many)]
        yield _Window(
            range(begin, end), counts, step, client, before[begin : end + 1] - before[begin]
        )
        begin = end


def _scatter_batches(
    window: _Window, first: int, last: int, window_batches: _BatchArrays, stream: "_BatchStream"
) -> BatchIndices:
    """The batches of some steps for everybody, from those of whoever is at work, which are end to end."""
    batches = slice(window.ends[first], window.ends[last])
    where = window.step[batches] - window.steps[first], window.client[batches]
    dense = [
        np.broadcast_to(each, (last - first, *each.shape)).copy() for each in stream.padding_batch
    ]
    for whole, part in zip(dense, window_batches, strict=True):
        whole[where] = part[batches]
    return BatchIndices(*map(torch.from_numpy, dense))


class _BatchStream:
    """One draw of some holders; `finished` is what a step shows to whoever has no steps left.

    Padding repeats examples that somebody holds, since others may not even be finite. Whoever holds none gets it alone.
    """

    def __init__(
        self,
        batch_spec: BatchSpec,
        split: Split,
        client_ids: np.ndarray,
        keys: IntArray,
        full_width: bool,
    ) -> None:
        message = f"Plan: batches of split '{batch_spec.split}' are wanted, but no client has an example in it."
        require(len(split.index) > 0, message)
        self._sizes = get_client_sizes(split, client_ids)
        self.width = _compute_batch_width(batch_spec, self._sizes, full_width)
        self._size, self._index, self._offsets = (
            batch_spec.size or 0,
            split.index,
            np.asarray(split.offsets[client_ids]),
        )
        self._epoch_batches = np.maximum(_count_epoch_batches(batch_spec, self._sizes), 1)
        self._order_keys, self._step_keys = prng.fold(keys, _KEY_STREAMS)
        self._cached_permutations: Permutations | None = None
        shape = (len(client_ids), self.width)
        first = np.broadcast_to(self._get_rows(self._offsets)[:, None], shape)
        self.padding_batch = _BatchArrays(first, np.zeros(shape, dtype=np.bool_), self._step_keys)

    def compute_batches(self, window: _Window) -> _BatchArrays:
        """The batches of a window, end to end."""
        step, client = window.step, window.client
        epoch, batch = np.divmod(step, self._epoch_batches[client])
        position = (batch * self._size)[:, None] + np.arange(self.width)
        mask = position < self._sizes[client][:, None]
        order = self._get_permutations(window).lookup(client, epoch, np.where(mask, position, 0))
        return _BatchArrays(
            self._get_rows(self._offsets[client][:, None] + order),
            mask,
            prng.fold(self._step_keys[client], step),
        )

    def _get_permutations(self, window: _Window) -> Permutations:
        """The permutations of the epochs in a window: those of the window before, if they are the same epochs."""
        begin, cached = window.steps[0], self._cached_permutations
        last_step = np.minimum(window.counts, window.steps[-1] + 1) - 1
        first = begin // self._epoch_batches
        last = np.where(last_step < begin, first - 1, last_step // self._epoch_batches)
        if cached is None or not (
            np.array_equal(cached.first_epoch, first) and np.array_equal(cached.last_epoch, last)
        ):
            self._cached_permutations = cached = permute_epochs(
                self._sizes, first, last, self._order_keys
            )
        return cached

    def _get_rows(self, positions: IntArray) -> IntArray:
        rows: IntArray = self._index[np.minimum(positions, len(self._index) - 1)]
        return rows
