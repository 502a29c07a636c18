"""Permutations for the epochs of many clients, drawn in one sort.

They equal those of `prng.permutation`, which takes one sort for each client and epoch.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtailor import prng

IntArray = NDArray[np.int64]

_CHUNK_SIZE = 1 << 16
"""Random numbers drawn in one call, few enough to stay in a CPU's cache."""


class Permutations(NamedTuple):
    """Permutations for consecutive epochs of each client, one after another in one flat array.

    Each permutation is as long as the client has examples. A client whose last epoch is below its
    first one has no permutations.
    """

    flat: IntArray  # [elements + 1]; the last one is where clients without examples may begin
    starts: IntArray  # [clients] where the first permutation of each client begins in `flat`
    sizes: IntArray  # [clients] number of examples of each client
    first_epoch: IntArray  # [clients]
    last_epoch: IntArray  # [clients] inclusive

    def has_epochs(self, first_epoch: IntArray, last_epoch: IntArray) -> bool:
        """Return whether the permutations are for exactly these epochs, both [clients]."""
        has_same_first = np.array_equal(self.first_epoch, first_epoch)
        return has_same_first and np.array_equal(self.last_epoch, last_epoch)

    def lookup(self, client: IntArray, epoch: IntArray, position: IntArray) -> IntArray:
        """Return the elements of permutations at some positions, [batches, width].

        Args:
            client: Client of each batch, [batches].
            epoch: Epoch of each batch, [batches].
            position: Positions in the permutation of the batch's client and epoch,
                [batches, width].
        """
        epochs_before = epoch - self.first_epoch[client]
        begin = self.starts[client] + epochs_before * self.sizes[client]
        elements: IntArray = self.flat[begin[:, None] + position]
        return elements


def permute_epochs(
    sizes: IntArray, first_epoch: IntArray, last_epoch: IntArray, keys: IntArray
) -> Permutations:
    """Return a permutation for each epoch of each client, without padding and from one sort.

    Each equals `prng.permutation(prng.fold(key, epoch), size)`.

    Args:
        sizes: Number of examples of each client, [clients].
        first_epoch: First epoch of each client, [clients].
        last_epoch: Last epoch of each client, [clients]; below the first one if it has no epochs.
        keys: Key of each client, [clients].
    """
    num_epochs = last_epoch - first_epoch + 1
    # A segment is one epoch of one client. Segments are sorted by client and then by epoch.
    client = np.repeat(np.arange(len(sizes)), num_epochs)
    epoch = count_within(num_epochs) + first_epoch[client]
    segment_keys = prng.fold(keys[client], epoch)
    lengths = sizes[client]
    begins = np.cumsum(lengths) - lengths
    segment = np.repeat(np.arange(len(client)), lengths)
    random_bits = _draw_random_bits(segment_keys, begins, segment)
    flat = np.zeros(len(segment) + 1, dtype=np.int64)
    flat[:-1] = _argsort_within(segment, random_bits)
    flat[:-1] -= begins[segment]
    num_elements = num_epochs * sizes
    starts = np.cumsum(num_elements) - num_elements
    return Permutations(flat, starts, sizes, first_epoch, last_epoch)


def count_within(lengths: IntArray) -> IntArray:
    """Return 0, 1, ..., length - 1 for each of the lengths, one run after another."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    return np.arange(total) - np.repeat(ends - lengths, lengths)


def _draw_random_bits(keys: IntArray, begins: IntArray, segment: IntArray) -> IntArray:
    """Return 63 random bits for each element, by its segment's key and its index in the segment.

    Args:
        keys: Key of each segment, [segments].
        begins: Index of the first element of each segment, [segments].
        segment: Segment of each element, sorted, [elements].
    """
    bits = np.empty_like(segment)
    for begin in range(0, len(segment), _CHUNK_SIZE):
        chunk = segment[begin : begin + _CHUNK_SIZE]
        end = begin + len(chunk)
        counters = np.arange(begin, end) - begins[chunk]
        bits[begin:end] = prng.random_bits(keys[chunk], counters)
    return bits


def _argsort_within(segment: IntArray, random_bits: IntArray) -> IntArray:
    """Return the stable order by segment and then by random bits, [elements]."""
    # One integer has both: the segment in its high bits, the leading random bits below it.
    segment_bits = int(segment[-1]).bit_length() if len(segment) else 0
    combined = (segment << (63 - segment_bits)) | (random_bits >> segment_bits)
    order = np.argsort(combined)
    ranked = combined[order]
    has_ties = (ranked[1:] == ranked[:-1]).any()
    if has_ties:
        # Ties are broken by the bits that were shifted out, and then by position.
        return np.lexsort((random_bits, segment))
    return order
