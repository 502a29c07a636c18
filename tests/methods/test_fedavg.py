import numpy as np
import pytest
import torch
from torch import nn

from agreement import distance
from fedtailor.core import trees
from fedtailor.engines.base import ClientWork
from fedtailor.engines.single_client import run_single_client
from fedtailor.methods import fedavg
from fedtailor.prng.streams import Stream
from oracles import descended, module_of
from quadratics import LARGEST, after_round, quadratic_problem
from scenarios import toy_data, toy_setting, toy_task, train, trained


def test_a_round_is_the_mean_of_what_torch_trains() -> None:
    setting = toy_setting("fedavg", epochs=3, lr=0.2, weigh="clients")
    state, _ = train(setting, rounds=1, cohort=9)
    plan = setting.method.client.phases[0].plan
    models = [
        descended(setting, Stream.CLIENT, int(i), plan, 0.2) for i in setting.data.groups["train"]
    ]
    assert (
        distance(state.params, trees.apply(lambda *each: torch.stack(each).mean(0), *models))
        < 1e-12
    )


def test_weighing_by_examples() -> None:
    setting = toy_setting("fedavg")
    state, _ = train(setting, rounds=1, cohort=9)
    people, plan = setting.data.groups["train"], setting.method.client.phases[0].plan
    sizes = setting.data.clients.splits["train"].compute_sizes()[people]
    models = [descended(setting, Stream.CLIENT, int(i), plan, 0.1) for i in people]
    weights = sizes / sizes.sum()
    expected = trees.apply(
        lambda *each: sum(w * m for w, m in zip(weights, each, strict=True)), *models
    )
    assert distance(state.params, expected) < 1e-12


def test_one_client_and_one_step_is_sgd() -> None:
    data = toy_data(sizes=(20, 4, 4, 4))
    setting = toy_setting("fedavg", data=data, steps=1, lr=0.3, batch=20)
    assert len(data.groups["train"]) == 1
    state, _ = train(setting, rounds=10, cohort=1)
    model = module_of(setting.task.params)
    optimizer = torch.optim.SGD(model.parameters(), 0.3)
    rows = data.clients.splits["train"].get_rows(0)
    x, y = torch.from_numpy(data.clients.x[rows]), torch.from_numpy(data.clients.y[rows])
    for _ in range(10):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    assert distance(state.params, dict(model.state_dict())) < 1e-12


@pytest.mark.parametrize("rule", ["sgd", "momentum", "adam", "yogi"])
def test_server_optimizers_follow_their_equations(rule: str) -> None:
    rate, momentum = 0.05, 0.9 if rule == "momentum" else 0.0
    name = "sgd" if rule == "momentum" else rule
    setting = toy_setting("fedavg", server_optimizer=name, server_lr=rate, server_momentum=momentum)
    _, engine = train(setting, rounds=0)
    state = setting.init_server_state()
    theta = {k: v.numpy().copy() for k, v in state.params.items()}
    m = {k: np.zeros_like(v) for k, v in theta.items()}
    v = {k: np.full_like(w, 1e-6 if rule == "yogi" else 0.0) for k, w in theta.items()}
    for number in range(4):
        gathered = engine.train(state, setting.data.groups["train"][:4], number).cohort_update
        state = engine.update_server(state, gathered, number)
        for k, delta in gathered.update.items():
            d = delta.numpy()
            if name == "sgd":
                m[k] = momentum * m[k] + d
                theta[k] = theta[k] + rate * m[k]
                continue
            m[k] = 0.9 * m[k] + 0.1 * d
            v[k] = (
                0.99 * v[k] + 0.01 * d**2
                if rule == "adam"
                else v[k] - 0.01 * d**2 * np.sign(v[k] - d**2)
            )
            theta[k] = theta[k] + rate * m[k] / (np.sqrt(v[k]) + 1e-3)
    assert distance(state.params, {k: torch.from_numpy(w) for k, w in theta.items()}) < 1e-12


def test_personalizing_is_sgd_on_the_client() -> None:
    setting = toy_setting("fedavg", finetune_epochs=2, finetune_lr=0.05)
    key = setting.derive_keys(Stream.PERSONALIZE, 0, [8])[0]
    tuned = run_single_client(
        setting.method.personalize,
        setting.task.params,
        (),
        ClientWork(setting.make_client_dataset(), 8, key),
    )
    plan = setting.method.personalize.phases[0].plan
    assert plan.epochs == 2
    assert distance(tuned, descended(setting, Stream.PERSONALIZE, 8, plan, 0.05)) < 1e-12


def test_fedavg_learns() -> None:
    setting = toy_setting("fedavg", epochs=2, lr=0.3)
    start, (state, engine) = setting.init_server_state(), train(setting, rounds=60, cohort=9)
    people = setting.data.groups["participating"]
    before, after = (engine.score(s, people).before["accuracy"] for s in (start, state))
    assert (
        float(after[:, 0].sum() / after[:, 1].sum())
        > float(before[:, 0].sum() / before[:, 1].sum()) + 0.2
    )


def test_same_seed_same_bytes_other_seed_other_weights() -> None:
    assert distance(trained("fedavg"), trained("fedavg")) == 0.0
    assert distance(trained("fedavg").params, trained("fedavg", seed=8).params) > 1e-6


def test_toy_task_is_what_the_oracle_trains() -> None:
    assert distance(toy_task().params, dict(module_of(toy_task().params).state_dict())) == 0.0


def test_with_several_steps_it_stops_away_from_the_optimum() -> None:
    problem = quadratic_problem()
    hparams = fedavg.HParams(lr=0.1, epochs=4, batch=LARGEST, weigh="clients")
    method = fedavg.build(problem.task, hparams)
    limit = problem.fedavg_limit(0.1, [4] * 6)
    assert np.abs(after_round(problem, method, limit) - limit).max() < 1e-12
    assert np.abs(limit - problem.optimum()).max() > 0.05
