import math

import numpy as np
import pytest
import torch
from scipy.ndimage import uniform_filter1d

from fedtailor.evaluation.client_statistics import (
    compute_macro_f1,
    compute_micro_mean,
    compute_ratios,
    compute_rise_time,
    compute_rolling_mean,
    compute_share_better,
    compute_spread,
    find_first_reaching,
)
from fedtailor.training.loop import Cost
from figures import accuracy, f1_of_classes


def test_ratios_of_sums() -> None:
    found = compute_ratios(torch.tensor([[3.0, 4.0], [0.0, 5.0], [0.0, 0.0]]))
    assert found[:2].tolist() == [0.75, 0.0]
    assert math.isnan(found[2])


def test_worst_tenth_is_at_least_one_client() -> None:
    assert compute_spread(np.array([0.5, 0.9, 0.1])).worst_tenth == 0.1
    assert compute_spread(np.array([0.5, 0.9, 0.1]), higher_is_better=False).worst_tenth == 0.9


def test_worst_tenth_of_many() -> None:
    values = np.random.default_rng(0).permutation(np.arange(100.0))
    assert compute_spread(values).worst_tenth == pytest.approx(np.arange(10).mean())
    assert compute_spread(values[:95]).worst_tenth == pytest.approx(
        np.sort(values[:95])[:10].mean()
    )


def test_mean_and_deviation_leave_out_who_was_not_tested() -> None:
    found = compute_spread(np.array([1.0, math.nan, 3.0]))
    assert (found.mean, found.std) == (2.0, 1.0)
    assert all(math.isnan(value) for value in compute_spread(np.array([math.nan])))


def test_costs_add_up() -> None:
    assert Cost(1, 2, 3, 0.5).add(Cost(10, 20, 30, 1.0)) == Cost(11, 22, 33, 1.5)


def test_micro_is_the_accuracy_over_all_examples_together() -> None:
    rng = np.random.default_rng(1)
    sizes = np.array([3, 0, 40, 7])
    true, said = rng.integers(0, 4, 50), rng.integers(0, 4, 50)
    whose = np.repeat(np.arange(4), sizes)
    hits = [(true == said)[whose == who].mean() if sizes[who] else math.nan for who in range(4)]
    assert compute_micro_mean(np.array(hits), sizes.astype(float)) == pytest.approx(
        accuracy(true, said)
    )
    assert math.isnan(compute_micro_mean(np.array([math.nan]), np.array([0.0])))


@pytest.mark.parametrize("classes", [2, 5, 30])
def test_f1_over_classes_is_the_textbooks(classes: int) -> None:
    """With thirty classes and twenty examples some classes are never predicted and never true."""
    rng = np.random.default_rng(classes)
    true, said = rng.integers(0, classes, 20), rng.integers(0, classes, 20)
    pairs = [
        [2 * ((true == c) & (said == c)).sum(), (true == c).sum() + (said == c).sum()]
        for c in range(classes)
    ]
    assert compute_macro_f1(np.array(pairs, float)) == pytest.approx(f1_of_classes(true, said))
    assert math.isnan(compute_macro_f1(np.zeros((3, 2))))


def test_who_is_better_off() -> None:
    mine, theirs = (
        np.array([0.9, 0.5, 0.7, math.nan, 0.1]),
        np.array([0.8, 0.5, 0.9, 0.1, math.nan]),
    )
    assert compute_share_better(mine, theirs) == pytest.approx(
        1 / 3
    )  # one better, one the same, one worse
    assert compute_share_better(mine, theirs, higher_is_better=False) == pytest.approx(1 / 3)
    assert math.isnan(compute_share_better(mine[3:], theirs[3:]))


def test_a_rolling_mean_is_over_the_last_rounds() -> None:
    values = np.random.default_rng(2).random(30)
    found = compute_rolling_mean(range(1, 31), values.tolist(), 5)
    whole = uniform_filter1d(values, 5, origin=2)  # of each value and the four before it
    assert found[4:] == pytest.approx(whole[4:])
    assert found[:2] == pytest.approx([values[0], values[:2].mean()])
    assert compute_rolling_mean([5, 10, 15, 20], [1.0, 2.0, 3.0, 5.0], 10).tolist() == [
        1.0,
        1.5,
        2.5,
        4.0,
    ]


def test_the_first_round_to_reach_something() -> None:
    rounds, values = [2, 4, 6, 8, 10], [0.1, 0.6, 0.4, 0.85, 0.9]
    assert find_first_reaching(rounds, values, 0.5) == 4  # T_0.5, whatever comes after it
    assert find_first_reaching(rounds, values, 0.95) is None
    assert find_first_reaching(rounds, [3.0, 2.0, 1.0, 0.5, 0.7], 1.0, higher_is_better=False) == 6
    assert compute_rise_time(rounds, values) == 8  # 0.85 is more than nine tenths of 0.9
    assert compute_rise_time(rounds, values, share=0.5) == 4
    assert compute_rise_time([], []) is None
    assert find_first_reaching([1, 2], [math.nan, 0.5], 0.5) == 2
