"""Steps by programs against the reference, without a compiler or a GPU: the same room, the same
leaving in lots.
"""

import shutil
import warnings
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad

from agreement import distance
from fedtailor.compiler.inductor import BoundStep, bind_compiled, bind_eager
from fedtailor.compiler.step_program import ProgramStep, StepBuffers, StepProgram, _step_in_place
from fedtailor.compiler.trace import trace
from fedtailor.core import trees
from fedtailor.core.functionalize import seed_initialization
from fedtailor.core.task import Task, classification
from fedtailor.core.types import Batch, Tree
from fedtailor.data.batching import BatchIndices
from fedtailor.engines import factory, stack_runner
from fedtailor.engines.chunking import (
    CACHE_BYTES,
    MAX_CHUNK,
    MIN_CLIENTS_PER_THREAD,
    PeakMemory,
    compute_cache_sized_slices,
    compute_max_chunk_size,
)
from fedtailor.engines.compile_policy import CompileMode
from fedtailor.engines.vectorized import VectorizedEngine
from fedtailor.ops import cpu
from scenarios import toy_data, toy_setting, train

SIZES = (24, 17, 9, 8, 3, 2, 1, 1)
ROWS: list[tuple[str, dict[str, Any]]] = [
    ("fedavg", {"epochs": 2, "optimizer": "adam"}),
    ("fedsim", {"epochs": 2}),
    ("fsl", {"learn_epochs": 2}),
    ("per-fedavg", {"variant": "exact"}),
    ("fedrep", {}),
    ("ditto", {}),
    ("fedmeta-per", {"inner": "meta-sgd", "offer": 3}),
    ("afml", {}),
]


@pytest.mark.parametrize(("name", "hyper"), ROWS, ids=[name for name, _ in ROWS])
@pytest.mark.parametrize("chunk", [3, MAX_CHUNK])
def test_programs_do_what_the_reference_does(name: str, hyper: dict[str, Any], chunk: int) -> None:
    found = []
    for static in (True, False):
        setting = toy_setting(name, data=toy_data(sizes=SIZES), **hyper)
        engine = (
            VectorizedEngine(setting, chunk, use_programs=True)
            if static
            else factory.make_engine(setting, "sequential")
        )
        state, people = setting.init_server_state(), setting.data.groups["train"]
        for number in range(3):
            state = engine.update_server(
                state, engine.train(state, people[number:], number).cohort_update, number
            )
            state = state._replace(round=state.round + 1)
        everybody = np.arange(setting.data.clients.count)
        found.append((tuple(state), tuple(engine.score(state, everybody))))
    assert distance(*found) < 1e-10


@pytest.mark.parametrize(("name", "hyper"), ROWS, ids=[name for name, _ in ROWS])
def test_parts_of_a_stack_learn_what_the_whole_does(
    name: str, hyper: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    found, parted = [], 0
    for size in (2, 3, MAX_CHUNK):
        setting = toy_setting(name, data=toy_data(sizes=SIZES), **hyper)
        engine = VectorizedEngine(setting, use_programs=True)
        monkeypatch.setattr(stack_runner, "compute_cache_sized_slices", partial(cut, size))
        state = setting.init_server_state()
        for number in range(2):
            state = engine.update_server(
                state,
                engine.train(state, setting.data.groups["train"], number).cohort_update,
                number,
            )
            state = state._replace(round=state.round + 1)
        found.append(tuple(state))
        parted = max(parted, len(engine._runner._programs))
    assert parted > len(engine._runner._programs)
    assert distance(found[0], found[2]) < 1e-10
    assert distance(found[1], found[2]) < 1e-10


def test_a_step_that_cannot_be_compiled_runs_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*given: Any) -> BoundStep:
        raise RuntimeError("no such instruction\nand more of it")

    monkeypatch.setattr(stack_runner, "bind_compiled", fail)
    found = []
    for compile in (True, False):
        setting = toy_setting("fedavg", data=toy_data(sizes=SIZES))
        engine, state = VectorizedEngine(setting, compile=compile), setting.init_server_state()
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            found += [
                tuple(engine.train(state, setting.data.groups["train"], number).cohort_update)
                for number in (0, 1)
            ]
        said = "cannot compile a step, which runs uncompiled, with the same results: "
        said += "no such instruction"
        assert [str(each.message).partition(" ")[2].partition(" ")[2] for each in told] == (
            [said] if compile else []
        )
    assert distance(found[:2], found[2:]) < 1e-10


@pytest.mark.parametrize("imitated", [True, False])
def test_short_floats_that_a_processor_imitates_are_told_of(
    imitated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu, "has_native_bf16", lambda: not imitated)
    exact = toy_setting("fedavg", data=toy_data(sizes=SIZES))
    short = replace(
        exact, task=exact.task.to(dtype=torch.float32).with_compute_dtype(torch.bfloat16)
    )
    assert factory.make_engine(exact).notes == ()
    said = ("fedavg computes in bf16, which this CPU only emulates: float32 is many times as fast",)
    assert factory.make_engine(short).notes == (said if imitated else ())


def cut(size: int, count: int, each: int) -> list[slice]:
    return [slice(at, min(count, at + size)) for at in range(0, count, size)]


@pytest.mark.parametrize("count", [1, 7, 8, 50, 53, 100, 256])
@pytest.mark.parametrize("each", [0, 1000, 270_000, 470_000, 8_000_000])
def test_parts_are_alike_and_fit_the_cache(
    count: int, each: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    parts = compute_cache_sized_slices(count, each)
    sizes = [part.stop - part.start for part in parts]
    assert [at for part in parts for at in range(part.start, part.stop)] == list(range(count))
    assert max(sizes) - min(sizes) <= 1
    if len(parts) > 1:
        assert min(sizes) >= MIN_CLIENTS_PER_THREAD
        assert max(sizes) <= 3 * max(MIN_CLIENTS_PER_THREAD, CACHE_BYTES // (4 * each))
    else:
        assert count < 4 * MIN_CLIENTS_PER_THREAD or 4 * each * count < 4 * CACHE_BYTES


def test_parts_have_one_size_where_one_divides_the_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert [part.stop - part.start for part in compute_cache_sized_slices(50, 270_000)] == [10] * 5
    assert [part.stop - part.start for part in compute_cache_sized_slices(53, 270_000)] == [
        17,
        18,
        18,
    ]


def looking(dropout: float = 0.2) -> Task:
    """A task whose model convolves and pools."""
    with seed_initialization(5):
        seen = (
            nn.Linear(5, 36),
            nn.Unflatten(1, (1, 6, 6)),
            nn.Conv2d(1, 16, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        model = nn.Sequential(
            *seen, nn.Conv2d(16, 16, 2), nn.Dropout(dropout), nn.Flatten(), nn.Linear(16, 3)
        )
    return classification(model).to(dtype=torch.float64)


@pytest.mark.parametrize(("name", "hyper"), ROWS[:4], ids=[name for name, _ in ROWS[:4]])
def test_clients_with_convolutions_take_compiled_steps_one_after_another(
    name: str, hyper: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: set[int] = set()

    def told(function: Any, given: tuple[Tree, ...]) -> BoundStep:
        sizes.add(len(trees.leaves(given[1].carry)[0]))
        graph, leaves = trace(function, given), trees.leaves(given)
        assert not any(node.target is torch.ops.aten.bmm.default for node in graph.graph.nodes)
        return partial(graph, *leaves)

    monkeypatch.setattr(stack_runner, "bind_compiled", told)
    found = []
    for way in (True, False):
        setting = toy_setting(name, looking(), toy_data(sizes=SIZES), **hyper)
        engine = (
            VectorizedEngine(setting, compile=True)
            if way
            else factory.make_engine(setting, "sequential")
        )
        state, people = setting.init_server_state(), setting.data.groups["train"]
        for number in range(2):
            state = engine.update_server(
                state, engine.train(state, people[number:], number).cohort_update, number
            )
        found.append((tuple(state), tuple(engine.score(state, people))))
    assert sizes == {1}
    assert distance(*found) < 1e-10


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("name", ["fsl", "pfedme", "per-fedavg"])
def test_compiled_steps_that_add_a_multiple_of_a_gradient_are_those_of_the_reference(
    name: str,
) -> None:
    found = []
    for engine in ("vectorized", "sequential"):
        setting = toy_setting(name, data=toy_data(sizes=SIZES))
        found.append(train(setting, 1, name=engine, compile=True)[0].params)
    assert distance(*found) < 1e-10


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_compiled_convolutions_learn_what_the_reference_does() -> None:
    found = []
    for engine in ("vectorized", "sequential"):
        setting = toy_setting("fedavg", looking(), toy_data(sizes=SIZES))
        found.append(train(setting, 2, name=engine, compile="training")[0].params)
    assert distance(*found) < 1e-10


def test_programs_are_made_once_for_all_rounds() -> None:
    setting = toy_setting("fedsim", data=toy_data(sizes=SIZES), epochs=2)
    engine, state = VectorizedEngine(setting, use_programs=True), setting.init_server_state()
    people, made = setting.data.groups["train"], []
    for number in range(4):
        engine.train(state, people[[number % 2, 2, 3]], number)
        made.append(len(engine._runner._programs))
    assert made[0] > 0
    assert len(set(made)) == 1


def test_a_program_changes_nothing_that_it_is_given() -> None:
    setting = toy_setting("fedavg", data=toy_data(sizes=SIZES))
    engine, state = VectorizedEngine(setting, use_programs=True), setting.init_server_state()
    before = trees.apply(torch.clone, tuple(state))
    one = engine.train(state, setting.data.groups["train"], 0).cohort_update.update
    kept = trees.apply(torch.clone, one)
    engine.train(state, setting.data.groups["train"], 1)
    assert distance(before, tuple(state)) == 0.0
    assert distance(kept, one) == 0.0


def _undecoded(columns: tuple[Tensor, ...], indices: BatchIndices) -> Batch:
    raise AssertionError("a step without batches decodes none")


def _turned_about(
    given: Tree, carry: dict[str, Tensor], batches: tuple[Batch, ...]
) -> dict[str, Tensor]:
    return {"a": carry["b"] + 1, "b": 2 * carry["a"], "c": carry["a"] - carry["b"]}


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_compiled_steps_read_everything_before_they_write() -> None:
    room = {name: torch.tensor([float(at), 7.0]) for at, name in enumerate("abc")}
    at, left = torch.zeros(1, dtype=torch.int64), torch.tensor([2, 1])
    go_on = bind_compiled(
        partial(_step_in_place, ProgramStep(_turned_about, _undecoded)),
        ((), StepBuffers((), room, (), at, left)),
    )
    for expected in ([[2.0, 8.0], [0.0, 14.0], [-1.0, 0.0]], [[1.0, 8.0], [4.0, 14.0], [2.0, 0.0]]):
        go_on()
        assert [leaf.tolist() for leaf in room.values()] == expected
    assert at.tolist() == [2]


def _descended(
    model: nn.Module, given: Tree, carry: dict[str, Tensor], batches: tuple[Batch, ...]
) -> dict[str, Tensor]:
    def loss(params: dict[str, Tensor]) -> Tensor:
        return nn.functional.cross_entropy(
            functional_call(model, params, (carry["x"],)), carry["y"]
        )

    slope = grad(loss)({name: carry[name] for name, _ in model.named_parameters()})
    return {
        name: leaf - 0.5 * slope[name] if name in slope else leaf for name, leaf in carry.items()
    }


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_compiled_gradients_go_back_through_the_old_weights() -> None:
    """torch 2.11 wrote a layer's new weights before the last product with its old ones."""
    sides = (nn.Linear(20, 16), nn.ELU(), nn.Linear(16, 12), nn.ELU(), nn.Linear(12, 10))
    model = nn.Sequential(*sides)
    rooms = [
        {
            name: torch.randn(3, *value.shape, generator=generator)
            for name, value in model.named_parameters()
        }
        | {
            "x": torch.randn(3, 8, 20, generator=generator),
            "y": torch.randint(0, 10, (3, 8), generator=generator),
        }
        for generator in (torch.Generator().manual_seed(0) for _ in range(2))
    ]
    for room, bind in zip(rooms, (bind_compiled, bind_eager), strict=True):
        at, left = torch.zeros(1, dtype=torch.int64), torch.full((3,), 3)
        bind(
            partial(_step_in_place, ProgramStep(partial(_descended, model), _undecoded)),
            ((), StepBuffers((), room, (), at, left)),
        )()
    assert distance(*rooms) < 1e-5


def test_room_for_places_holds_a_whole_stretch(monkeypatch: pytest.MonkeyPatch) -> None:
    from fedtailor.data import batching

    outcomes = []
    for places in (1 << 16, 40):
        monkeypatch.setattr(batching, "_MAX_BLOCK_INDICES", places)
        setting = toy_setting("fedavg", data=toy_data(sizes=SIZES), epochs=7, batch=2)
        engine = VectorizedEngine(setting, use_programs=True)
        outcomes.append(
            engine.train(
                setting.init_server_state(), setting.data.groups["train"], 0
            ).cohort_update.update
        )
    assert distance(*outcomes) < 1e-12


def test_peak_counts_what_is_made_and_still_there() -> None:
    given = torch.ones(1000)
    with PeakMemory() as peak:
        first = given * 2
        view = first[10:]
        del first
        second = view + 1  # 3960 bytes beside the 4000 that the view keeps alive
        del view
        third = second * 2
    assert peak.peak_bytes == 4000 + 3960
    assert third.sum() == 990 * 6


@pytest.mark.parametrize(
    ("each", "least", "most"),
    [(1, MAX_CHUNK, MAX_CHUNK), (1 << 62, 1, 1), (10 << 20, 2, MAX_CHUNK)],
)
def test_chunks_are_powers_of_two_that_fit(each: int, least: int, most: int) -> None:
    chunk = compute_max_chunk_size(each, torch.device("cpu"))
    assert least <= chunk <= most
    assert chunk & (chunk - 1) == 0


def test_the_chunk_follows_from_what_a_client_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    setting = toy_setting("fedavg", data=toy_data(sizes=SIZES))
    needs = factory.probe_vmap(setting).bytes_per_client
    assert needs >= trees.nbytes(setting.task.params)
    monkeypatch.setattr(
        "fedtailor.engines.chunking._compute_available_bytes", lambda device: 5 * needs
    )
    assert factory.make_engine(setting).chunk == 4  # type: ignore[attr-defined]
    assert factory.make_engine(replace(setting), chunk=3).chunk == 3  # type: ignore[attr-defined]


def test_programs_of_other_shapes_are_others() -> None:
    setting = toy_setting("fedavg", data=toy_data(sizes=SIZES))
    engine, people = VectorizedEngine(setting, use_programs=True), setting.data.groups["train"]
    engine.train(setting.init_server_state(), people[:2], 0)
    engine.train(setting.init_server_state(), people[:3], 0)
    assert len(engine._runner._programs) == 2
    assert all(isinstance(program, StepProgram) for _, program in engine._runner._programs.values())


def test_a_function_may_serve_one_and_a_stack() -> None:
    engine = VectorizedEngine(toy_setting("fedavg"), use_programs=True)
    given, own = torch.tensor([1.0, 2.0]), torch.tensor([[10.0, 20.0], [30.0, 40.0]])
    for _ in range(3):
        assert engine._runner.trace_once(torch.dot)(given, own[0]).tolist() == 50.0
        assert engine._runner.vmap_over_clients(torch.dot, 2)(given, own).tolist() == [50.0, 110.0]


@pytest.mark.parametrize("name", ["fedsim", "fsl"])
def test_what_is_compiled_for_training_alone_is_not_for_scoring(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    def told(what: str, *given: Any) -> BoundStep:
        made.append(what)
        return bind_eager(*given)

    monkeypatch.setattr(stack_runner, "bind_compiled", partial(told, "compiled"))
    monkeypatch.setattr(stack_runner, "bind_eager", partial(told, "as it is"))
    setting = toy_setting(name, data=toy_data(sizes=SIZES))
    ways: list[tuple[CompileMode, str]] = [
        ("training", "as it is"),
        (True, "compiled"),
        (False, "as it is"),
    ]
    for compile, scored in ways:
        engine, state, people = (
            VectorizedEngine(setting, compile=compile, use_programs=True),
            setting.init_server_state(),
            np.arange(4),
        )
        trained = engine.train(state, people, 0)
        engine.update_server(state, trained.cohort_update, 0)
        assert set(made) == {"compiled" if compile else "as it is"}
        made.clear()
        engine.score(state, people)
        assert set(made) == {scored}
        made.clear()
