from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from agreement import distance
from fedtailor.core import trees
from fedtailor.engines import factory
from fedtailor.engines.base import ClientWork
from fedtailor.engines.single_client import run_single_client
from fedtailor.errors import InputError
from fedtailor.methods import feddyn
from fedtailor.prng.streams import Stream
from fedtailor.training.loop import run_rounds
from oracles import descended
from quadratics import (
    LARGEST,
    SIZES,
    assert_settled,
    minibatches,
    quadratic_problem,
    setting_of,
    settled,
    slope,
    vector,
)
from scenarios import built_on_toy, kept, toy_setting, train

on_toy = partial(built_on_toy, feddyn)


@pytest.mark.parametrize(("momentum", "decay"), [(0.0, 0.0), (0.5, 0.05)])
@pytest.mark.parametrize("cohort", [2, 6])
def test_rounds_follow_algorithm_1_of_the_paper(cohort: int, momentum: float, decay: float) -> None:
    problem = quadratic_problem()
    lr, alpha, clients = 0.05, 0.7, len(SIZES)
    hyper = feddyn.HParams(
        lr=lr, alpha=alpha, epochs=2, batch=3, momentum=momentum, weight_decay=decay
    )
    setting = setting_of(problem, feddyn.build(problem.task, hyper))
    engine, theta = factory.make_engine(setting), vector(problem.task.params)
    loop, h, gradients = (
        run_rounds(setting, engine, setting.init_server_state(), cohort),
        np.zeros(3),
        np.zeros((clients, 3)),
    )
    for number in range(4):
        result = next(loop)
        models = []
        for k in result.cohort:
            own, velocity = theta.copy(), np.zeros(3)
            for x, y in minibatches(setting, k, number):
                regularised = slope(own, x, y) - gradients[k] + alpha * (own - theta) + decay * own
                velocity = momentum * velocity + regularised
                own = own - lr * velocity
            gradients[k] = gradients[k] - alpha * (own - theta)
            models.append(own)
        h = h - alpha / clients * sum(own - theta for own in models)
        theta = sum(models) / len(models) - h / alpha
    assert np.abs(vector(result.state.params) - theta).max() < 1e-12
    assert np.abs(vector(result.state.aux) - h).max() < 1e-12
    assert np.abs(vector(kept(setting, engine)) - gradients).max() < 1e-12
    assert np.abs(h).max() > 1e-2


@pytest.mark.parametrize("cohort", [1, 4, 9])
def test_h_is_the_mean_of_what_all_clients_keep(cohort: int) -> None:
    setting = on_toy(epochs=2)
    state, engine = train(setting, rounds=3, cohort=cohort)
    assert (
        distance(state.aux, trees.apply(lambda leaf: leaf.mean(0), kept(setting, engine))) < 1e-12
    )
    assert float(trees.norm(state.aux)) > 1e-3


def test_an_exact_client_keeps_the_gradient_where_it_ends() -> None:
    problem = quadratic_problem()
    hyper = feddyn.HParams(lr=0.2, alpha=1.0, epochs=80, batch=LARGEST)
    setting = setting_of(problem, feddyn.build(problem.task, hyper))
    state, engine = setting.init_server_state(), factory.make_engine(setting)
    theta = vector(state.params)
    engine.train(state, setting.data.groups["train"], 0)
    for i, found in enumerate(vector(kept(setting, engine))):
        hessian = problem.curvatures[i] + np.eye(3)
        exact = np.linalg.solve(hessian, problem.slopes[i] + theta)
        assert np.abs(found - problem.gradient(i, exact)).max() < 1e-6


@pytest.mark.parametrize(("cohort", "rounds", "decay"), [(6, 30, 0.3), (4, 45, 0.0)])
def test_it_reaches_the_global_optimum(cohort: int, rounds: int, decay: float) -> None:
    problem = quadratic_problem()
    hyper = feddyn.HParams(lr=0.1, alpha=2.0, epochs=4, batch=LARGEST, weight_decay=decay)
    setting = setting_of(problem, feddyn.build(problem.task, hyper))
    state, engine = train(setting, rounds, cohort)
    assert_settled(
        problem, decay, vector(state.params), vector(state.aux), vector(kept(setting, engine)), 1e-3
    )


def test_unequal_numbers_of_steps_do_not_bias_it() -> None:
    problem = quadratic_problem(features=2, copies=True)
    hyper = feddyn.HParams(lr=0.1, epochs=2, batch=3, alpha=2.0)
    found = settled(problem, feddyn.build(problem.task, hyper), rounds=25)
    assert np.abs(found - problem.optimum()).max() < 1e-3
    limit = problem.fedavg_limit(0.1, [2 * -(-size // 3) for size in SIZES])
    assert np.abs(limit - problem.optimum()).max() > 0.1


@pytest.mark.parametrize("cohort", [3, 9])
def test_the_first_round_is_fedprox_with_a_larger_server_rate(cohort: int) -> None:
    ours, _ = train(on_toy(epochs=2, alpha=0.4), rounds=1, cohort=cohort)
    prox = toy_setting("fedprox", epochs=2, lam=0.4, server_lr=1 + cohort / 9, weigh="clients")
    assert distance(ours.params, train(prox, rounds=1, cohort=cohort)[0].params) < 1e-12


def test_a_client_without_steps_keeps_what_it_has() -> None:
    setting = on_toy()
    state, engine = train(setting, rounds=2, cohort=9)
    own = trees.take_row(kept(setting, engine), 3)
    idle, key = (
        setting.method.client._replace(phases=()),
        setting.derive_keys(Stream.CLIENT, 2, [3])[0],
    )
    result = run_single_client(
        idle,
        setting.method.broadcast(state),
        own,
        ClientWork(setting.make_client_dataset(), 3, key),
    )
    assert distance(result.state, own) == 0.0
    assert distance(result.update, trees.zeros_like(result.update)) == 0.0
    assert float(trees.norm(own)) > 1e-3


def test_personalizing_is_sgd_on_the_plain_loss() -> None:
    setting = on_toy(finetune_epochs=2, finetune_lr=0.05)
    work, key = setting.method.personalize, setting.derive_keys(Stream.PERSONALIZE, 0, [8])[0]
    own = trees.full_like(setting.task.params, 3.0)
    tuned = run_single_client(
        work, setting.task.params, own, ClientWork(setting.make_client_dataset(), 8, key)
    )
    plan = work.phases[0].plan
    assert (plan.epochs, plan.specs[0].split) == (2, "adapt")
    assert distance(tuned, descended(setting, Stream.PERSONALIZE, 8, plan, 0.05)) < 1e-12


def test_as_much_travels_as_with_fedavg() -> None:
    cohort = np.arange(4)
    costs = [
        factory.make_engine(s).train(s.init_server_state(), cohort, 0)
        for s in (on_toy(), toy_setting("fedavg"))
    ]
    assert costs[0][1:] == costs[1][1:]


def test_single_precision_stays_single() -> None:
    setting = on_toy(dtype=torch.float32)
    state, engine = train(setting, rounds=2)
    kinds = {leaf.dtype for leaf in trees.leaves((state.params, state.aux, kept(setting, engine)))}
    assert kinds == {torch.float32}


@pytest.mark.parametrize(
    ("hyper", "said"),
    [
        ({"optimizer": "adamw"}, "feddyn: .* use sgd or adam."),
        ({"alpha": 0.0}, "feddyn: alpha must be positive, got 0.0."),
    ],
)
def test_values_that_make_no_sense_are_refused(hyper: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        feddyn.HParams(**hyper)
