"""One method, any engine, any chunk, any order: the same numbers."""

from typing import Any

import numpy as np
import pytest
import torch

from agreement import distance
from contract import ROWS
from fedtailor import models
from fedtailor.compiler.step_program import choose_stack_size
from fedtailor.engines import client_loop, factory
from fedtailor.engines.client_loop import run_phase
from fedtailor.engines.context import EngineContext
from scenarios import toy_data, toy_setting, toy_task, train


def outcome(setting: EngineContext, rounds: int = 5, **options: Any) -> tuple[Any, ...]:
    """Everything that a run leaves behind: state, every client's memory, every score."""
    state, engine = train(setting, rounds, **options)
    everybody = np.arange(setting.data.clients.count)
    memory = engine.client_states.gather(everybody, setting.method.init_client_state(state))
    tested = np.concatenate(
        [setting.data.groups[group] for group in ("participating", "validation", "unseen")]
    )
    return tuple(state), memory, tuple(engine.score(state, tested))


@pytest.mark.parametrize(
    ("method", "hyper"),
    [
        ("fedsim", {"epochs": 2}),
        ("fedmeta", {"sets": "whole", "inner_steps": 2}),
        ("afml", {"steps": 2}),
    ],
)
def test_engines_agree_with_dropout(method: str, hyper: dict[str, Any]) -> None:
    task, data = toy_task(dropout=0.4), toy_data(sizes=(20, 9, 1, 2, 13, 8, 3, 5))
    runs = [
        outcome(toy_setting(method, task, data, **hyper), 2, cohort=4, name=name)
        for name in factory.NAMES
    ]
    assert distance(*runs) < 1e-10
    plain = train(toy_setting(method, data=data, **hyper), 2, cohort=4)[0]
    assert distance(runs[0][0][0], plain.params) > 1e-3


@pytest.mark.parametrize(("method", "hyper"), ROWS, ids=[name for name, _ in ROWS])
def test_clients_one_after_another_by_autograd_learn_what_the_reference_does(
    method: str, hyper: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    clients: list[int] = []

    def spied(*given: Any) -> Any:
        clients.append(given[3].client)
        return run_phase(*given)

    monkeypatch.setattr(client_loop, "run_phase", spied)
    monkeypatch.setattr(client_loop, "is_faster_unstacked", lambda model: True)
    data = toy_data(sizes=(20, 9, 1, 2, 13, 8, 3, 5))
    runs = [
        outcome(toy_setting(method, data=data, **hyper), 2, cohort=4, name=name)
        for name in factory.NAMES
    ]
    assert distance(*runs) < 1e-10
    assert len(set(clients)) > 4  # of the cohorts, and of those scored


def test_models_with_convolutions_or_recurrent_layers_go_one_after_another() -> None:
    assert client_loop.is_faster_unstacked(models.lenet((1, 28, 28), 10))
    assert client_loop.is_faster_unstacked(models.shakespeare())
    assert not client_loop.is_faster_unstacked(models.mlp(4, (3,), 2))


@pytest.mark.parametrize("cohort", [1, 9])
def test_cohorts_of_one_and_of_all(cohort: int) -> None:
    runs = [train(toy_setting("fedsim"), cohort=cohort, name=name)[0] for name in factory.NAMES]
    assert distance(*runs) < 1e-10


def test_clients_with_one_example_alone() -> None:
    data = toy_data(sizes=(1, 1, 1, 1, 1))
    runs = [
        outcome(toy_setting("fedsim", data=data, epochs=3), cohort=2, name=name)
        for name in factory.NAMES
    ]
    assert distance(*runs) < 1e-10


def test_clients_with_nothing_to_test_on_score_nothing() -> None:
    data = toy_data(test=0)
    for name in factory.NAMES:
        setting = toy_setting("fedavg", data=data)
        scored = factory.make_engine(setting, name).score(
            setting.init_server_state(), data.groups["unseen"]
        )
        assert all(bool((sums == 0).all()) for sums in scored.after.values())


def test_a_compiled_stack_shrinks_in_few_sizes() -> None:
    sizes = {choose_stack_size(active, 10) for active in range(1, 11)}
    assert sizes == {10, 8, 5, 4, 3, 2, 1}
    assert all(
        choose_stack_size(active, most) >= active
        for most in range(1, 40)
        for active in range(1, most + 1)
    )


def test_float32_agrees_within_rounding() -> None:
    task = toy_task(dtype=torch.float32)
    runs = [train(toy_setting("fedsim", task=task), name=name)[0] for name in factory.NAMES]
    assert distance(runs[0].params, task.params) > 0.0
    assert distance(*runs) < 1e-5
