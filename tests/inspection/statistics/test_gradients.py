"""Gradients' distances against closed forms of least squares and against torch's own gradients of
plain modules.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as nnf

from fedtailor.core.functionalize import seed_initialization
from fedtailor.core.task import Task, classification, regression, sequences
from fedtailor.core.types import Params
from fedtailor.data import ClientExamples, FederatedDataset, from_arrays, single_client
from fedtailor.errors import InputError
from fedtailor.inspection.statistics import GradientGaps, compute_gradient_gaps
from quadratics import SIZES, Quadratics, quadratic_problem
from scenarios import toy_data, toy_task

Numbers = NDArray[np.float64]

W = np.array([0.4, -1.0, 0.7])


def served(problem: Quadratics, examples: int = 7) -> tuple[FederatedDataset, Numbers, float]:
    """Least squares with a server: the data, and its gradient and loss at W."""
    draws = np.random.default_rng(9)
    x, y = draws.normal(size=(examples, 3)), draws.normal(size=examples)
    data = replace(problem.data, server=single_client(x, y.astype(problem.data.clients.y.dtype)))
    return data, 2 / examples * x.T @ (x @ W - y), float(((x @ W - y) ** 2).mean())


def at(task: Task, values: Numbers) -> Params:
    return {name: torch.tensor(values).reshape(value.shape) for name, value in task.params.items()}


def figures(gaps: GradientGaps) -> Numbers:
    """Everything that was measured, as numbers."""
    return np.array(gaps, np.float64)


def expected_gaps(each: list[Numbers], weights: list[float], own: Numbers) -> Numbers:
    """G^2, xi^2, |grad F|^2, |grad f_0|^2 and their product, as they are written."""
    overall = np.average(each, axis=0, weights=weights)
    apart = np.mean([np.sum((slope - overall) ** 2) for slope in each])
    return np.array(
        [apart, np.sum((own - overall) ** 2), overall @ overall, own @ own, overall @ own]
    )


@pytest.mark.parametrize("weigh", ["examples", "alike"])
def test_least_squares_in_closed_form(weigh: str) -> None:
    problem = quadratic_problem()
    data, own, server_loss = served(problem)
    each = [problem.gradient(client, W) for client in range(len(SIZES))]
    weights = [float(size) for size in SIZES] if weigh == "examples" else [1.0] * len(SIZES)
    found = compute_gradient_gaps(problem.task, at(problem.task, W), data, weight_by=weigh, batch=4)  # type: ignore[arg-type]
    np.testing.assert_allclose(figures(found)[:5], expected_gaps(each, weights, own), rtol=1e-10)
    residuals = [
        ((data.clients.x[rows] @ W - data.clients.y[rows].ravel()) ** 2).mean()
        for rows in own_rows(data)
    ]
    assert found.loss == pytest.approx(np.average(residuals, weights=weights))
    assert found.server_loss == pytest.approx(server_loss)


def own_rows(data: FederatedDataset) -> list[NDArray[np.int64]]:
    return [data.clients.splits["train"].get_rows(client) for client in range(data.clients.count)]


def test_some_clients_and_those_who_train() -> None:
    problem = quadratic_problem()
    data, own, _ = served(problem)
    params, some = at(problem.task, W), np.array([4, 1])
    each = [problem.gradient(client, W) for client in some]
    expected = expected_gaps(each, [SIZES[4], SIZES[1]], own)
    np.testing.assert_allclose(
        figures(compute_gradient_gaps(problem.task, params, data, some))[:5], expected, rtol=1e-10
    )
    trains = replace(data, groups=data.groups | {"train": some, "participating": some})
    np.testing.assert_allclose(
        figures(compute_gradient_gaps(problem.task, params, trains))[:5], expected, rtol=1e-10
    )


def module_gradient(module: nn.Module, x: Tensor, y: Tensor) -> Numbers:
    loss = nnf.cross_entropy(module(x), y)
    return torch.cat(
        [each.flatten() for each in torch.autograd.grad(loss, list(module.parameters()))]
    ).numpy()


def test_a_network_with_dropout_is_evaluated_without() -> None:
    data, task = toy_data(), toy_task(dropout=0.5)
    module, train = task.to_module(task.params), data.clients.splits["train"]
    assert data.server is not None
    x, y = torch.from_numpy(data.clients.x), torch.from_numpy(data.clients.y)
    people = data.groups["train"]
    each = [
        module_gradient(module, x[train.get_rows(who)], y[train.get_rows(who)]) for who in people
    ]
    own = module_gradient(module, torch.from_numpy(data.server.x), torch.from_numpy(data.server.y))
    expected = expected_gaps(each, train.compute_sizes()[people].tolist(), own)
    for batch in (1, 7, 1000):
        found = compute_gradient_gaps(task, task.params, data, batch=batch)
        np.testing.assert_allclose(figures(found)[:5], expected, rtol=1e-10)


def test_who_comes_first_does_not_matter_and_nothing_is_changed() -> None:
    data, task = toy_data(), toy_task()
    before = {name: value.clone() for name, value in task.params.items()}
    one, other = (
        compute_gradient_gaps(task, task.params, data, who)
        for who in (np.arange(8), np.arange(8)[::-1])
    )
    np.testing.assert_allclose(figures(one), figures(other), rtol=1e-10)
    assert all(torch.equal(before[name], value) for name, value in task.params.items())
    assert not any(value.requires_grad for value in task.params.values())


def test_a_server_with_everybodys_examples_is_no_distance_away() -> None:
    data, task = toy_data(), toy_task()
    people = data.groups["train"]
    rows = np.concatenate([data.clients.splits["train"].get_rows(who) for who in people])
    own = single_client(data.clients.x[rows], data.clients.y[rows])
    found = compute_gradient_gaps(task, task.params, replace(data, server=own, overlap=True))
    assert found.server == pytest.approx(0, abs=1e-20)
    assert found.loss == pytest.approx(found.server_loss)
    assert found.clients > 1e-3


def test_small_differences_between_large_gradients_are_not_lost() -> None:
    """Least squares in one dimension with x = 1: the gradients are 2 (w - y_i), of size 2e6, and
    2e-3 apart.
    """
    y = np.array([-1e6, -1e6 + 1e-3, -1e6 + 2e-3])
    data = from_arrays(np.ones((3, 1)), y, np.arange(3), validation_clients=0.0, unseen_clients=0.0)
    task = regression(nn.Linear(1, 1, bias=False).double())
    found = compute_gradient_gaps(task, at(task, np.zeros(1)), data)
    assert found.clients == pytest.approx(4 * 1e-6 * 2 / 3, rel=1e-3)
    assert found.overall_norm == pytest.approx(4e12)


def test_whole_numbers_are_scaled_as_for_the_model() -> None:
    draws = np.random.default_rng(2)
    x, y, whose = (
        draws.integers(0, 17, (40, 1, 2, 2), np.uint8),
        draws.integers(0, 3, 40, np.uint8),
        np.arange(40) % 4,
    )
    with seed_initialization(1):
        task = classification(nn.Sequential(nn.Flatten(), nn.Linear(4, 3))).to(dtype=torch.float64)
    whole = from_arrays(x, y, whose, scale=1 / 16, server=6, seed=1)
    decoded = from_arrays(x / 16, y, whose, server=6, seed=1)
    one, other = (compute_gradient_gaps(task, task.params, data) for data in (whole, decoded))
    np.testing.assert_allclose(figures(one), figures(other), rtol=1e-10)


class Tokens(nn.Module):
    """Scores for the next token at each place."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 5)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.table(x)
        return scores


def test_sequences_count_by_tokens_that_are_no_padding() -> None:
    draws = np.random.default_rng(3)
    x, y = draws.integers(0, 5, (30, 6)), draws.integers(0, 5, (30, 6))
    y[:10, 1:] = 0  # padding: the first clients have few tokens that count
    with seed_initialization(4):
        task = sequences(Tokens()).to(dtype=torch.float64)
    data = from_arrays(
        x,
        y,
        np.arange(30) // 10,
        classes=5,
        tokens=True,
        validation_clients=0.0,
        unseen_clients=0.0,
    )
    module = task.to_module(task.params)
    slopes, weights = [], []
    for rows in own_rows(data):
        where = y[rows] != 0
        slopes.append(
            module_gradient(
                module, torch.from_numpy(x[rows][where]), torch.from_numpy(y[rows][where])
            )
        )
        weights.append(float(where.sum()))
    found = compute_gradient_gaps(task, task.params, data, batch=3)
    apart, _, norm, *_ = expected_gaps(slopes, weights, slopes[0])
    assert found.clients == pytest.approx(apart, rel=1e-10)
    assert found.overall_norm == pytest.approx(norm, rel=1e-10)


def test_without_server_data_nothing_is_said_of_it() -> None:
    data, task = toy_data(server=0), toy_task(dtype=torch.float32)
    found = compute_gradient_gaps(task, task.params, data)
    assert (found.server, found.server_norm, found.product, found.server_loss) == (None,) * 4
    double = compute_gradient_gaps(
        task.to(dtype=torch.float64), task.to(dtype=torch.float64).params, data
    )
    assert found.clients == pytest.approx(double.clients, rel=1e-4)


def test_what_cannot_be_compared_is_refused() -> None:
    data, task = toy_data(), toy_task()

    def compared(**options: object) -> GradientGaps:
        arguments: dict[str, Any] = {"task": task, "params": task.params, "dataset": data}
        return compute_gradient_gaps(**(arguments | options))

    with pytest.raises(InputError, match="weight_by must be"):
        compared(weight_by="size")
    with pytest.raises(InputError, match="at least one client"):
        compared(client_ids=np.zeros(0, np.int64))
    with pytest.raises(InputError, match="batch must be"):
        compared(batch=0)
    with pytest.raises(InputError, match="params must be"):
        compared(params={"head.weight": task.params["head.weight"]})
    broken = {name: value * torch.nan for name, value in task.params.items()}
    with pytest.raises(InputError, match="client 'client-0' are not"):
        compared(params=broken)
    huge = data.clients.x.copy()
    huge[data.clients.splits["train"].get_rows(3)] = 1e308
    beyond = replace(data, clients=ClientExamples(huge, data.clients.y, data.clients.splits))
    with pytest.raises(InputError, match="client 'client-3' are not"):
        compute_gradient_gaps(
            toy_task(), {name: 1e3 * value for name, value in task.params.items()}, beyond
        )
