"""Several runs in one stack against each by itself."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from agreement import distance
from fedtailor import engines
from fedtailor.engines import Party, Setting
from fedtailor.engines.base import Engine
from fedtailor.engines.lifting import CannotLiftError, lifting
from fedtailor.engines.stacking import Member
from fedtailor.errors import DivergedError
from fedtailor.run.abreast import abreast, in_groups
from fedtailor.run.loop import round_loop
from scenarios import toy_data, toy_setting

SIZES = (24, 17, 9, 8, 3, 2, 1, 1)
ROWS: list[tuple[str, list[dict[str, Any]]]] = [
    ("fedavg", [{"lr": 0.1}, {"lr": 0.2}, {"lr": 0.05}]),
    ("fedavg", [{"optimiser": "adam"}] * 3),
    ("fedsim", [{"beta": 0.1, "lam": 0.5}, {"beta": 0.3}, {"beta": 0.5, "c": 0.1}]),
    ("fedprox", [{"lam": 0.1}, {"lam": 1.0}, {"lam": 0.01}]),
    ("fsl", [{"gamma": 0.1}, {"gamma": 0.3}, {"gamma": 1.0}]),
    ("per-fedavg", [{"alpha": alpha, "variant": "exact"} for alpha in (0.01, 0.05, 0.1)]),
    ("fedmeta", [{"alpha": alpha, "inner": "meta-sgd"} for alpha in (0.01, 0.05, 0.1)]),
    ("fedper", [{"lr": 0.1}, {"lr": 0.2}, {"lr": 0.05}]),
    ("ditto", [{"lr": 0.1}, {"lr": 0.2}, {"lr": 0.05}]),
    ("apfl", [{"lr": 0.1}, {"lr": 0.2}, {"lr": 0.05}]),
    ("pfedme", [{"lr": 0.1}, {"lr": 0.2}, {"lr": 0.05}]),
    ("scaffold", [{"lr": 0.1}, {"lr": 0.2}, {"lr": 0.05}]),
    ("afml", [{"lr": 0.1}, {"lr": 0.2}, {"lr": 0.05}]),
    ("local", [{"lr": 0.1}, {"lr": 0.2}, {"lr": 0.05}]),
]


def setting_of(name: str, seed: int, hyper: dict[str, Any]) -> Setting:
    return toy_setting(name, data=toy_data(sizes=SIZES), seed=seed, **hyper)


def outcome(setting: Setting, engine: Engine, rounds: int = 4) -> Any:
    """The state, memories and scores after some rounds, and how they were reached."""
    loop, everybody = round_loop(setting, engine, setting.first_state(), 3), np.arange(setting.data.clients.count)
    for _ in range(rounds):
        done = next(loop)
    scores = engine.score(done.state, everybody)
    remembered = engine.memory.gather(everybody, setting.method.new_memory(done.state))
    return tuple(done.state), remembered, tuple(scores)


def joined(setting: Setting, chunk: int | None, kinds: list[type], party: Party | None) -> Any:
    assert party is not None
    engine = party.engine(setting, chunk, False)
    kinds.append(type(engine))
    return outcome(setting, engine)


@pytest.mark.parametrize(("name", "hypers"), ROWS, ids=[f"{name}-{number}" for number, (name, _) in enumerate(ROWS)])
@pytest.mark.parametrize("chunk", [None, 2])
def test_runs_in_a_stack_get_what_they_get_alone(name: str, hypers: list[dict[str, Any]], chunk: int | None) -> None:
    settings = [[setting_of(name, seed, hyper) for seed, hyper in enumerate(hypers)] for _ in range(2)]
    alone = [outcome(setting, engines.make(setting, "one_by_one")) for setting in settings[0]]
    kinds: list[type] = []
    together = abreast([partial(joined, setting, chunk, kinds) for setting in settings[1]])
    assert kinds == [Member] * 3
    assert distance(alone, together) < 1e-10


def test_runs_that_differ_in_more_than_numbers_go_one_after_another() -> None:
    hypers: list[dict[str, Any]] = [{"epochs": 1}, {"epochs": 2}]
    settings = [[setting_of("fedavg", 0, hyper) for hyper in hypers] for _ in range(2)]
    alone = [outcome(setting, engines.make(setting)) for setting in settings[0]]
    kinds: list[type] = []
    together = abreast([partial(joined, setting, None, kinds) for setting in settings[1]])
    assert kinds == [engines.Vectorised] * 2
    assert distance(alone, together) == 0.0


def test_a_run_that_fails_does_not_hold_up_the_others() -> None:
    settings = [setting_of("fedavg", seed, {}) for seed in range(3)]
    ended: list[int] = []

    def job(number: int, party: Party | None) -> None:
        assert party is not None
        engine = party.engine(settings[number], None, False)
        if number == 1:
            outcome(settings[number], engine, 1)
            raise DivergedError("gone")
        outcome(settings[number], engine)
        ended.append(number)

    with pytest.raises(DivergedError, match="gone"):
        abreast([partial(job, number) for number in range(3)])
    assert sorted(ended) == [0, 2]


def test_what_goes_wrong_in_the_stack_is_told_to_every_run() -> None:
    settings = [setting_of("fedavg", seed, {}) for seed in range(2)]
    told: list[str] = []

    def job(number: int, party: Party | None) -> None:
        assert party is not None
        engine = party.engine(settings[number], None, False)
        try:
            engine.train(settings[number].first_state(), np.array([10_000]), 0)
        except Exception as problem:
            told.append(type(problem).__name__)

    abreast([partial(job, number) for number in range(2)])
    assert told == ["IndexError"] * 2


def test_runs_of_unequal_length_and_at_other_rounds_work_together() -> None:
    settings = [[setting_of("fedsim", seed, {}) for seed in range(3)] for _ in range(2)]
    alone = [outcome(each, engines.make(each), 2 + seed) for seed, each in enumerate(settings[0])]

    def job(seed: int, party: Party | None) -> Any:
        assert party is not None
        return outcome(settings[1][seed], party.engine(settings[1][seed], None, False), 2 + seed)

    assert distance(alone, abreast([partial(job, seed) for seed in range(3)])) < 1e-10


def test_runs_that_want_other_things_scored_at_once_get_them() -> None:
    """One looks at its clients as ever, another after a single step of personalising, a third after two."""
    settings = [[setting_of("fedavg", seed, {"lr": 0.1 + seed / 10}) for seed in range(3)] for _ in range(2)]
    steps = (None, 1, 2)

    def wanted(setting: Setting, engine: Engine, count: int | None) -> Any:
        work = setting.method.personalise
        plans = (phase._replace(plan=phase.plan._replace(epochs=None, steps=count)) for phase in work.phases)
        short = None if count is None else work._replace(phases=tuple(plans))
        return tuple(engine.score(setting.first_state(), setting.data.groups["train"], short))

    def job(number: int, party: Party | None) -> Any:
        assert party is not None
        setting = settings[1][number]
        return wanted(setting, party.engine(setting, None, False), steps[number])

    alone = [wanted(each, engines.make(each), count) for each, count in zip(settings[0], steps, strict=True)]
    assert distance(alone, abreast([partial(job, number) for number in range(3)])) < 1e-10


def test_runs_with_other_choices_keep_to_them() -> None:
    settings, chunks = [setting_of("fedavg", seed, {}) for seed in range(2)], (2, 3)

    def job(number: int, party: Party | None) -> Any:
        assert party is not None
        return engines.choices(party.engine(settings[number], chunks[number], False))["chunk"]

    assert abreast([partial(job, number) for number in range(2)]) == [2, 3]


def test_lifting_finds_the_numbers_that_differ() -> None:
    rows: list[list[float]] = []
    build = lifting([partial(max, 1.0, default=(0.5, "a")), partial(max, 2.0, default=(0.5, "a"))], rows)
    assert rows == [[1.0, 2.0]]
    made = build([torch.tensor(7.0)])
    assert made.args[0] == 7.0
    assert made.keywords == {"default": (0.5, "a")}


@pytest.mark.parametrize(
    ("one", "other"), [(1, 2), ("a", "b"), ((1.0,), (1.0, 2.0)), ({"a": 1.0}, {"b": 1.0}), (max, min), (1.0, 1)]
)
def test_lifting_refuses_what_differs_in_more(one: Any, other: Any) -> None:
    with pytest.raises(CannotLiftError):
        lifting([one, other], [])


def test_neighbours_of_a_kind_are_grouped() -> None:
    assert in_groups("aaabba", str, 2) == [["a", "a"], ["a"], ["b", "b"], ["a"]]
