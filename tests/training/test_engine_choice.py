"""Choices of how a run computes: from counts, for all seeds of a method alike, and written down
before the first round.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import fedtailor as ft
from fedtailor.compiler.inductor import BoundStep, bind_eager
from fedtailor.engines import factory, stack_runner
from fedtailor.engines.compile_policy import CompileDecision, TrainingCounts
from fedtailor.engines.context import EngineContext
from fedtailor.engines.vectorized import VectorizedEngine
from fedtailor.errors import InputError
from fedtailor.experiments.compare import compare
from fedtailor.ops import cpu
from fedtailor.training import engine_choice
from fedtailor.training.config import ComparisonConfig
from fedtailor.training.overrides import read_comparison
from fedtailor.training.record.schema import Choices, RoundEntry, RunRecord
from fedtailor.training.resources import FLOPS_PER_THREAD, choose_threads
from fedtailor.training.run_dir import RunDir
from fedtailor.training.runner import resume_run, start_run
from interruptions import SMALL, small
from scenarios import Net, toy_data

PER_PROCESS = [word for word in SMALL if not word.startswith("threads")]


@pytest.fixture(autouse=True)
def four_processors(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine with four processors, of which torch may use three."""
    threads = torch.get_num_threads()
    monkeypatch.setattr(cpu, "count_processors", lambda: 4)
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def compiles_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have what is compiled run as it is, so that no test waits for a compiler."""
    monkeypatch.setattr(factory, "get_compile_error", lambda device: None)
    monkeypatch.setattr(stack_runner, "bind_compiled", bind_eager)
    stack_runner._warn_once.cache_clear()


def comparison(*words: str) -> ComparisonConfig:
    return read_comparison(["fedavg", *PER_PROCESS, "rounds=1", *words])


def choices_in(out: Path, *seeds: int) -> list[Choices]:
    return [RunDir(out / f"fedavg-seed{seed}").read_record().choices for seed in seeds]


def decide_by_seed(context: EngineContext, *_: object) -> CompileDecision:
    """Decide differently for each seed, as other clients would."""
    return CompileDecision(False, f"decided for seed {context.seed}")


# One choice for all seeds


@pytest.mark.parametrize("jobs", [1, 2])
def test_the_seeds_of_a_comparison_share_one_choice(
    jobs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_choice, "decide_compile", decide_by_seed)
    compare(comparison("seeds=1,0,2"), tmp_path, jobs)
    found = choices_in(tmp_path, 0, 1, 2)
    assert {choices.compile_reason for choices in found} == {"decided for seed 1"}
    assert len({choices.threads for choices in found}) == 1


def test_a_seed_that_is_added_computes_as_the_first_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_choice, "decide_compile", decide_by_seed)
    compare(comparison("seeds=3"), tmp_path)
    compare(comparison("seeds=0,3"), tmp_path)
    assert [choices.compile_reason for choices in choices_in(tmp_path, 0, 3)] == [
        "decided for seed 3",
        "decided for seed 3",
    ]


def test_seeds_after_one_that_could_not_be_compiled_do_not_try_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiles_at_once: None
) -> None:
    attempts: list[object] = []

    def fail(*args: object) -> BoundStep:
        attempts.append(args)
        raise RuntimeError("no such instruction")

    monkeypatch.setattr(stack_runner, "bind_compiled", fail)
    with pytest.warns(RuntimeWarning, match="no such instruction"):
        compare(comparison("seeds=0,1", "compile=training"), tmp_path)
    assert len(attempts) == 1
    reason = "steps could not be compiled: no such instruction"
    for choices in choices_in(tmp_path, 0, 1):
        assert (choices.compile, choices.compile_reason) == (False, reason)


# Compiling before the first round


class ReadAtRounds:
    """Keeps the choices that are written down when a run starts, and at the end of each round."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self.at_start: list[Choices] = []
        self.at_rounds: list[Choices] = []

    def on_run_start(self, record: RunRecord, rounds_done: int) -> None:
        self.at_start.append(record.choices)

    def on_round_end(self, entry: RoundEntry) -> None:
        self.at_rounds.append(RunDir(self._out).read_record().choices)

    def on_run_end(self, record: RunRecord) -> None: ...


def test_what_is_compiled_is_said_before_the_first_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiles_at_once: None
) -> None:
    monkeypatch.setattr(
        engine_choice,
        "decide_compile",
        lambda *_: CompileDecision("training", "7 steps are enough"),
    )
    bound: list[object] = []

    def bind(*args: Any) -> BoundStep:
        bound.append(args)
        return bind_eager(*args)

    monkeypatch.setattr(stack_runner, "bind_compiled", bind)
    reader = ReadAtRounds(tmp_path)
    bound_at_rounds: list[int] = []
    config = small("method=fedavg", "rounds=3", "compile=auto")
    reader_end = reader.on_round_end

    def count(entry: RoundEntry) -> None:
        bound_at_rounds.append(len(bound))
        reader_end(entry)

    monkeypatch.setattr(reader, "on_round_end", count)
    start_run(config, tmp_path, (reader,))
    (note,) = reader.at_start[0].notes
    assert note.startswith("fedavg compiles ")
    assert " before its first round, which takes about " in note
    assert note.endswith(": 7 steps are enough")
    assert bound_at_rounds[0] == bound_at_rounds[-1] > 0


@pytest.mark.parametrize("cause", ["failure", "time-out"])
def test_a_fallback_is_written_down_before_the_first_round_and_kept(
    cause: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiles_at_once: None
) -> None:
    def fail(*args: object) -> BoundStep:
        raise RuntimeError("no such instruction\nand more of it")

    reason = "compiling takes too long"
    monkeypatch.setattr(engine_choice, "MIN_COMPILE_TIMEOUT", -1.0)
    monkeypatch.setattr(engine_choice, "TIMEOUT_PER_ESTIMATE", 0.0)
    if cause == "failure":
        reason = "no such instruction"
        monkeypatch.undo()
        monkeypatch.setattr(factory, "get_compile_error", lambda device: None)
        monkeypatch.setattr(stack_runner, "bind_compiled", fail)
    reader = ReadAtRounds(tmp_path)
    config = small("method=scaffold", "rounds=3", "compile=training", "checkpoint_every=1")
    with pytest.warns(RuntimeWarning, match=reason):
        start_run(config, tmp_path, (reader,), should_stop=lambda: True)
    assert reader.at_start[0].compile == "training"
    (choices,) = reader.at_rounds
    assert choices.compile is False
    assert choices.compile_reason == f"steps could not be compiled: {reason}"
    assert choices.notes[-1] == f"runs uncompiled after all, since {choices.compile_reason}"
    # The compiler works again, but the run goes on as it began.
    monkeypatch.setattr(stack_runner, "bind_compiled", bind_eager)
    made: list[object] = []
    make_engine = factory.make_engine

    def watch(context: Any, name: str, chunk: Any, compile: Any) -> Any:
        made.append(compile)
        return make_engine(context, name, chunk, compile)

    monkeypatch.setattr(factory, "make_engine", watch)
    resume_run(tmp_path)
    assert set(made) == {False}


def test_compiling_ahead_changes_no_state(compiles_at_once: None) -> None:
    def fit(compile: Any) -> ft.FitResult:
        return ft.fit("scaffold", Net, toy_data(), rounds=3, cohort=4, batch=8, compile=compile)

    compiled = fit("training")
    uncompiled = fit(False)
    assert factory.get_engine_options(compiled.engine).compile == "training"
    for name, value in compiled.params.items():
        assert torch.allclose(value, uncompiled.params[name], atol=1e-6)


def test_fit_compiles_long_runs_by_itself(
    monkeypatch: pytest.MonkeyPatch, compiles_at_once: None, capfd: pytest.CaptureFixture[str]
) -> None:
    decisions = [CompileDecision("training", "enough"), CompileDecision(False, "too few")]
    monkeypatch.setattr(engine_choice, "decide_compile", lambda *_: decisions.pop(0))
    long = ft.fit("fedavg", Net, toy_data(), rounds=2, cohort=4)
    assert isinstance(long.engine, VectorizedEngine)
    assert long.engine.compile_mode == "training"
    line = capfd.readouterr().err
    assert line.startswith("fedtailor: fedavg compiles ")
    assert line.endswith(": enough\n")
    short = ft.fit("fedavg", Net, toy_data(), rounds=2, cohort=4)
    assert isinstance(short.engine, VectorizedEngine)
    assert short.engine.compile_mode is False
    assert capfd.readouterr().err == ""


# Threads

COUNTS = TrainingCounts(
    steps=100, cohort_size=10, step_flops=FLOPS_PER_THREAD / 4, step_operations=50, num_programs=1
)


@pytest.mark.parametrize(
    ("flops", "has_stacks", "threads"),
    [
        (FLOPS_PER_THREAD / 100, True, 1),
        (FLOPS_PER_THREAD / 4, False, 1),
        (FLOPS_PER_THREAD / 4, True, 2),
        (FLOPS_PER_THREAD, True, 3),
        (2 * FLOPS_PER_THREAD, False, 2),
    ],
)
def test_threads_follow_from_the_operations_of_a_step(
    flops: float, has_stacks: bool, threads: int
) -> None:
    counts = COUNTS._replace(step_flops=flops)
    assert choose_threads(counts, has_stacks)[0] == threads


def test_threads_are_no_more_than_torch_has_nor_than_processors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    large = COUNTS._replace(step_flops=1e12)
    assert choose_threads(large, True) == (3, "3 of 3 for a step of 10,000,000 MFLOP")
    monkeypatch.setattr(cpu, "count_processors", lambda: 2)
    assert choose_threads(large, True)[0] == 2
    torch.set_num_threads(1)
    assert choose_threads(large, True)[0] == 1


def test_a_small_model_takes_one_thread_and_torch_gets_its_own_back(tmp_path: Path) -> None:
    during: list[int] = []
    ft.fit(
        "fedavg",
        Net,
        toy_data(),
        rounds=1,
        cohort=4,
        on_round_end=lambda _: during.append(torch.get_num_threads()),
    )
    assert during == [1]
    assert torch.get_num_threads() == 3
    config = small("method=fedavg", "rounds=1").model_copy(update={"threads": None})
    record = start_run(config, tmp_path).record
    assert record.choices.threads == 1
    assert record.choices.threads_reason.startswith("1 of 3 for a step of ")
    assert torch.get_num_threads() == 3


def test_threads_that_are_asked_for_are_taken(tmp_path: Path) -> None:
    during: list[int] = []
    ft.fit(
        "fedavg",
        Net,
        toy_data(),
        rounds=1,
        cohort=4,
        threads=2,
        on_round_end=lambda _: during.append(torch.get_num_threads()),
    )
    assert during == [2]
    record = start_run(small("method=fedavg", "rounds=1", "threads=2"), tmp_path).record
    assert (record.choices.threads, record.choices.threads_reason) == (2, "asked for")
    for threads in (0, 2.5, "2"):
        with pytest.raises(InputError, match="fit: threads must be a whole number of at least 1"):
            ft.fit("fedavg", Net, toy_data(), rounds=1, threads=threads)  # type: ignore[arg-type]
