"""Partitions by random shares: Dirichlet, quantities, Pachinko, against plain loops and the moments
of their shares.
"""

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedtailor.data import partition
from fedtailor.data.partition import UNASSIGNED, LabelHierarchy, Owners
from fedtailor.data.partition.dirichlet import _draw_capped, _fill_smallest
from fedtailor.errors import InputError
from partitioning import EVENLY, by_coarse, draws, some_labels, table


@settings(max_examples=40, deadline=None)
@given(
    alpha=st.sampled_from([1e-3, 0.1, 1.0, 1e6]),
    least=st.integers(1, 20),
    clients=st.sampled_from([1, 2, 9, 60]),
    count=st.integers(60, 1500),
    seed=st.integers(0, 99),
)
@pytest.mark.parametrize("rule", [partition.dirichlet, partition.quantity])
def test_nobody_has_fewer_than_least_and_all_is_held(
    rule: Callable[..., Owners], alpha: float, least: int, clients: int, count: int, seed: int
) -> None:
    y = some_labels(count, 7, seed)
    if clients * least > count:
        with pytest.raises(
            InputError,
            match=f"{clients} clients with at least {least} need {clients * least} of {count}",
        ):
            rule(y, clients, draws(seed), alpha=alpha, least=least)
        return
    sizes = np.bincount(rule(y, clients, draws(seed), alpha=alpha, least=least), minlength=clients)
    assert sizes.min() >= least
    assert sizes.sum() == count


def second_moment(shares: NDArray[np.float64], alpha: float) -> None:
    """Compares E[p^2] with that of a symmetric Dirichlet distribution: (alpha + 1) / (k (k alpha +
    1)).
    """
    lines, k = shares.shape
    squares = (shares**2).mean(axis=1)
    assert abs(squares.mean() - (alpha + 1) / (k * (k * alpha + 1))) < 4 * squares.std() / np.sqrt(
        lines
    )


@pytest.mark.parametrize("alpha", [0.1, 0.5, 5.0])
def test_dirichlet_shares_of_each_label_have_the_right_moments(alpha: float) -> None:
    y = np.repeat(np.arange(400), 200)
    counts = table(y, partition.dirichlet(y, 5, draws(), alpha=alpha, least=1), 5)
    second_moment(counts.T / 200, alpha)
    assert np.allclose(counts.sum(axis=1) / len(y), 0.2, atol=4 * 0.5 / np.sqrt(400))


@pytest.mark.parametrize("alpha", [0.1, 0.5, 5.0])
def test_quantity_shares_have_the_right_moments_and_labels_are_mixed(alpha: float) -> None:
    sizes = [
        np.bincount(partition.quantity(EVENLY, 5, draws(seed), alpha=alpha, least=1))
        for seed in range(300)
    ]
    second_moment(np.array(sizes) / 6000, alpha)
    counts = table(EVENLY, partition.quantity(EVENLY, 4, draws(), alpha=5.0), 4)
    assert_mixed(counts)


def test_iid_clients_are_equally_large_and_labels_are_mixed() -> None:
    counts = table(EVENLY, partition.iid(EVENLY, 7, draws()), 7)
    assert set(counts.sum(axis=1).tolist()) == {857, 858}
    assert_mixed(counts)


def assert_mixed(counts: NDArray[np.int64]) -> None:
    """Label counts are within five standard deviations of even ones."""
    even = counts.sum(axis=1, keepdims=True) / 10
    assert (abs(counts - even) < 5 * np.sqrt(even)).all()


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 30), min_size=1, max_size=8).filter(lambda sizes: sum(sizes) > 0),
    least=st.integers(0, 10),
    seed=st.integers(0, 99),
)
def test_levelling_takes_one_by_one_from_whoever_has_most(
    sizes: list[int], least: int, seed: int
) -> None:
    assume(len(sizes) * least <= sum(sizes))
    whose = draws(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))
    levelled = _fill_smallest(whose, len(sizes), least, draws(seed))
    wanted = list(sizes)
    while min(wanted) < least:
        wanted[int(np.argmax(wanted))] -= 1
        wanted[int(np.argmin(wanted))] += 1
    after = np.bincount(levelled, minlength=len(sizes))
    assert sorted(after) == sorted(wanted)
    poor = np.flatnonzero(np.array(sizes) <= least)
    assert (levelled[np.isin(whose, poor)] == whose[np.isin(whose, poor)]).all()
    assert ((levelled == whose) | np.isin(levelled, poor)).all()


@pytest.mark.parametrize(("clients", "size"), [(1, 1), (60, 100), (6, 1000), (1000, 6), (13, 40)])
def test_pachinko_clients_have_their_size_even_when_everything_is_taken(
    clients: int, size: int
) -> None:
    whose = by_coarse(EVENLY, clients, draws(), size=size)
    assert (np.bincount(whose[whose != UNASSIGNED], minlength=clients) == size).all()


def test_pachinko_shares_have_the_right_moments() -> None:
    """Of n draws by shares p, E[count (count - 1)] = n (n - 1) E[p^2]; here with four coarse labels
    of three.
    """
    fine = np.repeat(np.arange(12), 8000)
    labels = LabelHierarchy(fine // 3, fine)
    whose = partition.pachinko(labels, 300, draws(), size=60, alpha=0.5, beta=2.0)
    counts = table(fine, whose, 300)
    tops = counts.reshape(300, 4, 3).sum(axis=2)
    unbiased = (tops * (tops - 1)).mean(axis=1) / (60 * 59)
    assert abs(unbiased.mean() - 1.5 / (4 * 3)) < 4 * unbiased.std() / np.sqrt(300)
    within, total = counts.reshape(-1, 3), tops.ravel()
    busy = total >= 10
    inner = (within[busy] * (within[busy] - 1)).mean(axis=1) / (total * (total - 1))[busy]
    assert abs(inner.mean() - 3 / (3 * 7)) < 4 * inner.std() / np.sqrt(busy.sum())


def sequential(shares: list[float], room: list[int], count: int) -> Counter[tuple[int, ...]]:
    """The probabilities of all outcomes of drawing one after the other, what is full left out, in
    units of 1e-9.
    """
    chances: dict[tuple[int, ...], float] = {(0,) * len(room): 1.0}
    for _ in range(count):
        following: dict[tuple[int, ...], float] = {}
        for taken, chance in chances.items():
            free = [
                share if full < most else 0.0
                for share, full, most in zip(shares, taken, room, strict=True)
            ]
            for at in range(len(room)):
                if free[at]:
                    then = tuple(own + (at == place) for place, own in enumerate(taken))
                    following[then] = following.get(then, 0.0) + chance * free[at] / sum(free)
        chances = following
    return Counter({taken: round(chance * 10**9) for taken, chance in chances.items()})


def test_drawing_at_once_is_drawing_one_after_the_other() -> None:
    shares, room, tries, source = [0.6, 0.3, 0.1], [2, 1, 3], 6000, draws()
    wanted = sequential(shares, room, 4)
    seen = Counter(
        tuple(_draw_capped(4, np.array(shares), np.array(room), source).tolist())
        for _ in range(tries)
    )
    assert set(seen) <= set(wanted)
    for taken, units in wanted.items():
        chance = units / 10**9
        assert abs(seen[taken] / tries - chance) < 4.5 * np.sqrt(chance * (1 - chance) / tries)


def test_drawing_goes_on_where_shares_are_nil_but_room_is_left() -> None:
    assert _draw_capped(5, np.array([1.0, 0.0, 0.0]), np.array([2, 1, 2]), draws()).tolist() == [
        2,
        1,
        2,
    ]
