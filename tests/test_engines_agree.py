"""One method, any engine, any chunk, any order: the same numbers."""

from typing import Any

import numpy as np
import pytest
import torch

from agreement import distance
from fedtailor import engines
from fedtailor.engines import Setting, vectorised
from fedtailor.engines.programs import stack_size, stepped
from scenarios import toy_data, toy_setting, toy_task, train


def outcome(setting: Setting, rounds: int = 5, **options: Any) -> tuple[Any, ...]:
    """Everything that a run leaves behind: state, every client's memory, every score."""
    state, engine = train(setting, rounds, **options)
    everybody = np.arange(setting.data.clients.count)
    memory = engine.memory.gather(everybody, setting.method.new_memory(state))
    tested = np.concatenate([setting.data.groups[group] for group in ("local", "validation", "new")])
    return tuple(state), memory, tuple(engine.score(state, tested))


@pytest.mark.parametrize(
    ("method", "hyper"),
    [("fedsim", {"epochs": 2}), ("fedmeta", {"sets": "whole", "inner_steps": 2}), ("afml", {"steps": 2})],
)
def test_engines_agree_with_dropout(method: str, hyper: dict[str, Any]) -> None:
    task, data = toy_task(dropout=0.4), toy_data(sizes=(20, 9, 1, 2, 13, 8, 3, 5))
    runs = [outcome(toy_setting(method, task, data, **hyper), 2, cohort=4, name=name) for name in engines.NAMES]
    assert distance(*runs) < 1e-10
    plain = train(toy_setting(method, data=data, **hyper), 2, cohort=4)[0]
    assert distance(runs[0][0][0], plain.params) > 1e-3


@pytest.mark.parametrize("method", ["fedsim", "fedmeta", "scaffold", "fsl"])
@pytest.mark.parametrize("apart", [False, True])
def test_engines_agree_where_every_client_goes_through_its_steps_alone(
    method: str, apart: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = list[int]()

    def spied(step: Any, shared: bool, given: Any, carry: Any, batches: Any, index: torch.Tensor) -> Any:
        sizes.append(1 if shared or not batches else len(index))
        return stepped(step, shared, given, carry, batches, index)

    monkeypatch.setattr(vectorised, "stepped", spied)
    monkeypatch.setattr(vectorised, "convolves_much", lambda model: apart)
    data = toy_data(sizes=(20, 9, 1, 2, 13, 8, 3, 5))
    runs = [outcome(toy_setting(method, data=data), 2, cohort=4, name=name) for name in engines.NAMES]
    assert distance(*runs) < 1e-10
    assert (max(sizes) == 1) == apart


@pytest.mark.parametrize("cohort", [1, 9])
def test_cohorts_of_one_and_of_all(cohort: int) -> None:
    runs = [train(toy_setting("fedsim"), cohort=cohort, name=name)[0] for name in engines.NAMES]
    assert distance(*runs) < 1e-10


def test_clients_with_one_example_alone() -> None:
    data = toy_data(sizes=(1, 1, 1, 1, 1))
    runs = [outcome(toy_setting("fedsim", data=data, epochs=3), cohort=2, name=name) for name in engines.NAMES]
    assert distance(*runs) < 1e-10


def test_clients_with_nothing_to_test_on_score_nothing() -> None:
    data = toy_data(test=0)
    for name in engines.NAMES:
        setting = toy_setting("fedavg", data=data)
        scored = engines.make(setting, name).score(setting.first_state(), data.groups["new"])
        assert all(bool((sums == 0).all()) for sums in scored.after.values())


def test_a_compiled_stack_shrinks_in_few_sizes() -> None:
    sizes = {stack_size(active, 10) for active in range(1, 11)}
    assert sizes == {10, 8, 5, 4, 3, 2, 1}
    assert all(stack_size(active, most) >= active for most in range(1, 40) for active in range(1, most + 1))


def test_float32_agrees_within_rounding() -> None:
    task = toy_task(dtype=torch.float32)
    runs = [train(toy_setting("fedsim", task=task), name=name)[0] for name in engines.NAMES]
    assert distance(runs[0].params, task.params) > 0.0
    assert distance(*runs) < 1e-5
