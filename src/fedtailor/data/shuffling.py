"""Everybody's epochs shuffled at once: the permutations that `keyed` makes one by one, for many keys in one sort."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtailor import prng

IntArray = NDArray[np.int64]

_CHUNK_SIZE = (
    1 << 16
)  # how many random words are made at a time, few enough for a processor's cache


class Permutations(NamedTuple):
    """For each holder the permutations of a run of epochs, which may be none, end to end in one flat tensor."""

    flat: IntArray  # and one entry more, for a last holder of nothing to point at
    starts: IntArray  # where each holder's first permutation begins
    sizes: IntArray
    first_epoch: IntArray  # epoch of each holder
    last_epoch: IntArray

    def lookup(self, client: IntArray, epoch: IntArray, position: IntArray) -> IntArray:
        """The elements at positions [batches, width] of the permutations of holders' epochs [batches]."""
        begin = self.starts[client] + (epoch - self.first_epoch[client]) * self.sizes[client]
        found: IntArray = self.flat[begin[:, None] + position]
        return found


def permute_epochs(
    sizes: IntArray, first_epoch: IntArray, last_epoch: IntArray, keys: IntArray
) -> Permutations:
    """`keyed.permutation(fold(key, epoch), size)` for every holder and epoch, without padding, in one sort."""
    epochs = last_epoch - first_epoch + 1
    client = np.repeat(np.arange(len(sizes)), epochs)
    epoch_keys, lengths = (
        prng.fold(keys[client], count_within(epochs) + first_epoch[client]),
        sizes[client],
    )
    begins = np.cumsum(lengths) - lengths
    segment = np.repeat(np.arange(len(client)), lengths)
    flat = np.zeros(len(segment) + 1, dtype=np.int64)
    flat[:-1] = _argsort_within(segment, _draw_random_bits(epoch_keys, begins, segment))
    flat[:-1] -= begins[segment]
    starts = np.cumsum(epochs * sizes) - epochs * sizes
    return Permutations(flat, starts, sizes, first_epoch, last_epoch)


def count_within(lengths: IntArray) -> IntArray:
    """0, 1, ..., length - 1 for each length, end to end."""
    ends = np.cumsum(lengths)
    return np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(ends - lengths, lengths)


def _draw_random_bits(keys: IntArray, begins: IntArray, segment: IntArray) -> IntArray:
    """The words 0, 1, ... of the key of every segment, end to end."""
    bits = np.empty_like(segment)
    for begin in range(0, len(segment), _CHUNK_SIZE):
        some = segment[begin : begin + _CHUNK_SIZE]
        bits[begin : begin + _CHUNK_SIZE] = prng.random_bits(
            keys[some], np.arange(begin, begin + len(some)) - begins[some]
        )
    return bits


def _argsort_within(segment: IntArray, random_bits: IntArray) -> IntArray:
    """The stable order by segment, and by random numbers of 63 bits within it; segments are sorted already.

    The segment pushes the lowest bits out, so that one sort of integers will do; if these bits ever matter, two do.
    """
    bits = int(segment[-1]).bit_length() if len(segment) else 0
    joined = (segment << (63 - bits)) | (random_bits >> bits)
    order = np.argsort(joined)
    ranked = joined[order]
    return np.lexsort((random_bits, segment)) if (ranked[1:] == ranked[:-1]).any() else order
