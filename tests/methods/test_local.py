from typing import Any

import numpy as np
import pytest
import torch

from agreement import distance
from fedtailor.core import trees
from fedtailor.engines import factory
from fedtailor.evaluation.costs import CostMeter
from fedtailor.methods import local
from fedtailor.methods.hparams import RunFacts
from fedtailor.prng.streams import Stream
from fedtailor.training import from_config
from fedtailor.training.loop import run_rounds
from fedtailor.training.overrides import read_run_config
from oracles import descended
from scenarios import toy_setting, train


def test_a_sampled_client_goes_on_training_its_own_model() -> None:
    setting = toy_setting("local", when="sampled", epochs=2, lr=0.2)
    engine = factory.make_engine(setting)
    loop = run_rounds(setting, engine, setting.init_server_state(), 3)
    own = {int(client): setting.task.params for client in setting.data.groups["train"]}
    plan = setting.method.client.phases[0].plan
    for number in range(5):
        for client in next(loop).cohort:
            own[client] = descended(setting, Stream.CLIENT, client, plan, 0.2, own[client], number)
    people = setting.data.groups["train"]
    kept = engine.client_states.gather(people, setting.task.params)
    assert distance(kept, trees.stack([own[client] for client in people])) < 1e-12
    assert 1 < int(engine.client_states.initialized.sum()) <= len(people)


def test_at_the_end_everybody_trains_all_its_epochs() -> None:
    setting = toy_setting("local", when="end", local_epochs=4, lr=0.2)
    state, engine = train(setting)
    assert distance(state.params, setting.task.params) == 0.0
    assert not engine.client_states.initialized.any()
    plan = setting.method.personalize.phases[0].plan
    assert plan.epochs == 4
    expected = descended(setting, Stream.PERSONALIZE, 11, plan, 0.2)
    rows = setting.data.clients.splits["test"].get_rows(11)
    outputs = setting.task.compute_outputs(expected, torch.from_numpy(setting.data.clients.x[rows]))
    hits = int((outputs.argmax(1).numpy() == setting.data.clients.y[rows]).sum())
    assert engine.score(state, np.array([11])).after["accuracy"].tolist() == [[hits, len(rows)]]


@pytest.mark.parametrize("when", ["end", "sampled"])
def test_nothing_travels(when: str) -> None:
    setting = toy_setting("local", when=when)
    trained = factory.make_engine(setting).train(
        setting.init_server_state(), setting.data.groups["train"][:3], 0
    )
    assert (trained.bytes_down, trained.bytes_up) == (0, 0)


def test_centralized_is_sgd_on_the_pool() -> None:
    setting = toy_setting("centralized", epochs=2, lr=0.2)
    pool = setting.data.groups["train"]
    assert list(setting.data.client_names[pool]) == ["pooled"]
    state, _ = train(setting, rounds=1, cohort=1)
    plan = setting.method.client.phases[0].plan
    assert (
        distance(state.params, descended(setting, Stream.CLIENT, int(pool[0]), plan, 0.2)) < 1e-12
    )


FACTS = RunFacts(
    rounds=50, cohort_size=10, num_clients=30, examples_per_client=45.0, num_server_examples=0
)


@pytest.mark.parametrize(
    ("given", "epochs", "steps"),
    [
        ({}, 22, None),  # 50 * 10 / 30 = 16.7 epochs in rounds, and 5 of fine-tuning
        ({"epochs": 3}, 55, None),
        ({"epochs": 3, "finetune_epochs": 0}, 50, None),
        ({"finetune_steps": 6}, 19, None),  # two epochs, of three steps each
        ({"steps": 4}, None, 82),  # 66.7 steps in rounds, and 5 epochs of three steps
        ({"steps": 4, "finetune_steps": 1}, None, 68),
        ({"local_epochs": 3}, 3, None),
        ({"local_steps": 7, "epochs": 9}, None, 7),
        ({"when": "sampled"}, None, None),
    ],
)
def test_the_budget_is_that_of_a_client_in_all_rounds_and_of_fine_tuning(
    given: dict[str, Any], epochs: int | None, steps: int | None
) -> None:
    resolved = local.HParams(**given).resolve(FACTS)
    assert (resolved.local_epochs, resolved.local_steps) == (epochs, steps)
    assert resolved.resolve(FACTS) == resolved


@pytest.mark.parametrize("given", [{"steps": 4}, {}], ids=str)
def test_it_trains_even_if_no_round_and_no_fine_tuning_would(given: dict[str, Any]) -> None:
    resolved = local.HParams(finetune_epochs=0, **given).resolve(FACTS._replace(rounds=0))
    assert resolved.local_steps == 1 or resolved.local_epochs == 1


def test_its_gradients_are_those_of_a_client_of_fedavg_in_all_rounds() -> None:
    words = ["method=local", "data.clients=20", "rounds=12", "cohort=3", "threads=1"]
    local_config = read_run_config(words)
    data = from_config.load_dataset(local_config)
    client_ids = data.groups["train"]
    alone = CostMeter(from_config.build_context(local_config, data))
    config = read_run_config([*words, "method=fedavg"])
    fedavg = CostMeter(from_config.build_context(config, data))
    in_rounds = fedavg.compute_client_cost(client_ids).gradients * 12 * 3 / len(client_ids)
    fine_tuning = fedavg.compute_personalize_cost(client_ids).gradients
    budget = (in_rounds + fine_tuning).sum()
    spent = alone.compute_personalize_cost(client_ids).gradients.sum()
    one_epoch = fedavg.compute_client_cost(client_ids).gradients.sum()
    assert budget <= spent < budget + one_epoch


def test_built_without_a_run_it_trains_for_one_round_and_fine_tuning() -> None:
    (phase,) = toy_setting("local", epochs=2).method.personalize.phases
    assert (phase.plan.epochs, phase.plan.steps) == (7, None)
    (phase,) = toy_setting("local", local_steps=3).method.personalize.phases
    assert (phase.plan.epochs, phase.plan.steps) == (None, 3)
