"""Wasserstein distances against closed forms, SciPy's own, and the properties of a metric."""

import math
from functools import partial
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from scipy import stats

from fedtailor.errors import InputError
from fedtailor.inspection.statistics import (
    optimal_transport,
    sample_directions,
    sliced_wasserstein,
    wasserstein,
)
from fedtailor.inspection.statistics.optimal_transport import wasserstein_1d

Numbers = NDArray[np.float64]

MOVE = np.array([0.3, -1.2, 0.5])


def cloud(points: int, seed: int = 0, dimensions: int = 3) -> Numbers:
    return np.random.default_rng(seed).normal(size=(points, dimensions))


def shares(points: int, seed: int) -> Numbers:
    return np.random.default_rng(seed).dirichlet(np.ones(points))


@st.composite
def clouds(draw: st.DrawFn, sets: int, most: int = 5) -> list[Numbers]:
    """Small sets of points in as many dimensions, which may coincide."""
    dimensions = draw(st.integers(1, 3))
    numbers = st.integers(-4, 4).map(lambda whole: whole / 2)
    return [
        draw(arrays(np.float64, (draw(st.integers(1, most)), dimensions), elements=numbers))
        for _ in range(sets)
    ]


def test_a_set_that_has_moved_is_as_far_as_it_has_moved() -> None:
    for points in (7, 60):
        assert wasserstein(cloud(points), cloud(points) + MOVE) == pytest.approx(
            np.linalg.norm(MOVE), abs=1e-12
        )
    weights = shares(9, 1)
    assert wasserstein(cloud(9), cloud(9) + MOVE, weights, weights) == pytest.approx(
        np.linalg.norm(MOVE), abs=1e-6
    )


def test_equal_sets_are_matched_as_well_as_can_be() -> None:
    one, other = cloud(6), cloud(6, 1)
    every = (
        np.linalg.norm(one - other[list(order)], axis=1).mean() for order in permutations(range(6))
    )
    assert wasserstein(one, other) == pytest.approx(min(every), abs=1e-12)


def test_to_a_single_point_it_is_the_mean_distance() -> None:
    point, weights = cloud(1, 2), shares(8, 3)
    away = np.linalg.norm(cloud(8) - point, axis=1)
    assert wasserstein(cloud(8), point) == pytest.approx(away.mean(), abs=1e-12)
    assert wasserstein(point, cloud(8), other_weights=weights) == pytest.approx(
        away @ weights, abs=1e-6
    )


@pytest.mark.parametrize(("n", "m"), [(2, 3), (3, 6), (4, 1)])
def test_unequal_sets_are_coupled_as_well_as_can_be(
    n: int, m: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other, size = cloud(n), cloud(m, 1), math.lcm(n, m)
    each, its = one.repeat(size // n, axis=0), other.repeat(size // m, axis=0)
    expected = min(
        np.linalg.norm(each - its[list(order)], axis=1).mean()
        for order in permutations(range(size))
    )
    assert wasserstein(one, other) == pytest.approx(expected, abs=1e-12)
    monkeypatch.setattr(optimal_transport, "MAX_COPIES", 0)  # a linear program whatever the sizes
    assert wasserstein(one, other) == pytest.approx(expected, abs=1e-6)


@pytest.mark.skipif(
    not hasattr(stats, "wasserstein_distance_nd"), reason="SciPy has it from 1.13 on"
)
@pytest.mark.parametrize(("n", "m"), [(12, 5), (13, 31), (20, 50)])
def test_larger_sets_are_as_far_apart_as_scipy_says(n: int, m: int) -> None:
    one, other, p, q = cloud(n), cloud(m, 1), shares(n, 2), shares(m, 3)
    assert wasserstein(one, other) == pytest.approx(
        stats.wasserstein_distance_nd(one, other), abs=1e-6
    )
    assert wasserstein(one, other, p, q) == pytest.approx(
        stats.wasserstein_distance_nd(one, other, p, q), abs=1e-6
    )


def test_matching_copies_gives_what_the_program_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = cloud(13), cloud(31, 1)
    programmed = wasserstein(one, other)
    monkeypatch.setattr(optimal_transport, "MAX_COPIES", 13 * 31)
    assert wasserstein(one, other) == pytest.approx(programmed, abs=1e-6)


@pytest.mark.parametrize("unit", [1e-9, 1e9])
def test_the_unit_of_length_does_not_matter(unit: float) -> None:
    one, other, p = cloud(13), cloud(31, 1), shares(13, 2)
    assert wasserstein(unit * one, unit * other, p) == pytest.approx(
        unit * wasserstein(one, other, p), rel=1e-6
    )


def test_weights_are_copies_in_other_words() -> None:
    copies = np.array([1, 3, 2, 2])
    copied = cloud(4).repeat(copies, axis=0)
    expected = wasserstein(copied, cloud(8, 1))
    assert wasserstein(cloud(4), cloud(8, 1), copies.astype(float)) == pytest.approx(
        expected, abs=1e-6
    )
    along = sliced_wasserstein(copied, cloud(8, 1), seed=3)
    assert sliced_wasserstein(cloud(4), cloud(8, 1), copies.astype(float), seed=3) == pytest.approx(
        along, abs=1e-12
    )


@settings(deadline=None, max_examples=60)
@given(clouds(2, most=12), st.integers(0, 99))
def test_on_a_line_it_is_what_scipy_says(pair: list[Numbers], seed: int) -> None:
    one, other = (points[:, :1] for points in pair)
    expected = stats.wasserstein_distance(one[:, 0], other[:, 0])
    assert wasserstein(one, other) == pytest.approx(expected, abs=1e-12)
    p, q = shares(len(one), seed), shares(len(other), seed + 1)
    weighted = stats.wasserstein_distance(one[:, 0], other[:, 0], p, q)
    assert wasserstein(one, other, p, q) == pytest.approx(weighted, abs=1e-12)


@settings(deadline=None, max_examples=60)
@given(clouds(4, most=6), st.integers(0, 99))
def test_many_distributions_are_compared_with_a_reference_at_once(
    sets: list[Numbers], seed: int
) -> None:
    reference, *others = (points[:, 0] for points in sets)
    weights = [shares(len(values), seed + number) for number, values in enumerate(others)]
    mass, sizes = shares(len(reference), seed + 9), np.array([len(values) for values in others])
    found = wasserstein_1d(np.concatenate(others), np.concatenate(weights), sizes, reference, mass)
    pairs = zip(others, weights, strict=True)
    expected = [stats.wasserstein_distance(values, reference, own, mass) for values, own in pairs]
    np.testing.assert_allclose(found, expected, atol=1e-12)


@settings(deadline=None, max_examples=30)
@given(clouds(3))
def test_both_are_metrics_and_slicing_never_finds_more(sets: list[Numbers]) -> None:
    one, other, third = sets
    sliced = partial(sliced_wasserstein, projections=12)
    for distance in (wasserstein, sliced):
        assert distance(one, one) == pytest.approx(0, abs=1e-9)
        assert distance(one, other) == pytest.approx(distance(other, one), abs=1e-6)
        assert distance(one, third) <= distance(one, other) + distance(other, third) + 1e-6
        assert distance(one[::-1], other) == pytest.approx(distance(one, other), abs=1e-6)
        assert distance(3 * one, 3 * other) == pytest.approx(3 * distance(one, other), abs=1e-5)
    assert sliced(one, other) <= wasserstein(one, other) + 1e-6


def test_slicing_a_move_finds_its_length_along_each_line() -> None:
    lines = sample_directions(3, 40, seed=5)
    found = sliced_wasserstein(cloud(30), cloud(30) + MOVE, projections=40, seed=5)
    assert found == pytest.approx(np.abs(lines @ MOVE).mean(), abs=1e-12)
    axis = np.array([0.0, 2.0, 0.0])
    along = sliced_wasserstein(cloud(30), cloud(30) + axis, projections=40, seed=5)
    assert along == pytest.approx(2 * np.abs(lines[:, 1]).mean(), abs=1e-12)


def test_slicing_is_a_mean_of_scipys_distances_on_lines() -> None:
    one, other, p, q = cloud(11), cloud(17, 1), shares(11, 2), shares(17, 3)
    lines = sample_directions(3, 25, seed=8)
    expected = np.mean(
        [stats.wasserstein_distance(one @ line, other @ line, p, q) for line in lines]
    )
    assert sliced_wasserstein(one, other, p, q, projections=25, seed=8) == pytest.approx(
        expected, abs=1e-12
    )


def test_directions_are_uniform_on_the_sphere_and_the_seeds_own() -> None:
    lines = sample_directions(5, 20_000, seed=2)
    np.testing.assert_allclose(np.linalg.norm(lines, axis=1), 1)
    np.testing.assert_allclose(lines.mean(axis=0), 0, atol=0.015)  # five standard errors
    np.testing.assert_allclose(lines.T @ lines / len(lines), np.eye(5) / 5, atol=0.01)
    np.testing.assert_array_equal(sample_directions(5, 3, seed=2), sample_directions(5, 3, seed=2))
    assert not np.array_equal(sample_directions(5, 3, seed=2), sample_directions(5, 3, seed=3))
    in_many = np.abs(sample_directions(400, 5_000)[:, 0]).mean()
    assert in_many == pytest.approx(math.sqrt(2 / (math.pi * 400)), rel=0.05)


def test_what_cannot_be_measured_is_refused() -> None:
    for one, other in (
        (cloud(3), cloud(3, 0, 2)),
        (cloud(3)[:, 0], cloud(3)),
        (cloud(0), cloud(3)),
    ):
        for distance in (wasserstein, sliced_wasserstein):
            with pytest.raises(InputError, match="points must be"):
                distance(one, other)
    for weights in (np.ones(4), np.zeros(3), np.array([1.0, -1.0, 3.0])):
        with pytest.raises(InputError, match="weights"):
            wasserstein(cloud(3), cloud(5), weights)
    with pytest.raises(InputError, match="pairs of points"):
        wasserstein(cloud(2500), cloud(2500))
    with pytest.raises(InputError, match="projections"):
        sliced_wasserstein(cloud(3), cloud(3), projections=0)
