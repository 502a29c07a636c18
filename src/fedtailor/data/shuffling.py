"""Everybody's epochs shuffled at once: the permutations that `keyed` makes one by one, for many keys in one sort."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedtailor import keyed

_WORDS = 1 << 16  # how many random words are made at a time, few enough for a processor's cache


class Permutations(NamedTuple):
    """For each holder the permutations of a run of epochs, which may be none, end to end in one flat tensor."""

    flat: Tensor  # and one entry more, for a last holder of nothing to point at
    starts: Tensor  # where each holder's first permutation begins
    sizes: Tensor
    first: Tensor  # epoch of each holder
    last: Tensor

    def at(self, holder: Tensor, epoch: Tensor, position: Tensor) -> Tensor:
        """The elements at positions [batches, width] of the permutations of holders' epochs [batches]."""
        begin = self.starts[holder] + (epoch - self.first[holder]) * self.sizes[holder]
        return self.flat[begin[:, None] + position]


def permuted(sizes: Tensor, first_epoch: Tensor, last_epoch: Tensor, keys: Tensor) -> Permutations:
    """`keyed.permutation(fold(key, epoch), size)` for every holder and epoch, without padding, in one sort."""
    epochs = last_epoch - first_epoch + 1
    holder = torch.repeat_interleave(torch.arange(len(sizes)), epochs)
    own, lengths = keyed.fold(keys[holder], count_within(epochs) + first_epoch[holder]), sizes[holder]
    begins = torch.cumsum(lengths, 0) - lengths
    segment = torch.repeat_interleave(torch.arange(len(holder)), lengths)
    flat = torch.zeros(len(segment) + 1, dtype=torch.int64)
    flat[:-1] = torch.from_numpy(_sorted_within(segment.numpy(), _words(own, begins, segment).numpy()))
    flat[:-1] -= begins[segment]
    starts = torch.cumsum(epochs * sizes, 0) - epochs * sizes
    return Permutations(flat, starts, sizes, first_epoch, last_epoch)


def count_within(lengths: Tensor) -> Tensor:
    """0, 1, ..., length - 1 for each length, end to end."""
    ends = torch.cumsum(lengths, 0)
    return torch.arange(int(ends[-1]) if len(ends) else 0) - torch.repeat_interleave(ends - lengths, lengths)


def _words(keys: Tensor, begins: Tensor, segment: Tensor) -> Tensor:
    """The words 0, 1, ... of the key of every segment, end to end."""
    drawn = torch.empty_like(segment)
    for begin in range(0, len(segment), _WORDS):
        some = segment[begin : begin + _WORDS]
        drawn[begin : begin + _WORDS] = keyed.words(keys[some], torch.arange(begin, begin + len(some)) - begins[some])
    return drawn


def _sorted_within(segment: np.ndarray, random: np.ndarray) -> np.ndarray:
    """The stable order by segment, and by random numbers of 63 bits within it; segments are sorted already.

    The segment pushes the lowest bits out, so that one sort of integers will do; if these bits ever matter, two do.
    """
    bits = int(segment[-1]).bit_length() if len(segment) else 0
    joined = (segment << (63 - bits)) | (random >> bits)
    order = np.argsort(joined)
    ranked = joined[order]
    return np.lexsort((random, segment)) if (ranked[1:] == ranked[:-1]).any() else order
