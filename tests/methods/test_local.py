import numpy as np
import pytest
import torch

from agreement import distance
from fedtailor.core import trees
from fedtailor.engines import factory
from fedtailor.prng.streams import Stream
from fedtailor.training.loop import run_rounds
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
