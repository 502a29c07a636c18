import math

import numpy as np
import pytest
import torch

from fedtailor.run.loop import Cost
from fedtailor.run.metrics import per_client, spread


def test_ratios_of_sums() -> None:
    found = per_client(torch.tensor([[3.0, 4.0], [0.0, 5.0], [0.0, 0.0]]))
    assert found[:2].tolist() == [0.75, 0.0]
    assert math.isnan(found[2])


def test_worst_tenth_is_at_least_one_client() -> None:
    assert spread(np.array([0.5, 0.9, 0.1])).worst_tenth == 0.1
    assert spread(np.array([0.5, 0.9, 0.1]), higher_is_better=False).worst_tenth == 0.9


def test_worst_tenth_of_many() -> None:
    values = np.random.default_rng(0).permutation(np.arange(100.0))
    assert spread(values).worst_tenth == pytest.approx(np.arange(10).mean())
    assert spread(values[:95]).worst_tenth == pytest.approx(np.sort(values[:95])[:10].mean())


def test_mean_and_deviation_leave_out_who_was_not_tested() -> None:
    found = spread(np.array([1.0, math.nan, 3.0]))
    assert (found.mean, found.std) == (2.0, 1.0)
    assert all(math.isnan(value) for value in spread(np.array([math.nan])))


def test_costs_add_up() -> None:
    assert Cost(1, 2, 3, 0.5).plus(Cost(10, 20, 30, 1.0)) == Cost(11, 22, 33, 1.5)
