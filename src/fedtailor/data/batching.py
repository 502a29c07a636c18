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

from fedtailor import keyed
from fedtailor.data.holders import Holders, Split
from fedtailor.data.shuffling import Ints, Permutations, count_within, permuted
from fedtailor.errors import require
from fedtailor.types import Draw, Plan

_PURPOSES = np.array([[0], [1]])  # what a draw's key is folded with: for the order of examples, and for the step's own
_PLACES = 1 << 21  # how many places in batches are laid out at a time
_SPREAD = 1 << 16  # how many of them, with those of whoever has finished, are handed out at a time


class Place(NamedTuple):
    """One draw of one step, for a stack of holders: rows of the columns, which of them are real, and keys."""

    rows: Tensor  # [holders, size]
    mask: Tensor  # [holders, size] bool
    key: Tensor  # [holders]

    def of(self, who: int | slice) -> "Place":
        """The same for one or some of the holders."""
        return Place(self.rows[who], self.mask[who], self.key[who])


def step_counts(plan: Plan, holders: Holders, who: np.ndarray) -> np.ndarray:
    """How many steps the plan is for each of the holders `who`."""
    if plan.steps is not None:
        return np.full(len(who), plan.steps, dtype=np.int64)
    require(plan.epochs is not None and bool(plan.draws), f"Plan: epochs of something or steps are needed, got {plan}.")
    return (plan.epochs or 0) * _batches_an_epoch(plan.draws[-1], sizes_of(holders.splits[plan.draws[-1].split], who))


def places(
    plan: Plan, holders: Holders | None, who: np.ndarray, keys: Tensor, steps: int, full_width: bool = False
) -> Iterator[tuple[Place, ...]]:
    """What the holders `who`, with a key each, see at the steps 0, ..., steps - 1."""
    for count, several in stretches(plan, holders, who, keys, steps, full_width):
        if not several:
            yield from (() for _ in range(count))
        else:
            yield from zip(*(map(Place, *(whole.unbind() for whole in each)) for each in several), strict=True)


def stretches(
    plan: Plan, holders: Holders | None, who: np.ndarray, keys: Tensor, steps: int, full_width: bool = False
) -> Iterator[tuple[int, tuple[Place, ...]]]:
    """The same for several consecutive steps at a time: how many, and places with one more dimension in front.

    A holder who has taken all steps that the plan is for it sees padding alone from then on, which costs next to
    nothing. Batches are as wide as the largest that anybody has, or as the plan says with `full_width`, so that shapes
    do not depend on who is there. Streams are numbered from the last draw on, so that a method's last draw is the same
    stream whatever other draws it makes beside it.
    """
    if holders is None or not plan.draws or not steps:
        yield steps, ()
        return
    streams = [
        _Stream(draw, holders.splits[draw.split], who, keyed.fold(keys.numpy(), number), full_width)
        for number, draw in zip(range(len(plan.draws))[::-1], plan.draws, strict=True)
    ]
    counts, width = np.minimum(step_counts(plan, holders, who), steps), max(stream.width for stream in streams)
    for window in _windows(counts, steps, _PLACES // width):
        laid_out = [stream.laid_out(window) for stream in streams]
        many = at_once(len(who), width)
        for first in range(0, len(window.steps), many):
            last = min(first + many, len(window.steps))
            spread = (_spread(window, first, last, *both) for both in zip(laid_out, streams, strict=True))
            yield last - first, tuple(spread)


def at_once(holders: int, width: int) -> int:
    """How many steps of so many holders, in batches of such a width, a stretch has at most."""
    return max(1, _SPREAD // (holders * width))


def sizes_of(split: Split, who: np.ndarray) -> Ints:
    """How many examples some holders have, without a look at all the others."""
    return np.asarray(split.offsets[who + 1] - split.offsets[who])


def _batches_an_epoch(draw: Draw, sizes: Ints) -> Ints:
    return -(-sizes // draw.size) if draw.size else np.minimum(sizes, 1)


def _width(draw: Draw, sizes: Ints, full: bool) -> int:
    largest = int(sizes.max(initial=1))
    if draw.size is None:
        return _rounded(largest) if full else largest
    return draw.size if full else min(draw.size, largest)


def _rounded(number: int) -> int:
    """A little more, at most a quarter, so that few different numbers come of many."""
    unit = 1 << max(0, number.bit_length() - 3)
    return -(-number // unit) * unit


class _Laid(NamedTuple):
    """Places as arrays."""

    rows: Ints
    mask: NDArray[np.bool_]
    key: Ints


class _Window(NamedTuple):
    """Some consecutive steps: the batches there are, one after another by step, and whose they are."""

    steps: range
    counts: Ints  # of all steps of every holder
    step: Ints  # [batches]
    holder: Ints  # [batches]
    ends: Ints  # how many batches there are before each step, and in all


def _windows(counts: Ints, steps: int, most: int) -> Iterator[_Window]:
    """All steps, in windows of at most so many batches, or of one step."""
    order = np.argsort(-counts, kind="stable")
    active = len(counts) - np.searchsorted(counts[order[::-1]], np.arange(steps), side="right")
    before, begin = np.append(0, np.cumsum(active)), 0
    while begin < steps:
        end = max(begin + 1, int(np.searchsorted(before, before[begin] + most, side="right")) - 1)
        many = active[begin:end]
        step, holder = np.repeat(np.arange(begin, end), many), order[count_within(many)]
        yield _Window(range(begin, end), counts, step, holder, before[begin : end + 1] - before[begin])
        begin = end


def _spread(window: _Window, first: int, last: int, laid_out: _Laid, stream: "_Stream") -> Place:
    """The batches of some steps for everybody, from those of whoever is at work, which are end to end."""
    batches = slice(window.ends[first], window.ends[last])
    where = window.step[batches] - window.steps[first], window.holder[batches]
    everybody = [np.broadcast_to(each, (last - first, *each.shape)).copy() for each in stream.finished]
    for whole, part in zip(everybody, laid_out, strict=True):
        whole[where] = part[batches]
    return Place(*map(torch.from_numpy, everybody))


class _Stream:
    """One draw of some holders; `finished` is what a step shows to whoever has no steps left.

    Padding repeats examples that somebody holds, since others may not even be finite. Whoever holds none gets it alone.
    """

    def __init__(self, draw: Draw, split: Split, who: np.ndarray, keys: Ints, full_width: bool) -> None:
        nobody = f"Plan: batches of split '{draw.split}' are wanted, but nobody has an example in it."
        require(len(split.index) > 0, nobody)
        self._sizes = sizes_of(split, who)
        self.width = _width(draw, self._sizes, full_width)
        self._size, self._index, self._offsets = draw.size or 0, split.index, np.asarray(split.offsets[who])
        self._an_epoch = np.maximum(_batches_an_epoch(draw, self._sizes), 1)
        self._order, self._noise = keyed.fold(keys, _PURPOSES)
        self._known: Permutations | None = None
        shape = (len(who), self.width)
        first = np.broadcast_to(self._rows(self._offsets)[:, None], shape)
        self.finished = _Laid(first, np.zeros(shape, dtype=np.bool_), self._noise)

    def laid_out(self, window: _Window) -> _Laid:
        """The batches of a window, end to end."""
        step, holder = window.step, window.holder
        epoch, batch = np.divmod(step, self._an_epoch[holder])
        position = (batch * self._size)[:, None] + np.arange(self.width)
        mask = position < self._sizes[holder][:, None]
        order = self._shuffled(window).at(holder, epoch, np.where(mask, position, 0))
        return _Laid(self._rows(self._offsets[holder][:, None] + order), mask, keyed.fold(self._noise[holder], step))

    def _shuffled(self, window: _Window) -> Permutations:
        """The permutations of the epochs in a window: those of the window before, if they are the same epochs."""
        begin, known = window.steps[0], self._known
        last_step = np.minimum(window.counts, window.steps[-1] + 1) - 1
        first = begin // self._an_epoch
        last = np.where(last_step < begin, first - 1, last_step // self._an_epoch)
        if known is None or not (np.array_equal(known.first, first) and np.array_equal(known.last, last)):
            self._known = known = permuted(self._sizes, first, last, self._order)
        return known

    def _rows(self, at: Ints) -> Ints:
        rows: Ints = self._index[np.minimum(at, len(self._index) - 1)]
        return rows
