"""What holds for every method and every composition: one contract, any engine."""

import pickle
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agreement import clone, distance
from contract import ROWS, as_params, select_representatives
from fedtailor import methods
from fedtailor.core import trees
from fedtailor.core.types import Tree
from fedtailor.engines import factory
from fedtailor.engines.client_state import ClientStateStore
from fedtailor.engines.context import EngineContext
from fedtailor.training.checkpoint import CheckpointManager
from fedtailor.training.round_log import RoundLog
from scenarios import toy_data, toy_setting, train

EACH = pytest.mark.parametrize(("name", "hyper"), as_params(ROWS))
REPRESENTATIVES = pytest.mark.parametrize(
    ("name", "hyper"), as_params(ROWS, select_representatives(ROWS))
)
"""For properties that a method's options hardly touch: one row a method by default, all of them by
`make test-all`.
"""
SIZES = (1, 2, 3, 5, 9, 12, 8)
CHEAP = {"batch": 4, "finetune_steps": 2}


def setting_of(name: str, hyper: dict[str, Any], **options: Any) -> EngineContext:
    """The method on seven unequal clients, one of them with a single example; two are new, one
    validates.
    """
    return toy_setting(name, data=toy_data(sizes=SIZES, test=3), **CHEAP | options | hyper)


def outcome(setting: EngineContext, **options: Any) -> tuple[Any, ...]:
    """Everything that a run leaves behind: state, every client's memory, every score.

    Two rounds with those who train, then one with people never seen.
    """
    state, engine = train(setting, 2, 3, **options)
    everybody = np.arange(setting.data.clients.count)
    scores = tuple(engine.score(state, everybody))
    if setting.method.client.phases and setting.method.data_view != "pooled":
        strangers = np.concatenate(
            [setting.data.groups["validation"], setting.data.groups["unseen"]]
        )
        state = engine.update_server(state, engine.train(state, strangers, 2).cohort_update, 2)
    return (
        tuple(state),
        engine.client_states.gather(everybody, setting.method.init_client_state(state)),
        scores,
    )


def test_every_method_is_under_contract() -> None:
    assert {name for name, _ in ROWS} >= set(methods.NAMES)
    assert {word for name, _ in ROWS for word in name.split("+")[:-1]} == set(methods.WRAPPERS)


@EACH
def test_engines_and_chunks_agree(name: str, hyper: dict[str, Any]) -> None:
    reference = outcome(setting_of(name, hyper), name="sequential")
    assert trees.is_finite(reference[0])
    for chunk in (2, None):
        assert (
            distance(reference, outcome(setting_of(name, hyper), name="vectorized", chunk=chunk))
            < 1e-10
        )


@REPRESENTATIVES
def test_the_order_of_the_cohort_does_not_matter(name: str, hyper: dict[str, Any]) -> None:
    people = setting_of(name, hyper).data.groups["train"]
    results = []
    for cohort in (people, people[::-1].copy()):
        setting = setting_of(name, hyper)
        engine, state = factory.make_engine(setting, chunk=2), setting.init_server_state()
        if setting.method.client.phases:
            state = engine.update_server(state, engine.train(state, cohort, 0).cohort_update, 0)
        results.append(
            (
                tuple(state),
                engine.client_states.gather(people, setting.method.init_client_state(state)),
            )
        )
    assert distance(*results) < 1e-10


@REPRESENTATIVES
def test_nothing_that_is_handed_over_is_changed(name: str, hyper: dict[str, Any]) -> None:
    setting = setting_of(name, hyper)
    columns = [column.copy() for column in setting.data.clients[:2]]
    for engine_name in factory.NAMES:
        engine, state = factory.make_engine(setting, engine_name), setting.init_server_state()
        before, cohort = clone(tuple(state)), setting.data.groups["train"][:2]
        gathered = engine.train(state, cohort, 0).cohort_update
        kept, memory = clone(tuple(gathered)), clone(engine.client_states.read_rows(cohort))
        engine.update_server(state, gathered, 0)
        engine.score(state, setting.data.groups["unseen"])
        assert distance(before, tuple(state)) == 0.0
        assert distance(kept, tuple(gathered)) == 0.0
        assert distance(memory, engine.client_states.read_rows(cohort)) == 0.0
    assert all(np.array_equal(a, b) for a, b in zip(columns, setting.data.clients[:2], strict=True))


@REPRESENTATIVES
def test_methods_pickle_and_repeat_themselves(name: str, hyper: dict[str, Any]) -> None:
    setting = setting_of(name, hyper)
    copied = pickle.loads(pickle.dumps(setting.method))
    again = replace(
        setting, method=copied, client_states=ClientStateStore(setting.data.clients.count)
    )
    assert distance(outcome(setting), outcome(again)) == 0.0


def shapes(tree: Tree) -> list[tuple[torch.Size, torch.dtype]]:
    return [(leaf.shape, leaf.dtype) for leaf in trees.leaves(tree)]


@REPRESENTATIVES
def test_shapes_stay_what_they_are(name: str, hyper: dict[str, Any]) -> None:
    setting = setting_of(name, hyper)
    method, first = setting.method, setting.init_server_state()
    (state, engine), cohort = train(setting, 2, 3), setting.data.groups["train"]
    assert shapes(tuple(first)) == shapes(tuple(state))
    fresh = method.init_client_state(first)
    assert shapes(fresh) == shapes(method.init_client_state(state))
    known = cohort[engine.client_states.initialized.numpy()[cohort]]
    kept = [(leaf.shape[1:], leaf.dtype) for leaf in engine.client_states.read_rows(known)]
    assert kept == shapes(fresh) or not method.client.phases
    if method.client.phases:
        sent, change = (
            method.broadcast(first),
            engine.train(state, cohort[:3], 2).cohort_update.update,
        )
        travelled = list(zip(trees.leaf_names(sent), shapes(sent), strict=True))
        for leaf, shape in zip(trees.leaf_names(change), shapes(change), strict=True):
            assert any(
                f".{known}".endswith(f".{leaf}") and shape == like for known, like in travelled
            )


@REPRESENTATIVES
def test_a_checkpoint_gives_back_exactly_what_went_in(
    name: str, hyper: dict[str, Any], tmp_path: Path
) -> None:
    setting = setting_of(name, hyper)
    state, engine = train(setting, 2, 3)
    round_log = RoundLog(tmp_path / "rounds.jsonl")
    CheckpointManager(tmp_path, round_log).save(2, state, engine.client_states)
    fresh = replace(setting, client_states=ClientStateStore(setting.data.clients.count))
    like = setting.init_server_state()
    found = CheckpointManager(tmp_path, round_log).restore_latest(
        like, fresh.client_states, setting.method.init_client_state(like)
    )
    assert found is not None
    assert distance(tuple(found.state), tuple(state)) == 0.0
    people = np.arange(setting.data.clients.count)
    first = setting.method.init_client_state(state)
    assert (
        distance(
            engine.client_states.gather(people, first), fresh.client_states.gather(people, first)
        )
        == 0.0
    )
    on = [factory.make_engine(each).score(found.state, people) for each in (setting, fresh)]
    assert distance(tuple(on[0]), tuple(on[1])) == 0.0


@REPRESENTATIVES
def test_clients_with_one_example_each(name: str, hyper: dict[str, Any]) -> None:
    data = toy_data(
        sizes=(1, 1, 1, 1, 1, 2), test=1
    )  # the last one is new; those who train have one example each
    runs = [
        train(toy_setting(name, data=data, **CHEAP | hyper), 1, 2, name=each)[0]
        for each in factory.NAMES
    ]
    assert distance(tuple(runs[0]), tuple(runs[1])) < 1e-10
    assert trees.is_finite(tuple(runs[0]))


COMPILED = {"fedavg-epochs=2", "fedsim-decay_rounds=5", "fedmeta-per-inner=meta-sgd"}


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
@pytest.mark.parametrize(("name", "hyper"), as_params(ROWS, COMPILED))
def test_compiled_steps_agree(name: str, hyper: dict[str, Any]) -> None:
    data = toy_data(sizes=(24, 17, 9, 8, 3, 2, 1, 1))
    reference = outcome(toy_setting(name, data=data, **CHEAP | hyper), name="sequential")
    setting = toy_setting(name, data=data, **CHEAP | hyper)
    assert factory.make_engine(setting, compile=True).notes == ()
    assert distance(reference, outcome(setting, compile=True)) < 1e-10


@pytest.mark.gpu
@EACH
@pytest.mark.parametrize("compile", [False, True])
def test_the_gpu_agrees_with_the_cpu(name: str, hyper: dict[str, Any], compile: bool) -> None:
    on_cpu, device = setting_of(name, hyper), torch.device("cuda")
    on_gpu = replace(setting_of(name, hyper, task=on_cpu.task.to(device)), device=device)
    states = [
        train(setting, 3, compile=compile and setting is on_gpu)[0] for setting in (on_cpu, on_gpu)
    ]
    assert distance(tuple(states[0]), trees.to(tuple(states[1]), torch.device("cpu"))) < 1e-10
