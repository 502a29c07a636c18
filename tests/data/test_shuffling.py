"""Many permutations in one sort against `keyed.permutation` one by one, ties and all."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedtailor import prng
from fedtailor.data import shuffling
from fedtailor.data.shuffling import Permutations, count_within, permute_epochs

Runs = list[tuple[int, int, int]]
"""For each holder its size, its first epoch and how many epochs there are."""

holders = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 5), st.integers(0, 3)), min_size=1, max_size=6
)


def shuffled(runs: Runs, keys: Tensor) -> Permutations:
    sizes, first, epochs = (np.array(each) for each in zip(*runs, strict=True))
    return permute_epochs(sizes, first, first + epochs - 1, keys.numpy())


def check(runs: Runs, made: Permutations, keys: Tensor) -> None:
    """Every holder and epoch has the permutation that `keyed` makes, and can be asked for it at any
    place.
    """
    assert len(made.flat) == sum(size * epochs for size, _, epochs in runs) + 1
    for who, (size, first, epochs) in enumerate(runs):
        for epoch in range(first, first + epochs):
            got = made.lookup(np.array([who]), np.array([epoch]), np.arange(size)[None])
            assert got[0].tolist() == prng.permutation(prng.fold(keys[who], epoch), size).tolist()


@settings(max_examples=40, deadline=None)
@given(runs=holders, words=st.sampled_from([1, 7, 1 << 16]), seed=st.integers(0, 2**63))
def test_permutations_are_those_of_keyed(runs: Runs, words: int, seed: int) -> None:
    keys = prng.key(seed, "shuffling", torch.arange(len(runs)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shuffling, "_CHUNK_SIZE", words)
        made = shuffled(runs, keys)
    check(runs, made, keys)


@settings(max_examples=40, deadline=None)
@given(runs=holders, kept=st.sampled_from([1, 0b111, 1 << 62, (1 << 62) + 1, 2**63 - 1 - 7]))
def test_equal_words_and_those_that_differ_in_any_bit_are_sorted_as_keyed_does(
    runs: Runs, kept: int
) -> None:
    keys, words = prng.key(0, "shuffling", torch.arange(len(runs))), prng.random_bits
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prng, "random_bits", lambda key, counters: words(key, counters) & kept)
        check(runs, shuffled(runs, keys), keys)


def test_the_largest_words_and_many_segments_keep_their_order() -> None:
    segment = np.repeat(np.arange(300), 5)
    random = np.random.default_rng(0).integers(2**63 - 2**9, 2**63 - 1, len(segment), endpoint=True)
    wanted = sorted(range(len(segment)), key=lambda at: (segment[at], random[at], at))
    assert shuffling._argsort_within(segment, random).tolist() == wanted


@given(st.lists(st.integers(0, 9), max_size=9))
def test_counting_within_is_a_loop(lengths: list[int]) -> None:
    counted = count_within(np.array(lengths, dtype=np.int64))
    assert counted.tolist() == [number for length in lengths for number in range(length)]
