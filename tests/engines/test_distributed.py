"""The engine of several processes: whatever their number, the numbers of one."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import ranks
from agreement import distance
from contract import ROWS, Row, as_params
from fedtailor import FedtailorError, classification, fit
from fedtailor.core import trees
from fedtailor.core.types import Tree
from fedtailor.engines import factory
from fedtailor.engines.client_state import ClientStateStore
from fedtailor.engines.context import EngineContext
from fedtailor.engines.distributed.client_shards import ClientStateShards
from fedtailor.engines.distributed.engine import DistributedEngine
from fedtailor.engines.distributed.process_group import Ranks, get_ranks
from fedtailor.errors import InputError
from fedtailor.training.loop import run_rounds
from scenarios import Net, toy_data, toy_setting

SIZES = (1, 2, 3, 5, 9, 12, 8, 4, 7)
QUICK: list[Row] = [
    ("fedavg", {"steps": 3, "weigh": "clients"}),
    ("fedsim", {"at": "server", "product": "exact"}),
    ("scaffold", {"epochs": 2}),
    ("fedmeta-per", {"inner": "maml", "offer": 2}),
    ("ditto", {"lam": 0.5}),
    ("afml", {}),
    ("fsl+fedavg", {}),
]


def setting_of(row: Row) -> EngineContext:
    """A method on nine unequal clients; two are new, one validates."""
    hyper: dict[str, Any] = {"batch": 4, "finetune_steps": 2} | row[1]
    return toy_setting(row[0], data=toy_data(sizes=SIZES, test=3), **hyper)


def outcome(setting: EngineContext, name: str, cohort: int) -> tuple[Any, ...]:
    """What three rounds leave behind on rank 0: state, every client's memory, every score and the
    costs.

    Scores are looked at between rounds, and a round with people never seen comes last.
    """
    engine, state = factory.make_engine(setting, name), setting.init_server_state()
    everybody, costs = np.arange(setting.data.clients.count), []
    loop = run_rounds(setting, engine, state, min(cohort, len(setting.data.groups["train"])))
    for number in range(2):
        state = (done := next(loop)).state
        scores = tuple(engine.score(state, everybody if number else everybody[::-2].copy()))
        costs.append(torch.tensor(done.cost[:3]))
    if setting.method.client.phases and setting.method.data_view != "pooled":
        strangers = np.concatenate(
            [setting.data.groups["validation"], setting.data.groups["unseen"]]
        )
        state = engine.update_server(state, engine.train(state, strangers, 2).cohort_update, 2)
    memory = factory.collect_client_states(engine).gather(
        everybody, setting.method.init_client_state(state)
    )
    nobody = engine.score(state, everybody[:0])
    assert nobody == ({}, {})
    return tuple(state), memory, scores, costs


def outcomes(settings: list[EngineContext], cohort: int) -> list[tuple[Any, ...]]:
    """The job of all ranks: one setting after the other, until rank 0 announces the next."""
    found = []
    for setting in settings:
        if get_ranks().rank:
            engine = factory.make_engine(setting, "distributed")
            assert isinstance(engine, DistributedEngine)
            assert engine.follow_commands() == "next"
            continue
        found.append(outcome(setting, "distributed", cohort))
        get_ranks().announce("next")
        get_ranks().finish_command()
    return found


def outcomes_of_rows(rows: list[Row], cohort: int) -> list[tuple[Any, ...]]:
    return outcomes([setting_of(row) for row in rows], cohort)


def assert_agree(rows: list[Row], world: int, cohort: int, place: Path) -> None:
    found = ranks.answer(place, world, outcomes_of_rows, rows, cohort)
    for row, here in zip(rows, found, strict=True):
        reference = outcome(setting_of(row), "vectorized", cohort)
        assert trees.is_finite(reference[0])
        assert distance(reference, here) < 1e-10, row


@pytest.mark.parametrize("world", [2, 3])
def test_ranks_agree_with_one_process(world: int, tmp_path: Path) -> None:
    assert_agree(QUICK, world, 4, tmp_path / "found")


def test_more_ranks_than_clients_in_a_cohort(tmp_path: Path) -> None:
    assert_agree([("scaffold", {"steps": 2}), ("fedper", {"offer": 3})], 3, 2, tmp_path / "found")


@pytest.mark.slow
@pytest.mark.parametrize(("world", "cohort"), [(2, 5), (3, 4), (4, 6)])
def test_every_method_agrees_with_one_process(world: int, cohort: int, tmp_path: Path) -> None:
    assert len(as_params(ROWS)) > 50
    assert_agree(ROWS, world, cohort, tmp_path / "found")


def median(changes: Tree, weights: Tensor) -> Tree:
    """A rule for which every change counts, by itself and at its weight."""
    return trees.apply(
        lambda leaf: leaf.median(0).values * weights[0] + leaf[-1] / weights.sum(), changes
    )


def combining() -> EngineContext:
    plain = setting_of(("fedsim", {"at": "server", "steps": 2}))
    return toy_setting(
        plain.method._replace(aggregate=median, weight_by="train"), plain.task, plain.data
    )


def test_a_rule_gets_every_change_in_the_order_of_one_process(tmp_path: Path) -> None:
    for cohort in (2, 5):
        (here,) = ranks.answer(tmp_path / "found", 3, combining_outcomes, cohort)
        assert distance(outcome(combining(), "vectorized", cohort), here) < 1e-12


def combining_outcomes(cohort: int) -> list[tuple[Any, ...]]:
    return outcomes([combining()], cohort)


class Branching(Net):
    """A network that vmap cannot run."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x if bool(x.sum() > 0) else -x)


def branching() -> EngineContext:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return toy_setting(
            "scaffold",
            classification(Branching()).to(dtype=torch.float64),
            toy_data(SIZES),
            batch=4,
        )


def branching_outcomes(notes: Path) -> list[tuple[Any, ...]]:
    setting = branching()
    if not get_ranks().rank:
        notes.write_text("\n".join(factory.make_engine(setting, "distributed").notes))
    return outcomes([setting], 4)


@pytest.mark.slow
def test_ranks_run_one_by_one_what_cannot_be_vectorized(tmp_path: Path) -> None:
    (here,) = ranks.answer(tmp_path / "found", 2, branching_outcomes, tmp_path / "notes")
    assert distance(outcome(branching(), "sequential", 4), here) < 1e-12
    assert (
        (tmp_path / "notes")
        .read_text()
        .startswith("scaffold runs one client at a time, since vmap cannot run it")
    )


def failing_outcomes() -> list[str]:
    """Rank 1 fails twice; then all goes well."""
    setting = setting_of(QUICK[0])
    engine = factory.make_distributed_engine(setting)
    if get_ranks().rank:
        well, problems = (
            engine.inner.train,
            iter([ValueError("odd\nvery odd"), InputError("Wrong.")]),
        )

        def train(*args: Any) -> Any:
            for problem in problems:
                raise problem
            return well(*args)

        if get_ranks().rank == 1:
            setattr(engine.inner, "train", train)  # noqa: B010
        assert engine.follow_commands() == "next"
        return []
    said, state, people = [], setting.init_server_state(), setting.data.groups["train"]
    for _ in range(2):
        with pytest.raises(FedtailorError) as caught:
            engine.train(state, people, 0)
        said.append(f"{type(caught.value).__name__}: {caught.value}")
    said.append(f"{float(engine.train(state, people, 0).cohort_update.cohort_weight)}")
    get_ranks().announce("next")
    get_ranks().finish_command()
    return said


def test_what_fails_on_one_rank_is_raised_on_rank_0_and_nobody_hangs(tmp_path: Path) -> None:
    found = ranks.answer(tmp_path / "found", 3, failing_outcomes)
    assert found == ["RoutineError: Rank 1 failed: ValueError: odd", "InputError: Wrong.", "6.0"]


FRESH = {"weight": torch.zeros(1 << 20), "count": torch.zeros((), dtype=torch.int64)}


def shards(world: int) -> tuple[ClientStateShards, ClientStateStore]:
    memory = ClientStateStore(6)
    return ClientStateShards(memory, Ranks(0, world)), memory


def plain(moves: Any) -> list[tuple[int, int, list[int]]]:
    return [(move.src, move.dst, move.client_ids.tolist()) for move in moves]


def test_memories_are_sent_only_when_another_rank_gets_the_client() -> None:
    here, memory = shards(3)
    first, second = (
        (np.array([0, 3]), np.array([1]), np.array([2])),
        (np.array([2, 0]), np.array([3]), np.array([5])),
    )
    assert here.plan_moves_to_parts(first, FRESH) == []  # nobody remembers anything yet
    here.record_training(first, FRESH)
    assert here.plan_moves_to_parts(first, FRESH) == []
    assert plain(here.plan_moves_to_rank_0(FRESH)) == [(1, 0, [1]), (2, 0, [2])]
    assert plain(here.plan_moves_to_parts(second, FRESH)) == [(2, 0, [2]), (0, 1, [3])]
    assert here.plan_moves_to_parts(second, FRESH) == []
    here.record_training(second, FRESH)
    memory.changed.zero_()
    assert here.plan_moves_to_rank_0(FRESH) == []  # rank 0 has a copy of what has not changed since
    assert plain(here.plan_moves_to_all(np.array([0, 3]), FRESH)) == [
        (1, 0, [3]),
        (0, 1, [0]),
        (0, 2, [0]),
        (1, 2, [3]),
    ]
    assert memory.initialized.tolist() == [True, True, True, True, False, True]


def test_large_memories_are_sent_in_pieces_and_empty_ones_not_at_all() -> None:
    here, memory = shards(2)
    here.record_training((np.array([0]), np.array([1, 2, 3, 4, 5])), FRESH)
    large = {"weight": torch.zeros(6 << 20)}
    assert plain(here.plan_moves_to_rank_0(large)) == [(1, 0, [1, 2]), (1, 0, [3, 4]), (1, 0, [5])]
    assert here.plan_moves_to_rank_0({}) == []
    here.record_training((np.array([0]), np.array([1])), {})
    assert memory.changed.tolist() == [False, False, True, True, True, True]


def test_alone_it_is_the_engine_of_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    data = toy_data(SIZES)
    runs = [
        fit("fedper", Net, data, rounds=2, cohort=3, engine=name, offer=2)
        for name in ("vectorized", "distributed")
    ]
    assert distance(*(tuple(run.state) for run in runs)) == 0.0
    alone, together = (run.scores["unseen"].after["accuracy"] for run in runs)
    assert np.array_equal(alone, together)
    assert "torchrun" in runs[1].engine.notes[-1]
    monkeypatch.setitem(os.environ, "WORLD_SIZE", "2")
    with pytest.raises(
        InputError,
        match=r"^Engine: several processes of engine=distributed are started by: torchrun",
    ):
        fit("fedavg", Net, data, rounds=1, cohort=2, engine="distributed")


def test_devices_that_ranks_cannot_share_are_refused() -> None:
    setting = setting_of(QUICK[0])
    inner = factory.make_engine(setting)
    for device, sentence in (
        ("mps", "need device=cpu or device=cuda, got 'mps'"),
        ("cuda:5", "got 'cuda:5'"),
    ):
        object.__setattr__(setting, "device", torch.device(device))
        with pytest.raises(InputError, match=sentence):
            DistributedEngine(setting, inner, Ranks(0, 2))
    object.__setattr__(setting, "device", torch.device("cuda"))
    if torch.cuda.device_count() == 0:
        with pytest.raises(
            InputError, match=r"^Engine: rank 1 has no GPU of its own, as PyTorch sees 0 here; "
        ):
            DistributedEngine(setting, inner, Ranks(1, 2))
