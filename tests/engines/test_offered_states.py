"""Newcomers who try what others offer: by brute force, in both engines, from Python and from a
run's folder.
"""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedtailor as ft
from agreement import distance
from fedtailor import methods
from fedtailor.core import trees
from fedtailor.core.types import Params, ServerState
from fedtailor.engines import factory
from fedtailor.engines.context import EngineContext
from fedtailor.personalization.personal_model import personalize_model
from fedtailor.personalization.service import export_client, personalize
from fedtailor.prng.streams import Stream
from fedtailor.training import from_config
from fedtailor.training.overrides import read_run_config
from fedtailor.training.run_dir import RunDir
from fedtailor.training.runner import start_run
from fedtailor.training.trained_model import TrainedModel
from known import known
from oracles import descended, module_of
from scenarios import toy_data, toy_setting, toy_task, train

DATA = toy_data(sizes=(9, 6, 17, 4, 6, 12, 8, 11, 7), test=4, seed=3)
"""Six clients that train, one that validates and two new ones."""
TUNING: dict[str, Any] = {"lr": 0.3, "epochs": 4, "finetune_lr": 0.2, "finetune_epochs": 2}


def on_toy(offer: int, **hyper: Any) -> EngineContext:
    return toy_setting("fedper", data=DATA, offer=offer, **TUNING | hyper)


def loss_on(setting: EngineContext, params: Params, client: int, split: str) -> Tensor:
    rows = setting.data.clients.splits[split].get_rows(client)
    x, y = (torch.as_tensor(column[rows]) for column in setting.data.clients[:2])
    return nn.functional.cross_entropy(module_of(params)(x), y).detach()


def adapted(
    setting: EngineContext, state: ServerState, client: int, giver: int
) -> tuple[Params, Params]:
    """The model with an offered head, before and after fine-tuning with torch.optim."""
    head = trees.take_row(
        setting.client_states.gather(np.array([giver]), setting.method.init_client_state(state)), 0
    )[0]
    before = {**setting.method.broadcast(state), **head}
    return before, descended(
        setting, Stream.PERSONALIZE, client, setting.method.personalize.phases[0].plan, 0.2, before
    )


@pytest.mark.parametrize("engine", factory.NAMES)
def test_a_newcomer_takes_the_head_with_which_it_adapts_best(engine: str) -> None:
    setting = on_toy(offer=9)
    state, run = train(
        setting, 3, 4, name=engine, **({"chunk": 3} if engine == "vectorized" else {})
    )
    known = np.flatnonzero(setting.client_states.initialized.numpy())
    strangers = np.flatnonzero(~setting.client_states.initialized.numpy())
    assert setting.select_offered_clients().tolist() == known.tolist()
    scores, taken = run.score(state, strangers), []
    for place, client in enumerate(map(int, strangers)):
        tried = [adapted(setting, state, client, giver) for giver in known.tolist()]
        losses = torch.stack([loss_on(setting, after, client, "adapt") for _, after in tried])
        taken.append(int(losses.argmin()))
        for figures, params in zip(scores, tried[taken[-1]], strict=True):
            total, weight = figures["loss"][place]
            assert abs(float(total / weight - loss_on(setting, params, client, "test"))) < 1e-10
    assert len(set(taken)) > 1  # not everybody likes the same head


def test_whoever_remembers_something_keeps_it() -> None:
    state, engine = train(setting := on_toy(offer=9), 3, 4)
    known = np.flatnonzero(setting.client_states.initialized.numpy())
    for place, client in enumerate(map(int, known)):
        own = adapted(setting, state, client, client)
        for figures, params in zip(engine.score(state, known), own, strict=True):
            total, weight = figures["loss"][place]
            assert abs(float(total / weight - loss_on(setting, params, client, "test"))) < 1e-10
    before = setting.client_states.initialized.clone()
    engine.score(state, np.arange(9))
    assert torch.equal(
        setting.client_states.initialized, before
    )  # trying somebody's head is not keeping it


@pytest.mark.parametrize("engine", factory.NAMES)
def test_without_offers_a_newcomer_begins_with_the_first_head(engine: str) -> None:
    setting = on_toy(offer=0)
    state, run = train(setting, 2, 3, name=engine)
    scores, client = run.score(state, np.array([8])), 8
    first = {**toy_task().params, **setting.method.broadcast(state)}
    total, weight = scores.before["loss"][0]
    assert abs(float(total / weight - loss_on(setting, first, client, "test"))) < 1e-12


@pytest.mark.parametrize("offer", [1, 2, 4])
def test_no_more_are_tried_than_are_offered_and_always_the_same(offer: int) -> None:
    people = []
    for engine in factory.NAMES:
        setting = on_toy(offer, epochs=1)
        train(setting, 3, 4, name=engine)
        people.append(setting.select_offered_clients().tolist())
    known = np.flatnonzero(setting.client_states.initialized.numpy())
    assert people[0] == people[1]
    assert len(people[0]) == len(set(people[0])) == min(offer, len(known))
    assert set(people[0]) <= set(known.tolist())


def test_strangers_who_trained_offer_nothing() -> None:
    setting = on_toy(offer=9, epochs=1)
    state, engine = setting.init_server_state(), factory.make_engine(setting)
    assert setting.select_offered_clients().tolist() == []
    engine.score(state, np.array([8]))  # nobody has anything to offer yet
    engine.train(state, np.array([2, 8]), 0)
    assert setting.select_offered_clients().tolist() == [2]


@pytest.mark.parametrize("engine", factory.NAMES)
def test_offered_memories_are_counted_as_sent(engine: str) -> None:
    cohort, costs = np.array([0, 3, 5]), []
    for offer in (0, 2):
        setting = on_toy(offer, epochs=1)
        costs.append(
            factory.make_engine(setting, engine).train(setting.init_server_state(), cohort, 0)
        )
    head = trees.nbytes({name: setting.task.params[name] for name in setting.task.head_param_names})
    assert costs[1].bytes_up == costs[0].bytes_up + 3 * head
    assert costs[1].bytes_down == costs[0].bytes_down


@pytest.mark.parametrize("engine", factory.NAMES)
def test_with_nothing_personal_there_is_nothing_to_offer(engine: str) -> None:
    setting = on_toy(offer=3, personal="none", epochs=1)
    state, run = train(setting, 2, 3, name=engine)
    plain = toy_setting("fedavg", data=DATA, **TUNING)
    expected = factory.make_engine(plain).score(state, np.array([8]))
    assert distance(tuple(run.score(state, np.array([8]))), tuple(expected)) < 1e-12


def constant(memory: Any, state: ServerState) -> Any:
    return memory


def test_personalize_takes_the_best_head_too() -> None:
    fitted = ft.fit("fedper", toy_task(), DATA, rounds=3, cohort=4, offer=9, batch=8, **TUNING)
    setting, state = fitted.context, fitted.state
    fresh = setting.method.init_client_state(state)
    chosen = []
    for client in (7, 8):
        rows = DATA.clients.splits["train"].get_rows(client)
        x, y = DATA.clients.x[rows], DATA.clients.y[rows]
        tried = []
        for giver in setting.select_offered_clients():
            head = trees.take_row(setting.client_states.gather(np.array([giver]), fresh), 0)
            method = setting.method._replace(
                init_client_state=partial(constant, head), num_offered_states=0
            )
            model = TrainedModel(method, setting.task, state, DATA.example_spec, setting.seed)
            tried.append(personalize_model(model, x, y).params)
        losses = [
            nn.functional.cross_entropy(module_of(p)(torch.as_tensor(x)), torch.as_tensor(y))
            for p in tried
        ]
        chosen.append(int(torch.stack(losses).argmin()))
        assert distance(fitted.personalize(x, y).params, tried[chosen[-1]]) < 1e-12
    assert any(chosen)


def test_a_runs_folder_offers_them_too(tmp_path: Path) -> None:
    words = "method=fedper offer=3 lr=0.5 steps=4 rounds=2 data.clients=12"
    words += " hidden=8 cohort=4 threads=1 finetune_epochs=1"
    out = tmp_path / "run"
    record = start_run(read_run_config(words.split()), out).record
    scores = known(record.scores)["unseen"]
    spec = RunDir(out).read_config()
    data = from_config.load_dataset(spec)
    for place, client in enumerate(scores.ids):
        made = export_client(out, client, tmp_path / client)
        splits, number = data.clients.splits, data.client_names.tolist().index(client)
        x, y = (column[splits["test"].get_rows(number)] for column in data.clients[:2])
        loss = nn.functional.cross_entropy(
            made.compute_outputs(x), torch.as_tensor(y).long()
        ).item()
        assert loss == pytest.approx(scores.after["loss"][place], rel=1e-4)
    x, y = (column[splits["train"].get_rows(number)] for column in data.clients[:2])
    np.savez(tmp_path / "mine.npz", x=x, y=y)
    found = personalize(out, tmp_path / "mine.npz", tmp_path / "mine").params
    net = from_config.get_model_factory(spec, data.example_spec)
    fitted = ft.fit(
        "fedper", net, data, rounds=2, cohort=spec.cohort, seed=spec.seed, **spec.hparams
    )
    assert distance(fitted.personalize(x, y).params, found) == 0.0
    setting = fitted.context
    model = TrainedModel(setting.method, setting.task, fitted.state, data.example_spec, spec.seed)
    alone = personalize_model(model, x, y)  # which is offered nothing
    assert distance(alone.params, found) > 1e-4  # with the first head


def test_what_is_more_than_layers_cannot_be_offered() -> None:
    for name in ("per+scaffold", "per+ditto"):
        assert methods.build(name, toy_task()).num_offered_states == 0
        with pytest.raises(ft.InputError, match="cannot be offered to newcomers; set offer=0"):
            methods.build(name, toy_task(), offer=2)
