"""Which examples each step sees: a pure function of the plan, the holder's sizes and its key.

Every epoch is a fresh permutation of the holder's split, cut into batches; only the last batch of an epoch is padded.
What a holder sees depends on nothing but its own key and size, so it is the same alone, in any stack and in any order.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as nnf

from fedtailor import keyed
from fedtailor.data.holders import Holders, Split
from fedtailor.errors import require
from fedtailor.types import Draw, Plan

_ORDER, _NOISE = 0, 1  # what a draw's key is folded with: the order of examples, and what the step itself draws
_PLACES = 1 << 21  # how many places in batches are laid out at a time


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
    sizes = holders.splits[plan.draws[-1].split].sizes()[who]
    return (plan.epochs or 0) * _batches_an_epoch(plan.draws[-1], sizes)


def places(
    plan: Plan, holders: Holders | None, who: np.ndarray, keys: Tensor, steps: int, full_width: bool = False
) -> Iterator[tuple[Place, ...]]:
    """What the holders `who`, with a key each, see at the steps 0, ..., steps - 1.

    A holder with fewer steps is laid out to the end all the same. Batches are as wide as the largest that anybody has,
    or as the plan says with `full_width`, so that shapes do not depend on who is there. Streams are numbered from the
    last draw on, so that a method's last draw is the same stream whatever other draws it makes beside it.
    """
    if holders is None or not plan.draws:
        yield from (() for _ in range(steps))
        return
    widths = [_width(draw, holders.splits[draw.split].sizes()[who], full_width) for draw in plan.draws]
    window = max(1, _PLACES // max(1, len(who) * max(widths)))
    for begin in range(0, steps, window):
        end = min(steps, begin + window)
        streams = [
            _stream(draw, width, holders.splits[draw.split], who, keyed.fold(keys, number), begin, end)
            for number, width, draw in zip(range(len(plan.draws))[::-1], widths, plan.draws, strict=True)
        ]
        for step in range(end - begin):
            yield tuple(Place(s.rows[:, step], s.mask[:, step], s.key[:, step]) for s in streams)


def _batches_an_epoch(draw: Draw, sizes: np.ndarray) -> np.ndarray:
    return -(-sizes // draw.size) if draw.size else np.minimum(sizes, 1)


def _width(draw: Draw, sizes: np.ndarray, full: bool) -> int:
    largest = int(sizes.max(initial=1))
    if draw.size is None:
        return largest
    return draw.size if full else min(draw.size, largest)


def _stream(draw: Draw, width: int, split: Split, who: np.ndarray, keys: Tensor, first: int, last: int) -> Place:
    """The steps first, ..., last - 1 of one draw, laid out as [holders, steps, size].

    Padding repeats examples that somebody holds, since others may not even be finite. Whoever holds none gets it alone.
    """
    require(len(split.index) > 0, f"Plan: batches of split '{draw.split}' are wanted, but nobody has an example in it.")
    sizes = torch.from_numpy(split.sizes()[who])
    a_epoch = torch.from_numpy(_batches_an_epoch(draw, split.sizes()[who])).clamp(min=1)
    steps = torch.arange(first, last)
    epoch = steps // a_epoch[:, None]
    begin = (steps % a_epoch[:, None]) * (draw.size or 0)
    position = begin[..., None] + torch.arange(width)
    mask = position < sizes[:, None, None]
    shuffled = _permuted(sizes, epoch[:, 0], epoch[:, -1], keyed.fold(keys, _ORDER))
    order = shuffled.at(epoch[..., None], torch.where(mask, position, 0))
    at = np.minimum(split.offsets[who][:, None, None] + order.numpy(), len(split.index) - 1)
    return Place(torch.from_numpy(split.index[at]), mask, keyed.fold(keyed.fold(keys, _NOISE)[:, None], steps))


class _Permutations(NamedTuple):
    """For each holder the permutations of a run of epochs, end to end in one flat tensor."""

    flat: Tensor  # and one entry more, for a last holder of nothing to point at
    starts: Tensor  # where each holder's first permutation begins
    sizes: Tensor
    first_epoch: Tensor

    def at(self, epoch: Tensor, position: Tensor) -> Tensor:
        """The element at a position of the permutation of an epoch; both [holders, ...]."""
        column = (slice(None), *(None for _ in epoch.shape[1:]))
        which = epoch - self.first_epoch[column]
        return self.flat[self.starts[column] + which * self.sizes[column] + position]


def _permuted(sizes: Tensor, first_epoch: Tensor, last_epoch: Tensor, keys: Tensor) -> _Permutations:
    """`keyed.permutation(fold(key, epoch), size)` for every holder and epoch, without padding, in one sort."""
    epochs = last_epoch - first_epoch + 1
    holder = torch.repeat_interleave(torch.arange(len(sizes)), epochs)
    epoch = _count_within(epochs) + first_epoch[holder]
    position = _count_within(sizes[holder])
    segment = torch.repeat_interleave(torch.arange(len(holder)), sizes[holder])
    random = keyed.words(keyed.fold(keys[holder], epoch)[segment], position)
    by_random = torch.argsort(random, stable=True)
    order = by_random[torch.argsort(segment[by_random], stable=True)]
    starts = torch.cumsum(epochs * sizes, 0) - epochs * sizes
    return _Permutations(nnf.pad(position[order], (0, 1)), starts, sizes, first_epoch)


def _count_within(lengths: Tensor) -> Tensor:
    """0, 1, ..., length - 1 for each length, end to end."""
    ends = torch.cumsum(lengths, 0)
    return torch.arange(int(ends[-1]) if len(ends) else 0) - torch.repeat_interleave(ends - lengths, lengths)
