"""Keyed draws as random numbers: fair, even and uncorrelated, by the usual tests."""

from functools import partial

import pytest
import torch
from scipy import stats
from torch import Tensor
from torch.func import vmap

from fedtailor import prng
from fedtailor.prng import (
    choice,
    dropout_mask,
    integers,
    keep_prob,
    key,
    normal,
    permutation,
    random_bits,
    uniform,
)

UNLIKELY = 1e-4


def assert_uncorrelated(streams: Tensor) -> None:
    """No two rows correlate more than the largest of so many sample correlations may."""
    correlations = torch.corrcoef(streams.double()).triu(1)
    pairs = len(streams) * (len(streams) - 1) / 2
    assert correlations.abs().max() * streams.shape[1] ** 0.5 < stats.norm.isf(UNLIKELY / 2 / pairs)


def assert_even(counts: Tensor) -> None:
    assert stats.chisquare(counts.flatten().numpy()).pvalue > UNLIKELY


def test_every_bit_is_fair() -> None:
    n, numbers = 2**17, torch.arange(2**17)
    drawn = (
        (prng.random_int32(key(10), n), 32),
        (random_bits(key(11), numbers), 63),
        (key(12, numbers), 64),
    )
    ones = torch.stack(
        [(row >> position & 1).sum() for row, width in drawn for position in range(width)]
    )
    assert (ones - n / 2).abs().max() / (n / 4) ** 0.5 < stats.norm.isf(UNLIKELY / 2 / len(ones))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_uniforms_are_uniform(dtype: torch.dtype) -> None:
    drawn = uniform(key(13, "uniform"), (2**18,), dtype)
    assert_even((drawn * 1024).long().bincount(minlength=1024))
    assert stats.kstest(drawn.numpy(), "uniform").pvalue > UNLIKELY
    firsts = vmap(partial(uniform, shape=(1,), dtype=dtype))(key(13, torch.arange(2**16))).flatten()
    assert stats.kstest(firsts.numpy(), "uniform").pvalue > UNLIKELY


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_normals_are_normal(dtype: torch.dtype) -> None:
    n = 2**18
    drawn = normal(key(14, "normal"), (n,), dtype).double()
    assert stats.kstest(drawn.numpy(), "norm").pvalue > UNLIKELY
    for power, (mean, variance) in enumerate(((0, 1), (1, 2), (0, 15), (3, 96)), start=1):
        assert abs(drawn.pow(power).mean() - mean) * (n / variance) ** 0.5 < stats.norm.isf(
            UNLIKELY / 2
        )


def test_integers_are_even() -> None:
    assert_even(integers(key(15), (100_000,), 77).bincount(minlength=77))


def test_streams_do_not_correlate() -> None:
    names = [(seed, purpose) for seed in (0, 1) for purpose in ("batches", "batchet", "noise", 0)]
    grids = [
        key(seed, purpose, torch.arange(3)[:, None], torch.arange(4)).flatten()
        for seed, purpose in names
    ]
    streams = vmap(partial(uniform, shape=(4096,)))(torch.cat(grids))
    assert_uncorrelated(streams)
    assert_uncorrelated(streams.T[:96])


def test_neighbors_in_a_stream_do_not_correlate() -> None:
    drawn = uniform(key(16), (2**17 + 8,))
    kept = dropout_mask(key(16), (2**17 + 8,), 0.3)
    assert_uncorrelated(torch.stack([drawn[lag : lag + 2**17] for lag in range(9)]))
    assert_uncorrelated(torch.stack([kept[lag : lag + 2**17] for lag in range(9)]))


def test_every_order_is_as_likely() -> None:
    orders = vmap(partial(permutation, n=5))(key(17, torch.arange(12_000)))
    counts = (orders * 5 ** torch.arange(5)).sum(1).bincount()
    assert len(counts[counts > 0]) == 120
    assert_even(counts[counts > 0])
    places = vmap(partial(permutation, n=40))(key(18, torch.arange(4000)))
    assert_even(places[:, 0].bincount(minlength=40))
    assert_even(places[:, 39].bincount(minlength=40))


@pytest.mark.parametrize("n", [8, 9])
def test_every_ordered_choice_is_as_likely(n: int) -> None:
    chosen = vmap(partial(choice, n=n, k=2))(key(19, torch.arange(10_000)))
    counts = (chosen[:, 0] * n + chosen[:, 1]).bincount(minlength=n * n).reshape(n, n)
    assert counts.diagonal().eq(0).all()
    assert_even(counts[~torch.eye(n, dtype=torch.bool)])


def test_every_number_is_chosen_as_often() -> None:
    n, k, times = 200, 30, 2000
    counts = (
        vmap(partial(choice, n=n, k=k))(key(20, torch.arange(times)))
        .flatten()
        .bincount(minlength=n)
    )
    share = k / n
    spread = ((counts - times * share) ** 2).sum() / (times * share * (1 - share)) * (n - 1) / n
    assert UNLIKELY < stats.chi2.sf(spread, n - 1) < 1 - UNLIKELY


@pytest.mark.parametrize("p", [2**-16, 0.1, 0.3, 0.5, 0.9, 1 - 2**-16])
def test_masks_keep_their_share(p: float) -> None:
    n = 2**20
    mask = dropout_mask(key(21, "mask"), (n,), p)
    assert stats.binomtest(int(mask.sum()), n, keep_prob(p)).pvalue > UNLIKELY
