"""Which examples each step sees: a pure function of the plan, the holder's sizes and its key.

Every epoch is a fresh permutation of the holder's split, cut into batches; only the last batch of an epoch is padded.
What a holder sees depends on nothing but its own key and size, so it is the same alone, in any stack and in any order.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedtailor import keyed
from fedtailor.data.holders import Holders, Split
from fedtailor.data.shuffling import Permutations, count_within, permuted
from fedtailor.errors import require
from fedtailor.types import Draw, Plan

_ORDER, _NOISE = 0, 1  # what a draw's key is folded with: the order of examples, and what the step itself draws
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
    return (plan.epochs or 0) * _batches_an_epoch(plan.draws[-1], _sizes(holders.splits[plan.draws[-1].split], who))


def places(
    plan: Plan, holders: Holders | None, who: np.ndarray, keys: Tensor, steps: int, full_width: bool = False
) -> Iterator[tuple[Place, ...]]:
    """What the holders `who`, with a key each, see at the steps 0, ..., steps - 1.

    A holder who has taken all steps that the plan is for it sees padding alone from then on, which costs next to
    nothing. Batches are as wide as the largest that anybody has, or as the plan says with `full_width`, so that shapes
    do not depend on who is there. Streams are numbered from the last draw on, so that a method's last draw is the same
    stream whatever other draws it makes beside it.
    """
    if holders is None or not plan.draws or not steps:
        yield from (() for _ in range(steps))
        return
    streams = [
        _Stream(draw, holders.splits[draw.split], who, keyed.fold(keys, number), full_width)
        for number, draw in zip(range(len(plan.draws))[::-1], plan.draws, strict=True)
    ]
    counts, width = np.minimum(step_counts(plan, holders, who), steps), max(stream.width for stream in streams)
    for window in _windows(counts, steps, _PLACES // width):
        laid_out = [stream.laid_out(window) for stream in streams]
        at_once = max(1, _SPREAD // (len(who) * width))
        yield from zip(
            *(_spread(window, at_once, mine, stream.finished) for mine, stream in zip(laid_out, streams, strict=True)),
            strict=True,
        )


def _sizes(split: Split, who: np.ndarray) -> np.ndarray:
    """How many examples some holders have, without a look at all the others."""
    return np.asarray(split.offsets[who + 1] - split.offsets[who])


def _batches_an_epoch(draw: Draw, sizes: np.ndarray) -> np.ndarray:
    return -(-sizes // draw.size) if draw.size else np.minimum(sizes, 1)


def _width(draw: Draw, sizes: np.ndarray, full: bool) -> int:
    largest = int(sizes.max(initial=1))
    if draw.size is None:
        return largest
    return draw.size if full else min(draw.size, largest)


class _Window(NamedTuple):
    """Some consecutive steps: the batches there are, one after another by step, and whose they are."""

    steps: range
    counts: np.ndarray  # of all steps of every holder
    step: Tensor  # [batches]
    holder: Tensor  # [batches]
    ends: list[int]  # how many batches there are before each step, and in all


def _windows(counts: np.ndarray, steps: int, most: int) -> Iterator[_Window]:
    """All steps, in windows of at most so many batches, or of one step."""
    order = np.argsort(-counts, kind="stable")
    active = len(counts) - np.searchsorted(counts[order[::-1]], np.arange(steps), side="right")
    before, begin = np.append(0, np.cumsum(active)), 0
    while begin < steps:
        end = max(begin + 1, int(np.searchsorted(before, before[begin] + most, side="right")) - 1)
        many = torch.from_numpy(active[begin:end])
        step, holder = torch.repeat_interleave(torch.arange(begin, end), many), torch.from_numpy(order)
        ends = (before[begin : end + 1] - before[begin]).tolist()
        yield _Window(range(begin, end), counts, step, holder[count_within(many)], ends)
        begin = end


def _spread(window: _Window, at_once: int, laid_out: Place, finished: Place) -> Iterator[Place]:
    """The batches of each step for everybody, from those of whoever is at work, which are end to end."""
    for first in range(0, len(window.steps), at_once):
        last = min(first + at_once, len(window.steps))
        batches = slice(window.ends[first], window.ends[last])
        where = window.step[batches] - window.steps[first], window.holder[batches]
        everybody = [each.expand(last - first, *each.shape).clone() for each in finished]
        for whole, part in zip(everybody, laid_out, strict=True):
            whole[where] = part[batches]
        yield from map(Place, *(whole.unbind() for whole in everybody))


class _Stream:
    """One draw of some holders; `finished` is what a step shows to whoever has no steps left.

    Padding repeats examples that somebody holds, since others may not even be finite. Whoever holds none gets it alone.
    """

    def __init__(self, draw: Draw, split: Split, who: np.ndarray, keys: Tensor, full_width: bool) -> None:
        nobody = f"Plan: batches of split '{draw.split}' are wanted, but nobody has an example in it."
        require(len(split.index) > 0, nobody)
        sizes = _sizes(split, who)
        self.width = _width(draw, sizes, full_width)
        self._size, self._index, self._offsets = draw.size or 0, split.index, torch.from_numpy(split.offsets[who])
        self._sizes = torch.from_numpy(sizes)
        self._an_epoch = torch.from_numpy(_batches_an_epoch(draw, sizes)).clamp(min=1)
        self._order, self._noise = keyed.fold(keys, _ORDER), keyed.fold(keys, _NOISE)
        self._known: Permutations | None = None
        first, nothing = self._rows(self._offsets), torch.zeros(len(who), 1, dtype=torch.bool)
        self.finished = Place(first[:, None].expand(-1, self.width), nothing.expand(-1, self.width), self._noise)

    def laid_out(self, window: _Window) -> Place:
        """The batches of a window, end to end."""
        step, holder = window.step, window.holder
        epoch, batch = step // self._an_epoch[holder], step % self._an_epoch[holder]
        position = (batch * self._size)[:, None] + torch.arange(self.width)
        mask = position < self._sizes[holder][:, None]
        order = self._shuffled(window).at(holder, epoch, torch.where(mask, position, 0))
        return Place(self._rows(self._offsets[holder][:, None] + order), mask, keyed.fold(self._noise[holder], step))

    def _shuffled(self, window: _Window) -> Permutations:
        """The permutations of the epochs in a window: those of the window before, if they are the same epochs."""
        begin, known = window.steps[0], self._known
        last_step = torch.from_numpy(np.minimum(window.counts, window.steps[-1] + 1) - 1)
        first = begin // self._an_epoch
        last = torch.where(last_step < begin, first - 1, last_step // self._an_epoch)
        if known is None or not (torch.equal(known.first, first) and torch.equal(known.last, last)):
            self._known = known = permuted(self._sizes, first, last, self._order)
        return known

    def _rows(self, at: Tensor) -> Tensor:
        return torch.from_numpy(self._index[at.clamp(max=len(self._index) - 1).numpy()])
