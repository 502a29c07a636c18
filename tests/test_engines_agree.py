"""One method, any engine, any chunk, any order: the same numbers."""

import pickle
import shutil
from typing import Any

import numpy as np
import pytest
import torch
from agreement import clone, distance
from scenarios import toy_data, toy_setting, toy_task, train

from fedtailor import engines
from fedtailor.engines import Setting
from fedtailor.engines.vectorised import _stack_size

ROWS: list[tuple[str, dict[str, Any]]] = [
    ("local", {"when": "sampled"}),
    ("local", {"when": "end", "budget": 3}),
    ("centralised", {"epochs": 1}),
    ("fedavg", {"epochs": 2}),
    ("fedavg", {"steps": 3, "weigh": "examples"}),
    ("fedavg", {"optimiser": "adam", "lr": 0.01, "server_optimiser": "adam", "server_lr": 0.05}),
    ("fedavg", {"momentum": 0.9, "server_optimiser": "yogi", "server_lr": 0.05}),
    ("fedavg", {"server_momentum": 0.9, "weight_decay": 0.01}),
    ("fedprox", {"lam": 0.5, "epochs": 2}),
    ("fedsim", {"decay_rounds": 5}),
    ("fedsim", {"product": "exact", "decay": "cosine", "decay_rounds": 5}),
    ("fedsim", {"at": "server", "product": "exact"}),
    ("fedsim", {"at": "mean"}),
    ("fedsim", {"first": "server", "server_batch": 5}),
    ("fedsim", {"first": "scaled", "lam": 0.3}),
    ("fedsim", {"lam": 0.0}),
    ("fedsim", {"c": 0.0}),
]
NAMED = [pytest.param(*row, id=f"{row[0]}-{'-'.join(f'{k}={v}' for k, v in row[1].items())}") for row in ROWS]


def outcome(setting: Setting, rounds: int = 5, **options: Any) -> tuple[Any, ...]:
    """Everything that a run leaves behind: state, every client's memory, every score."""
    state, engine = train(setting, rounds, **options)
    everybody = np.arange(setting.data.clients.count)
    memory = engine.memory.gather(everybody, setting.method.new_memory(state))
    tested = np.concatenate([setting.data.groups[group] for group in ("local", "validation", "new")])
    return tuple(state), memory, tuple(engine.score(state, tested))


@pytest.mark.parametrize(("name", "hyper"), NAMED)
def test_engines_and_chunks_agree(name: str, hyper: dict[str, Any]) -> None:
    reference = outcome(toy_setting(name, **hyper), name="one_by_one")
    for chunk in (1, 3, None):
        assert distance(reference, outcome(toy_setting(name, **hyper), name="vectorised", chunk=chunk)) < 1e-10


def test_engines_agree_with_dropout() -> None:
    task = toy_task(dropout=0.4)
    runs = [outcome(toy_setting("fedsim", task=task, epochs=2), name=name) for name in ("one_by_one", "vectorised")]
    assert distance(*runs) < 1e-10
    assert distance(runs[0][0][0], outcome(toy_setting("fedsim", epochs=2), name="one_by_one")[0][0]) > 1e-3


@pytest.mark.parametrize(("name", "hyper"), NAMED)
@pytest.mark.parametrize("engine_name", engines.NAMES)
def test_order_of_the_cohort_does_not_matter(name: str, hyper: dict[str, Any], engine_name: str) -> None:
    people = toy_setting(name, **hyper).data.groups["train"][:6]
    results = []
    for cohort in (people, people[::-1].copy()):
        setting = toy_setting(name, **hyper)
        engine, state = engines.make(setting, engine_name, chunk=4), setting.first_state()
        if setting.method.client.phases:
            state = engine.serve(state, engine.train(state, cohort, 0).gathered, 0)
        results.append((state, engine.memory.gather(people, setting.method.new_memory(state))))
    assert distance(*results) < 1e-10


@pytest.mark.parametrize(("name", "hyper"), NAMED)
def test_inputs_are_not_changed(name: str, hyper: dict[str, Any]) -> None:
    setting = toy_setting(name, **hyper)
    data = (setting.data.clients.x.copy(), setting.data.clients.y.copy())
    for engine_name in engines.NAMES:
        engine, state = engines.make(setting, engine_name), setting.first_state()
        before = clone(tuple(state))
        cohort = setting.data.groups["train"][:4]
        gathered = engine.train(state, cohort, 0).gathered
        kept = clone(tuple(gathered))
        engine.serve(state, gathered, 0)
        engine.score(state, cohort)
        assert distance(before, tuple(state)) == 0.0
        assert distance(kept, tuple(gathered)) == 0.0
    assert np.array_equal(data[0], setting.data.clients.x)
    assert np.array_equal(data[1], setting.data.clients.y)


@pytest.mark.parametrize(("name", "hyper"), NAMED)
def test_methods_pickle(name: str, hyper: dict[str, Any]) -> None:
    setting = toy_setting(name, **hyper)
    copied = pickle.loads(pickle.dumps(setting.method))
    assert distance(train(setting)[0], train(toy_setting(copied))[0]) == 0.0


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


COMPILED = [("local", {"when": "sampled"}), ("fedavg", {"epochs": 2}), ("fedsim", {"decay_rounds": 5})]


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
@pytest.mark.parametrize(("name", "hyper"), COMPILED, ids=[row[0] for row in COMPILED])
def test_compiled_steps_agree(name: str, hyper: dict[str, Any]) -> None:
    data = toy_data(sizes=(24, 17, 9, 8, 3, 2, 1, 1))
    reference = outcome(toy_setting(name, data=data, **hyper), rounds=2, cohort=4, name="one_by_one")
    setting = toy_setting(name, data=data, **hyper)
    assert engines.make(setting, compile=True).notes == ()
    assert distance(reference, outcome(setting, rounds=2, cohort=4, compile=True)) < 1e-10


def test_a_compiled_stack_shrinks_in_few_sizes() -> None:
    sizes = {_stack_size(active, 10) for active in range(1, 11)}
    assert sizes == {10, 5, 3, 2, 1}
    assert all(_stack_size(active, most) >= active for most in range(1, 40) for active in range(1, most + 1))


def test_float32_agrees_within_rounding() -> None:
    task = toy_task(dtype=torch.float32)
    runs = [train(toy_setting("fedsim", task=task), name=name)[0] for name in engines.NAMES]
    assert distance(runs[0].params, task.params) > 0.0
    assert distance(*runs) < 1e-5
