"""Least squares, a different problem for each client: every optimum and every path is known in
closed form.

The model is a linear map without bias, w, and the loss the mean squared error, so client i's loss
is the quadratic

    f_i(w) = 1/2 w' H_i w - w' b_i + constant,   H_i = 2/n_i X_i' X_i,   b_i = 2/n_i X_i' y_i

with curvature of its own. The federated optimum minimizes the mean of all f_i, each client counting
alike. With a batch of at least `LARGEST` examples an epoch is one step on the whole of f_i, so
`epochs` is the number of exact steps, the same for all. With `copies=True` each client holds one
example many times over (H_i has rank one): batches of any size then give the gradient of all of
f_i, and clients take unequal numbers of exact steps.
"""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fedtailor import prng
from fedtailor.core.functionalize import seed_initialization
from fedtailor.core.task import Task, regression
from fedtailor.core.types import Method, Params
from fedtailor.data import ClientExamples, FederatedDataset
from fedtailor.engines import factory
from fedtailor.engines.base import ClientWork
from fedtailor.engines.context import EngineContext
from fedtailor.engines.single_client import iter_batches
from fedtailor.prng.streams import Stream
from scenarios import split, toy_setting, train

SIZES = (6, 3, 10, 4, 8, 5)
"""Train examples of the six clients, all of whom may take part."""

LARGEST = max(SIZES)

Vector = NDArray[np.float64]


class Quadratics(NamedTuple):
    """Clients' least-squares problems with their curvatures H_i and slopes b_i."""

    data: FederatedDataset
    task: Task
    curvatures: NDArray[np.float64]  # [clients, features, features]
    slopes: NDArray[np.float64]  # [clients, features]

    def optimum(self, decay: float = 0.0) -> Vector:
        """The minimizer of mean_i f_i(w) + decay/2 |w|^2."""
        found: Vector = np.linalg.solve(
            self.curvatures.mean(0) + decay * np.eye(self.slopes.shape[1]), self.slopes.mean(0)
        )
        return found

    def own_optimum(self, client: int) -> Vector:
        """The minimizer of f_i alone, the shortest if there are several."""
        found: Vector = np.linalg.pinv(self.curvatures[client]) @ self.slopes[client]
        return found

    def gradient(self, client: int, w: Vector) -> Vector:
        """The gradient of f_i."""
        found: Vector = self.curvatures[client] @ w - self.slopes[client]
        return found

    def fedavg_limit(self, lr: float, steps: list[int]) -> Vector:
        """Where FedAvg stands still if client i takes steps[i] exact steps: mean_i (A_i w - w +
        B_i) = 0.
        """
        pull, push = np.zeros_like(self.curvatures[0]), np.zeros_like(self.slopes[0])
        for hessian, slope, count in zip(self.curvatures, self.slopes, steps, strict=True):
            shrink = np.eye(len(slope)) - lr * hessian
            powers = [np.linalg.matrix_power(shrink, k) for k in range(count + 1)]
            pull += np.eye(len(slope)) - powers[count]
            push += lr * sum(powers[:count]) @ slope
        found: Vector = np.linalg.solve(pull, push)
        return found


def quadratic_problem(features: int = 3, copies: bool = False, seed: int = 0) -> Quadratics:
    """Six clients with curvatures and optima of their own; see above."""
    draws = np.random.default_rng(seed)
    parts = [
        _examples(draws, size, features, scale, copies)
        for size, scale in zip(SIZES, _scales(), strict=True)
    ]
    x, y = np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])
    whose, people = np.repeat(np.arange(len(SIZES)), SIZES), np.arange(len(SIZES))
    empty = np.array([], dtype=np.int64)
    data = FederatedDataset(
        name="quadratics",
        clients=ClientExamples(
            x,
            y,
            {
                "train": split([np.flatnonzero(whose == client) for client in people]),
                "test": split([empty for _ in people]),
            },
        ),
        client_names=np.array([f"client-{client}" for client in people]),
        groups={"train": people, "participating": people, "validation": empty, "unseen": empty},
        server=None,
        classes=None,
    )
    with seed_initialization(3):
        task = regression(nn.Linear(features, 1, bias=False).double())
    return Quadratics(
        data,
        task,
        np.stack([2 * a.T @ a / len(a) for a, _ in parts]),
        np.stack([2 * a.T @ b / len(a) for a, b in parts]),
    )


def minibatches(setting: EngineContext, client: int, number: int) -> list[tuple[Vector, Vector]]:
    """The examples (x, y) that a client sees in a round, step by step, as plain arrays."""
    plan = setting.method.client.phases[0].plan
    key = prng.fold(setting.derive_keys(Stream.CLIENT, number, [client])[0], 0)
    steps = iter_batches(plan, ClientWork(setting.make_client_dataset(), client, key))
    return [
        (batch.x[batch.mask > 0].numpy(), batch.y[batch.mask > 0].numpy()) for (batch,) in steps
    ]


def setting_of(problem: Quadratics, method: Method) -> EngineContext:
    """A method on the problem."""
    return toy_setting(method, task=problem.task, data=problem.data)


def settled(problem: Quadratics, method: Method, rounds: int, cohort: int = len(SIZES)) -> Vector:
    """The global model after some rounds."""
    return vector(train(setting_of(problem, method), rounds, cohort)[0].params)


def after_round(problem: Quadratics, method: Method, w: Vector) -> Vector:
    """The global model after one round of everybody that begins with w."""
    setting = setting_of(problem, method)
    params = {"weight": torch.from_numpy(w.copy())[None]}
    engine, state = (
        factory.make_engine(setting),
        setting.init_server_state()._replace(params=params),
    )
    trained = engine.train(state, setting.data.groups["train"], 0)
    return vector(engine.update_server(state, trained.cohort_update, 0).params)


def slope(w: Vector, x: Vector, y: Vector) -> Vector:
    """The gradient of the mean squared error on some examples."""
    found: Vector = 2 * x.T @ (x @ w - y) / len(y)
    return found


def vector(params: Params) -> Vector:
    """A model of the problem, or anything shaped like it, as a plain vector; stacked ones as a
    matrix.
    """
    weight = params["weight"].detach().numpy()
    found: Vector = weight.reshape(*weight.shape[:-2], weight.shape[-1])
    return found


def _scales() -> Vector:
    return np.geomspace(0.5, 1.5, len(SIZES))


def _examples(
    draws: np.random.Generator, size: int, features: int, scale: float, copies: bool
) -> tuple[Vector, Vector]:
    own, x = draws.normal(size=features), draws.normal(size=(size, features))
    if copies:
        x = np.repeat(x[:1] / np.linalg.norm(x[:1]), size, 0)
    y = scale * x @ own + (0.1 * draws.normal(size=size) if not copies else 0.0)
    return scale * x, y


def assert_settled(
    problem: Quadratics,
    decay: float,
    params: NDArray[np.float64],
    mean: NDArray[np.float64],
    own: NDArray[np.float64],
    near: float,
) -> None:
    """The model is at the global optimum, what each client keeps is its gradient there, and their
    mean is 0.
    """
    optimum = problem.optimum(decay)
    gradients = np.stack(
        [problem.gradient(i, optimum) + decay * optimum for i in range(len(SIZES))]
    )
    assert np.abs(params - optimum).max() < near
    assert np.abs(mean).max() < 10 * near
    assert np.abs(own - gradients).max() < 10 * near
    assert np.abs(gradients).max() > 1.0
