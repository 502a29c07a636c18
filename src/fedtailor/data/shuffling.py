"""Everybody's epochs shuffled at once: the permutations that `keyed` makes one by one, for many keys in one sort."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtailor import keyed

Ints = NDArray[np.int64]

_WORDS = 1 << 16  # how many random words are made at a time, few enough for a processor's cache


class Permutations(NamedTuple):
    """For each holder the permutations of a run of epochs, which may be none, end to end in one flat tensor."""

    flat: Ints  # and one entry more, for a last holder of nothing to point at
    starts: Ints  # where each holder's first permutation begins
    sizes: Ints
    first: Ints  # epoch of each holder
    last: Ints

    def at(self, holder: Ints, epoch: Ints, position: Ints) -> Ints:
        """The elements at positions [batches, width] of the permutations of holders' epochs [batches]."""
        begin = self.starts[holder] + (epoch - self.first[holder]) * self.sizes[holder]
        found: Ints = self.flat[begin[:, None] + position]
        return found


def permuted(sizes: Ints, first_epoch: Ints, last_epoch: Ints, keys: Ints) -> Permutations:
    """`keyed.permutation(fold(key, epoch), size)` for every holder and epoch, without padding, in one sort."""
    epochs = last_epoch - first_epoch + 1
    holder = np.repeat(np.arange(len(sizes)), epochs)
    own, lengths = keyed.fold(keys[holder], count_within(epochs) + first_epoch[holder]), sizes[holder]
    begins = np.cumsum(lengths) - lengths
    segment = np.repeat(np.arange(len(holder)), lengths)
    flat = np.zeros(len(segment) + 1, dtype=np.int64)
    flat[:-1] = _sorted_within(segment, _words(own, begins, segment))
    flat[:-1] -= begins[segment]
    starts = np.cumsum(epochs * sizes) - epochs * sizes
    return Permutations(flat, starts, sizes, first_epoch, last_epoch)


def count_within(lengths: Ints) -> Ints:
    """0, 1, ..., length - 1 for each length, end to end."""
    ends = np.cumsum(lengths)
    return np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(ends - lengths, lengths)


def _words(keys: Ints, begins: Ints, segment: Ints) -> Ints:
    """The words 0, 1, ... of the key of every segment, end to end."""
    drawn = np.empty_like(segment)
    for begin in range(0, len(segment), _WORDS):
        some = segment[begin : begin + _WORDS]
        drawn[begin : begin + _WORDS] = keyed.words(keys[some], np.arange(begin, begin + len(some)) - begins[some])
    return drawn


def _sorted_within(segment: Ints, random: Ints) -> Ints:
    """The stable order by segment, and by random numbers of 63 bits within it; segments are sorted already.

    The segment pushes the lowest bits out, so that one sort of integers will do; if these bits ever matter, two do.
    """
    bits = int(segment[-1]).bit_length() if len(segment) else 0
    joined = (segment << (63 - bits)) | (random >> bits)
    order = np.argsort(joined)
    ranked = joined[order]
    return np.lexsort((random, segment)) if (ranked[1:] == ranked[:-1]).any() else order
