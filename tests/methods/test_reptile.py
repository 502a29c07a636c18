from typing import Any

import numpy as np
import pytest
import torch

from agreement import distance
from fedtailor.core import trees
from fedtailor.engines import factory
from fedtailor.engines.base import ClientWork
from fedtailor.engines.context import EngineContext
from fedtailor.engines.single_client import run_single_client
from fedtailor.errors import InputError
from fedtailor.methods import reptile
from fedtailor.methods.hparams import RunFacts
from fedtailor.prng.streams import Stream
from oracles import descended
from scenarios import toy_setting, toy_task, train


def on_toy(**hyper: Any) -> EngineContext:
    return toy_setting(reptile.build(toy_task(), reptile.HParams(**{"batch": 8} | hyper)))


def test_rounds_move_part_of_the_way_to_what_torch_trains() -> None:
    setting = on_toy(steps=4, lr=0.2, epsilon=0.3)
    state, _ = train(setting, rounds=2, cohort=9)
    plan, theta = setting.method.client.phases[0].plan, setting.task.params
    assert plan.steps == 4
    for number in range(2):
        people = setting.data.groups["train"]
        models = [
            descended(setting, Stream.CLIENT, int(i), plan, 0.2, theta, number) for i in people
        ]
        theta = {
            name: 0.7 * w + 0.3 * torch.stack([m[name] for m in models]).mean(0)
            for name, w in theta.items()
        }
    assert distance(state.params, theta) < 1e-12


@pytest.mark.parametrize(
    "hyper", [{"epochs": 2}, {"optimizer": "adam", "lr": 0.01, "steps": 3}], ids=str
)
def test_with_epsilon_one_it_is_fedavg(hyper: dict[str, Any]) -> None:
    ours, theirs = (
        train(each, 2)[0]
        for each in (on_toy(epsilon=1.0, **hyper), toy_setting("fedavg", weigh="clients", **hyper))
    )
    assert distance(ours.params, theirs.params) < 1e-12
    assert distance(train(on_toy(epsilon=0.9, **hyper), 2)[0].params, theirs.params) > 1e-3


def test_with_one_step_it_is_fedavg_at_another_rate() -> None:
    ours = train(on_toy(steps=1, lr=0.4, epsilon=0.25), 2, cohort=4)[0]
    theirs = train(toy_setting("fedavg", steps=1, lr=0.1, weigh="clients"), 2, cohort=4)[0]
    assert distance(ours.params, theirs.params) < 1e-12
    several = train(on_toy(steps=2, lr=0.4, epsilon=0.25), 2, cohort=4)[0]
    assert (
        distance(
            several.params,
            train(toy_setting("fedavg", steps=2, lr=0.1, weigh="clients"), 2, cohort=4)[0].params,
        )
        > 1e-3
    )


@pytest.mark.parametrize(
    ("decay", "factors"),
    [("linear", [1, 0.75, 0.5, 0.25, 0]), ("cosine", (1 + np.cos(np.pi * np.arange(5) / 4)) / 2)],
)
def test_epsilon_decays(decay: str, factors: list[float]) -> None:
    setting = on_toy(epsilon=0.8, decay=decay, decay_rounds=4)
    engine, state = factory.make_engine(setting), setting.init_server_state()
    for number, factor in enumerate(factors):
        gathered = engine.train(state, setting.data.groups["train"][:3], number).cohort_update
        new = engine.update_server(state, gathered, number)
        expected = {
            name: w + 0.8 * factor * gathered.update[name] for name, w in state.params.items()
        }
        assert distance(new.params, expected) < 1e-12
        state = new._replace(round=torch.full_like(state.round, number + 1))
    assert float(trees.norm(gathered.update)) > 1e-3


def test_the_decay_ends_with_the_run_unless_said_otherwise() -> None:
    facts = RunFacts(
        rounds=30, cohort_size=5, num_clients=9, examples_per_client=8.0, num_server_examples=0
    )
    assert reptile.HParams(decay="linear").resolve(facts).decay_rounds == 30
    assert reptile.HParams(decay="linear", decay_rounds=7).resolve(facts).decay_rounds == 7


def test_personalizing_is_sgd_from_the_model() -> None:
    setting = on_toy(finetune_steps=3, finetune_lr=0.05)
    work, key = setting.method.personalize, setting.derive_keys(Stream.PERSONALIZE, 0, [8])[0]
    tuned = run_single_client(
        work, setting.task.params, (), ClientWork(setting.make_client_dataset(), 8, key)
    )
    plan = work.phases[0].plan
    assert (plan.steps, plan.specs[0].split) == (3, "adapt")
    assert distance(tuned, descended(setting, Stream.PERSONALIZE, 8, plan, 0.05)) < 1e-12


@pytest.mark.parametrize(
    ("hyper", "said"),
    [
        ({"epsilon": 0.0}, "reptile: epsilon must be positive, got 0.0."),
        ({"decay_rounds": 0}, "reptile: decay_rounds must be positive, got 0."),
        ({"decay": "slow"}, "reptile: decay must be constant or linear or cosine, got 'slow'."),
    ],
)
def test_values_out_of_range_are_refused(hyper: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        reptile.HParams(**hyper)
