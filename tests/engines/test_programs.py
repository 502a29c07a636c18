"""Steps by programs against the reference, without a compiler or a GPU: the same room, the same leaving in lots."""

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
from fedtailor import engines, native, trees
from fedtailor.engines import vectorised
from fedtailor.engines.measuring import CACHED, FEWEST, MOST, Peak, chunk_that_fits, parts_that_stay
from fedtailor.engines.programs import Program, _advance
from fedtailor.engines.tracing import Bound, Compile, as_it_is, compiled, followed
from fedtailor.engines.vectorised import Vectorised
from fedtailor.purity import drawn_from
from fedtailor.task import Task, classification
from fedtailor.types import Batch, Tree
from scenarios import toy_data, toy_setting, train

SIZES = (24, 17, 9, 8, 3, 2, 1, 1)
ROWS: list[tuple[str, dict[str, Any]]] = [
    ("fedavg", {"epochs": 2, "optimiser": "adam"}),
    ("fedsim", {"epochs": 2}),
    ("fsl", {"learn_epochs": 2}),
    ("per-fedavg", {"variant": "exact"}),
    ("fedrep", {}),
    ("ditto", {}),
    ("fedmeta-per", {"inner": "meta-sgd", "offer": 3}),
    ("afml", {}),
]


@pytest.mark.parametrize(("name", "hyper"), ROWS, ids=[name for name, _ in ROWS])
@pytest.mark.parametrize("chunk", [3, MOST])
def test_programs_do_what_the_reference_does(name: str, hyper: dict[str, Any], chunk: int) -> None:
    found = []
    for static in (True, False):
        setting = toy_setting(name, data=toy_data(sizes=SIZES), **hyper)
        engine = Vectorised(setting, chunk, static=True) if static else engines.make(setting, "one_by_one")
        state, people = setting.first_state(), setting.data.groups["train"]
        for number in range(3):
            state = engine.serve(state, engine.train(state, people[number:], number).gathered, number)
            state = state._replace(round=state.round + 1)
        everybody = np.arange(setting.data.clients.count)
        found.append((tuple(state), tuple(engine.score(state, everybody))))
    assert distance(*found) < 1e-10


@pytest.mark.parametrize(("name", "hyper"), ROWS, ids=[name for name, _ in ROWS])
def test_parts_of_a_stack_learn_what_the_whole_does(
    name: str, hyper: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    found, parted = [], 0
    for size in (2, 3, MOST):
        setting = toy_setting(name, data=toy_data(sizes=SIZES), **hyper)
        engine = Vectorised(setting, static=True)
        monkeypatch.setattr(vectorised, "parts_that_stay", partial(cut, size))
        state = setting.first_state()
        for number in range(2):
            state = engine.serve(state, engine.train(state, setting.data.groups["train"], number).gathered, number)
            state = state._replace(round=state.round + 1)
        found.append(tuple(state))
        parted = max(parted, len(engine._programs))
    assert parted > len(engine._programs)
    assert distance(found[0], found[2]) < 1e-10
    assert distance(found[1], found[2]) < 1e-10


def test_a_step_that_cannot_be_compiled_runs_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*given: Any) -> Bound:
        raise RuntimeError("no such instruction\nand more of it")

    monkeypatch.setattr(vectorised, "compiled", fail)
    found = []
    for compile in (True, False):
        setting = toy_setting("fedavg", data=toy_data(sizes=SIZES))
        engine, state = Vectorised(setting, compile=compile), setting.first_state()
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            found += [tuple(engine.train(state, setting.data.groups["train"], number).gathered) for number in (0, 1)]
        said = "cannot compile a step, which runs uncompiled, with the same results: no such instruction"
        assert [str(each.message).partition(" ")[2].partition(" ")[2] for each in told] == ([said] if compile else [])
    assert distance(found[:2], found[2:]) < 1e-10


@pytest.mark.parametrize("imitated", [True, False])
def test_short_floats_that_a_processor_imitates_are_told_of(imitated: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "has_short_floats", lambda: not imitated)
    exact = toy_setting("fedavg", data=toy_data(sizes=SIZES))
    short = replace(exact, task=exact.task.to(dtype=torch.float32).computing(torch.bfloat16))
    assert engines.make(exact).notes == ()
    said = ("fedavg calculates in bf16, which this processor has to imitate: float32 is many times as fast",)
    assert engines.make(short).notes == (said if imitated else ())


def cut(size: int, count: int, each: int) -> list[slice]:
    return [slice(at, min(count, at + size)) for at in range(0, count, size)]


@pytest.mark.parametrize("count", [1, 7, 8, 50, 53, 100, 256])
@pytest.mark.parametrize("each", [0, 1000, 270_000, 470_000, 8_000_000])
def test_parts_are_alike_and_fit_the_cache(count: int, each: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    parts = parts_that_stay(count, each)
    sizes = [part.stop - part.start for part in parts]
    assert [at for part in parts for at in range(part.start, part.stop)] == list(range(count))
    assert max(sizes) - min(sizes) <= 1
    if len(parts) > 1:
        assert min(sizes) >= FEWEST
        assert max(sizes) <= 3 * max(FEWEST, CACHED // (4 * each))
    else:
        assert count < 4 * FEWEST or 4 * each * count < 4 * CACHED


def test_parts_have_one_size_where_one_divides_the_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert [part.stop - part.start for part in parts_that_stay(50, 270_000)] == [10] * 5
    assert [part.stop - part.start for part in parts_that_stay(53, 270_000)] == [17, 18, 18]


def looking(dropout: float = 0.2) -> Task:
    """A task whose model convolves and pools."""
    with drawn_from(5):
        seen = (nn.Linear(5, 36), nn.Unflatten(1, (1, 6, 6)), nn.Conv2d(1, 16, 3), nn.ReLU(), nn.MaxPool2d(2))
        model = nn.Sequential(*seen, nn.Conv2d(16, 16, 2), nn.Dropout(dropout), nn.Flatten(), nn.Linear(16, 3))
    return classification(model).to(dtype=torch.float64)


@pytest.mark.parametrize(("name", "hyper"), ROWS[:4], ids=[name for name, _ in ROWS[:4]])
def test_clients_with_convolutions_take_compiled_steps_one_after_another(
    name: str, hyper: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: set[int] = set()

    def told(function: Any, given: tuple[Tree, ...]) -> Bound:
        sizes.add(len(trees.leaves(given[2])[0]))
        graph, leaves = followed(function, given), trees.leaves(given)
        assert not any(node.target is torch.ops.aten.bmm.default for node in graph.graph.nodes)
        return partial(graph, *leaves)

    monkeypatch.setattr(vectorised, "compiled", told)
    found = []
    for way in (True, False):
        setting = toy_setting(name, looking(), toy_data(sizes=SIZES), **hyper)
        engine = Vectorised(setting, compile=True) if way else engines.make(setting, "one_by_one")
        state, people = setting.first_state(), setting.data.groups["train"]
        for number in range(2):
            state = engine.serve(state, engine.train(state, people[number:], number).gathered, number)
        found.append((tuple(state), tuple(engine.score(state, people))))
    assert sizes == {1}
    assert distance(*found) < 1e-10


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("name", ["fsl", "pfedme", "per-fedavg"])
def test_compiled_steps_that_add_a_multiple_of_a_gradient_are_those_of_the_reference(name: str) -> None:
    found = []
    for engine in ("vectorised", "one_by_one"):
        setting = toy_setting(name, data=toy_data(sizes=SIZES))
        found.append(train(setting, 1, name=engine, compile=True)[0].params)
    assert distance(*found) < 1e-10


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_compiled_convolutions_learn_what_the_reference_does() -> None:
    found = []
    for engine in ("vectorised", "one_by_one"):
        setting = toy_setting("fedavg", looking(), toy_data(sizes=SIZES))
        found.append(train(setting, 2, name=engine, compile="training")[0].params)
    assert distance(*found) < 1e-10


def test_programs_are_made_once_for_all_rounds() -> None:
    setting = toy_setting("fedsim", data=toy_data(sizes=SIZES), epochs=2)
    engine, state = Vectorised(setting, static=True), setting.first_state()
    people, made = setting.data.groups["train"], []
    for number in range(4):
        engine.train(state, people[[number % 2, 2, 3]], number)
        made.append(len(engine._programs))
    assert made[0] > 0
    assert len(set(made)) == 1


def test_a_program_changes_nothing_that_it_is_given() -> None:
    setting = toy_setting("fedavg", data=toy_data(sizes=SIZES))
    engine, state = Vectorised(setting, static=True), setting.first_state()
    before = trees.apply(torch.clone, tuple(state))
    one = engine.train(state, setting.data.groups["train"], 0).gathered.change
    kept = trees.apply(torch.clone, one)
    engine.train(state, setting.data.groups["train"], 1)
    assert distance(before, tuple(state)) == 0.0
    assert distance(kept, one) == 0.0


def _turned_about(given: Tree, carry: dict[str, Tensor], batches: tuple[Batch, ...]) -> dict[str, Tensor]:
    return {"a": carry["b"] + 1, "b": 2 * carry["a"], "c": carry["a"] - carry["b"]}


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_compiled_steps_read_everything_before_they_write() -> None:
    room = {name: torch.tensor([float(at), 7.0]) for at, name in enumerate("abc")}
    at, left = torch.zeros(1, dtype=torch.int64), torch.tensor([2, 1])
    go_on = compiled(partial(_advance, _turned_about, False, None), ((), (), room, (), at, left))
    for expected in ([[2.0, 8.0], [0.0, 14.0], [-1.0, 0.0]], [[1.0, 8.0], [4.0, 14.0], [2.0, 0.0]]):
        go_on()
        assert [leaf.tolist() for leaf in room.values()] == expected
    assert at.tolist() == [2]


def _descended(
    model: nn.Module, given: Tree, carry: dict[str, Tensor], batches: tuple[Batch, ...]
) -> dict[str, Tensor]:
    def loss(params: dict[str, Tensor]) -> Tensor:
        return nn.functional.cross_entropy(functional_call(model, params, (carry["x"],)), carry["y"])

    slope = grad(loss)({name: carry[name] for name, _ in model.named_parameters()})
    return {name: leaf - 0.5 * slope[name] if name in slope else leaf for name, leaf in carry.items()}


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_compiled_gradients_go_back_through_the_old_weights() -> None:
    """torch 2.11 wrote a layer's new weights before the last product with its old ones."""
    sides = (nn.Linear(20, 16), nn.ELU(), nn.Linear(16, 12), nn.ELU(), nn.Linear(12, 10))
    model = nn.Sequential(*sides)
    rooms = [
        {name: torch.randn(3, *value.shape, generator=generator) for name, value in model.named_parameters()}
        | {"x": torch.randn(3, 8, 20, generator=generator), "y": torch.randint(0, 10, (3, 8), generator=generator)}
        for generator in (torch.Generator().manual_seed(0) for _ in range(2))
    ]
    for room, bind in zip(rooms, (compiled, as_it_is), strict=True):
        at, left = torch.zeros(1, dtype=torch.int64), torch.full((3,), 3)
        bind(partial(_advance, partial(_descended, model), False, None), ((), (), room, (), at, left))()
    assert distance(*rooms) < 1e-5


def test_room_for_places_holds_a_whole_stretch(monkeypatch: pytest.MonkeyPatch) -> None:
    from fedtailor.data import batching

    outcomes = []
    for places in (1 << 16, 40):
        monkeypatch.setattr(batching, "_SPREAD", places)
        setting = toy_setting("fedavg", data=toy_data(sizes=SIZES), epochs=7, batch=2)
        engine = Vectorised(setting, static=True)
        outcomes.append(engine.train(setting.first_state(), setting.data.groups["train"], 0).gathered.change)
    assert distance(*outcomes) < 1e-12


def test_peak_counts_what_is_made_and_still_there() -> None:
    given = torch.ones(1000)
    with Peak() as peak:
        first = given * 2
        view = first[10:]
        del first
        second = view + 1  # 3960 bytes beside the 4000 that the view keeps alive
        del view
        third = second * 2
    assert peak.most == 4000 + 3960
    assert third.sum() == 990 * 6


@pytest.mark.parametrize(("each", "least", "most"), [(1, MOST, MOST), (1 << 62, 1, 1), (10 << 20, 2, MOST)])
def test_chunks_are_powers_of_two_that_fit(each: int, least: int, most: int) -> None:
    chunk = chunk_that_fits(each, torch.device("cpu"))
    assert least <= chunk <= most
    assert chunk & (chunk - 1) == 0


def test_the_chunk_follows_from_what_a_client_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    setting = toy_setting("fedavg", data=toy_data(sizes=SIZES))
    needs = engines.tried(setting).bytes
    assert needs >= trees.nbytes(setting.task.params)
    monkeypatch.setattr("fedtailor.engines.measuring._room", lambda device: 5 * needs)
    assert engines.make(setting).chunk == 4  # type: ignore[attr-defined]
    assert engines.make(replace(setting), chunk=3).chunk == 3  # type: ignore[attr-defined]


def test_programs_of_other_shapes_are_others() -> None:
    setting = toy_setting("fedavg", data=toy_data(sizes=SIZES))
    engine, people = Vectorised(setting, static=True), setting.data.groups["train"]
    engine.train(setting.first_state(), people[:2], 0)
    engine.train(setting.first_state(), people[:3], 0)
    assert len(engine._programs) == 2
    assert all(isinstance(program, Program) for _, program in engine._programs.values())


def test_a_function_may_serve_one_and_a_stack() -> None:
    engine = Vectorised(toy_setting("fedavg"), static=True)
    given, own = torch.tensor([1.0, 2.0]), torch.tensor([[10.0, 20.0], [30.0, 40.0]])
    for _ in range(3):
        assert engine._once(torch.dot)(given, own[0]).tolist() == 50.0
        assert engine._each(torch.dot, 2)(given, own).tolist() == [50.0, 110.0]


@pytest.mark.parametrize("name", ["fedsim", "fsl"])
def test_what_is_compiled_for_training_alone_is_not_for_scoring(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def told(what: str, *given: Any) -> Bound:
        made.append(what)
        return as_it_is(*given)

    monkeypatch.setattr(vectorised, "compiled", partial(told, "compiled"))
    monkeypatch.setattr(vectorised, "as_it_is", partial(told, "as it is"))
    setting = toy_setting(name, data=toy_data(sizes=SIZES))
    ways: list[tuple[Compile, str]] = [("training", "as it is"), (True, "compiled"), (False, "as it is")]
    for compile, scored in ways:
        engine, state, people = Vectorised(setting, compile=compile, static=True), setting.first_state(), np.arange(4)
        trained = engine.train(state, people, 0)
        engine.serve(state, trained.gathered, 0)
        assert set(made) == {"compiled" if compile else "as it is"}
        made.clear()
        engine.score(state, people)
        assert set(made) == {scored}
        made.clear()
