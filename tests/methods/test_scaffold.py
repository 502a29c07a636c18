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
from fedtailor.methods import fedavg, scaffold
from fedtailor.prng.streams import Stream
from fedtailor.training.loop import run_rounds
from oracles import descended
from quadratics import (
    LARGEST,
    SIZES,
    after_round,
    assert_settled,
    minibatches,
    quadratic_problem,
    setting_of,
    settled,
    slope,
    vector,
)
from scenarios import built_on_toy, kept, toy_data, toy_setting, train

on_toy = partial(built_on_toy, scaffold)


@pytest.mark.parametrize("decay", [0.0, 0.05])
@pytest.mark.parametrize("cohort", [2, 6])
def test_rounds_follow_algorithm_1_of_the_paper(cohort: int, decay: float) -> None:
    problem = quadratic_problem()
    lr, rate, clients = 0.07, 0.6, len(SIZES)
    hyper = scaffold.HParams(lr=lr, epochs=2, batch=3, server_lr=rate, weight_decay=decay)
    setting = setting_of(problem, scaffold.build(problem.task, hyper))
    engine, x = factory.make_engine(setting), vector(problem.task.params)
    loop, c, own = (
        run_rounds(setting, engine, setting.init_server_state(), cohort),
        np.zeros(3),
        np.zeros((clients, 3)),
    )
    for number in range(4):
        result = next(loop)
        dx, dc = np.zeros(3), np.zeros(3)
        for i in result.cohort:
            y, batches = x.copy(), minibatches(setting, i, number)
            for features, targets in batches:
                y = y - lr * (slope(y, features, targets) + decay * y - own[i] + c)
            plus = own[i] - c + (x - y) / (len(batches) * lr)
            dx, dc, own[i] = dx + (y - x) / cohort, dc + (plus - own[i]) / cohort, plus
        x, c = x + rate * dx, c + cohort / clients * dc
    assert np.abs(vector(result.state.params) - x).max() < 1e-12
    assert np.abs(vector(result.state.aux) - c).max() < 1e-12
    assert np.abs(vector(kept(setting, engine)) - own).max() < 1e-12
    assert np.abs(c).max() > 1e-2


@pytest.mark.parametrize("cohort", [1, 4, 9])
def test_the_servers_control_is_the_mean_of_all_clients(cohort: int) -> None:
    setting = on_toy(epochs=2, server_lr=0.5)
    state, engine = train(setting, rounds=3, cohort=cohort)
    assert 0 < int(engine.client_states.initialized.sum()) <= 9
    assert (
        distance(state.aux, trees.apply(lambda leaf: leaf.mean(0), kept(setting, engine))) < 1e-12
    )
    assert float(trees.norm(state.aux)) > 1e-2


def test_a_control_variate_is_the_mean_gradient_of_the_path() -> None:
    problem, lr = quadratic_problem(), 0.1
    setting = setting_of(
        problem, scaffold.build(problem.task, scaffold.HParams(lr=lr, epochs=5, batch=LARGEST))
    )
    _, engine = train(setting, rounds=1, cohort=6)
    for i, found in enumerate(vector(kept(setting, engine))):
        w, met = vector(problem.task.params), []
        for _ in range(5):
            met.append(problem.gradient(i, w))
            w = w - lr * met[-1]
        assert np.abs(found - np.mean(met, 0)).max() < 1e-12


@pytest.mark.parametrize(("cohort", "decay"), [(6, 0.0), (4, 0.3)])
def test_it_reaches_the_global_optimum(cohort: int, decay: float) -> None:
    problem = quadratic_problem()
    hyper = scaffold.HParams(lr=0.1, epochs=4, batch=LARGEST, weight_decay=decay)
    setting = setting_of(problem, scaffold.build(problem.task, hyper))
    state, engine = train(setting, rounds=30, cohort=cohort)
    assert_settled(
        problem, decay, vector(state.params), vector(state.aux), vector(kept(setting, engine)), 1e-4
    )


def test_unequal_numbers_of_steps_do_not_bias_it() -> None:
    problem = quadratic_problem(features=2, copies=True)
    hyper: dict[str, Any] = {"lr": 0.1, "epochs": 2, "batch": 3}
    found = settled(problem, scaffold.build(problem.task, scaffold.HParams(**hyper)), rounds=20)
    assert np.abs(found - problem.optimum()).max() < 1e-3
    steps = [2 * -(-size // 3) for size in SIZES]
    limit = problem.fedavg_limit(0.1, steps)
    plain = fedavg.build(problem.task, fedavg.HParams(**hyper, weigh="clients"))
    averaged = after_round(problem, plain, limit)
    assert np.abs(averaged - limit).max() < 1e-12
    assert np.abs(limit - problem.optimum()).max() > 0.1
    assert len(set(steps)) > 2


def test_a_client_without_steps_keeps_its_control_variate() -> None:
    setting = on_toy()
    state, engine = train(setting, rounds=2, cohort=9)
    own = trees.take_row(kept(setting, engine), 3)
    idle = setting.method.client._replace(phases=())
    key = setting.derive_keys(Stream.CLIENT, 2, [3])[0]
    result = run_single_client(
        idle,
        setting.method.broadcast(state),
        own,
        ClientWork(setting.make_client_dataset(), 3, key),
    )
    assert distance(result.state, own) == 0.0
    assert distance(result.update, trees.zeros_like(result.update)) == 0.0
    assert float(trees.norm(state.aux)) > 1e-2


def test_the_first_round_is_fedavgs() -> None:
    ours, theirs = (
        train(each, rounds=1)[0]
        for each in (on_toy(epochs=2), toy_setting("fedavg", epochs=2, weigh="clients"))
    )
    assert distance(ours.params, theirs.params) < 1e-12


def test_with_one_client_it_is_fedavg() -> None:
    data = toy_data(sizes=(21, 4, 4, 4))
    assert len(data.groups["train"]) == 1
    hyper: dict[str, Any] = {"epochs": 2, "server_lr": 0.7}
    runs = (on_toy(data, **hyper), toy_setting("fedavg", data=data, **hyper))
    ours, theirs = (train(each, rounds=2, cohort=1)[0] for each in runs)
    assert distance(ours.params, theirs.params) < 1e-12
    assert float(trees.norm(ours.aux)) > 1e-2


def test_with_one_step_and_everybody_it_is_fedavg() -> None:
    ours, theirs = (
        train(each, rounds=2, cohort=9)[0]
        for each in (on_toy(steps=1), toy_setting("fedavg", steps=1, weigh="clients"))
    )
    assert distance(ours.params, theirs.params) < 1e-12
    with_fewer = (
        train(each, rounds=2, cohort=4)[0]
        for each in (on_toy(steps=1), toy_setting("fedavg", steps=1, weigh="clients"))
    )
    assert distance(*(state.params for state in with_fewer)) > 1e-3


def test_personalizing_is_sgd_from_the_model() -> None:
    setting = on_toy(finetune_epochs=2, finetune_lr=0.05, finetune_batch=5)
    state, _ = train(setting, rounds=2)
    work, key = setting.method.personalize, setting.derive_keys(Stream.PERSONALIZE, 0, [8])[0]
    own = trees.full_like(state.params, 3.0)
    tuned = run_single_client(
        work,
        setting.method.broadcast(state),
        own,
        ClientWork(setting.make_client_dataset(), 8, key),
    )
    plan = work.phases[0].plan
    assert (plan.epochs, plan.specs[0].split, plan.specs[0].size) == (2, "adapt", 5)
    assert (
        distance(tuned, descended(setting, Stream.PERSONALIZE, 8, plan, 0.05, state.params)) < 1e-12
    )


def test_twice_as_much_travels_as_with_fedavg() -> None:
    cohort = np.arange(4)
    costs = [
        factory.make_engine(s).train(s.init_server_state(), cohort, 0)
        for s in (on_toy(), toy_setting("fedavg"))
    ]
    assert (costs[0].bytes_down, costs[0].bytes_up) == (
        2 * costs[1].bytes_down,
        2 * costs[1].bytes_up,
    )
    assert costs[0].steps == costs[1].steps


def test_single_precision_stays_single() -> None:
    setting = on_toy(dtype=torch.float32)
    state, engine = train(setting, rounds=2)
    kinds = {leaf.dtype for leaf in trees.leaves((state.params, state.aux, kept(setting, engine)))}
    assert kinds == {torch.float32}


@pytest.mark.parametrize(
    ("hyper", "said"),
    [
        ({"momentum": 0.9}, "scaffold: .* momentum must be 0, got 0.9."),
        ({"optimizer": "adam"}, "scaffold: .* optimizer must be sgd, got adam."),
        ({"optimizer": "adamw"}, "scaffold: .* optimizer must be sgd, got adamw."),
        ({"server_lr": 0.0}, "scaffold: server_lr must be positive, got 0.0."),
    ],
)
def test_what_breaks_the_control_variates_is_refused(hyper: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        scaffold.HParams(**hyper)
