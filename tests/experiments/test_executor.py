"""The executor: whatever becomes of one run, the others are done, and the same call goes on where
it was stopped.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedtailor.errors import InputError
from fedtailor.experiments.compare import compare, make_runs
from fedtailor.experiments.executor import Event, PlannedRun, execute
from fedtailor.experiments.tune import tune
from fedtailor.training.overrides import read_comparison
from fedtailor.training.run_dir import RunDir
from fedtailor.training.runner import start_run
from known import known

SMALL = [
    "data=digits",
    "data.clients=12",
    "rounds=5",
    "cohort=3",
    "hidden=8",
    "batch=200",
    "finetune_epochs=1",
    "threads=1",
    "compile=false",
    "checkpoint_every=2",
]
BOTH = pytest.mark.parametrize("jobs", [1, 2])


def runs_for(out: Path, *words: str) -> list[PlannedRun]:
    """Three runs: FedAvg on two seeds and FSL on one."""
    comparison = read_comparison(["fedavg", "fsl", *SMALL, "seeds=0,1", *words])
    return make_runs(comparison.make_run_configs()[:3], out)


def weights(runs: list[PlannedRun]) -> list[bytes]:
    return [(run.path / "model.safetensors").read_bytes() for run in runs]


def statuses(runs: list[PlannedRun]) -> list[str | None]:
    return [RunDir(run.path).read_status() for run in runs]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """The models of the runs, each started by itself."""
    runs = runs_for(tmp_path_factory.mktemp("alone"))
    for run in runs:
        start_run(run.config, run.path)
    return weights(runs)


@BOTH
def test_any_number_of_processes_makes_the_same_models(
    jobs: int, tmp_path: Path, alone: list[bytes]
) -> None:
    runs = runs_for(tmp_path)
    heard: list[Event] = []
    execute(runs, jobs, heard.append)
    assert weights(runs) == alone
    assert len({*alone}) == 3
    for run in runs:
        own = [(event.kind, event.round) for event in heard if event.run == run]
        assert own == [
            ("began", 0),
            *(("round", number) for number in range(1, 6)),
            ("finished", 5),
        ]
    heard.clear()
    execute(runs, jobs, heard.append)  # nothing is left
    assert heard == []


def test_what_was_stopped_goes_on_and_ends_the_same(tmp_path: Path, alone: list[bytes]) -> None:
    runs = runs_for(tmp_path)
    heard: list[Event] = []
    execute(runs, 1, heard.append, stopping_after(10))
    assert statuses(runs) == ["finished", "interrupted", None]
    assert [event.kind for event in heard][-1] == "stopped"
    heard.clear()
    execute(runs, 1, heard.append)
    assert weights(runs) == alone
    assert [event.round for event in heard if event.kind == "began"] == [4, 0]


def test_processes_that_were_stopped_go_on_and_end_the_same(
    tmp_path: Path, alone: list[bytes]
) -> None:
    runs = runs_for(tmp_path)
    heard: list[Event] = []
    execute(runs, 2, heard.append, should_stop=lambda: bool(heard))
    execute(runs, 2)
    assert weights(runs) == alone


def test_asked_to_stop_before_the_first_run_nothing_is_begun(tmp_path: Path) -> None:
    execute(runs_for(tmp_path), should_stop=lambda: True)
    assert list(tmp_path.iterdir()) == []


@BOTH
def test_a_run_that_fails_leaves_the_others_alone(
    jobs: int, tmp_path: Path, alone: list[bytes]
) -> None:
    runs = runs_for(tmp_path)
    execute(runs[:1], should_stop=stopping_after(3))
    (runs[0].path / "rounds.jsonl").unlink()
    with pytest.raises(InputError, match=r"^No checkpoint .* can be used"):
        execute(runs, jobs)
    assert weights(runs[1:]) == alone[1:]
    assert statuses(runs[:1]) == ["interrupted"]


def stopping_after(rounds: int) -> Callable[[], bool]:
    """Asks to stop once it has been asked that often."""
    left = iter(range(rounds))
    return lambda: next(left, None) is None


KILLS = """
import multiprocessing, os, signal
from torch import nn

def net():
    if multiprocessing.parent_process() is not None:
        os.kill(os.getpid(), signal.SIGKILL)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
"""


def test_a_process_that_is_killed_is_one_sentence_and_the_same_call_goes_on(tmp_path: Path) -> None:
    (tmp_path / "kills.py").write_text(KILLS)
    runs = runs_for(tmp_path / "out", f"model={tmp_path / 'kills.py'}:net")
    with pytest.raises(
        InputError,
        match=r"^A worker process was killed, perhaps .* fewer processes \(jobs=N\)\.$",
    ):
        execute(runs, 2)
    assert "finished" not in statuses(runs)
    execute(runs)
    assert statuses(runs) == ["finished"] * 3


@BOTH
def test_a_run_that_diverges_is_written_down_and_is_no_failure(jobs: int, tmp_path: Path) -> None:
    runs = runs_for(tmp_path, "fsl.lr=1e30")[::-1]
    heard: list[Event] = []
    execute(runs, jobs, heard.append)
    assert statuses(runs) == ["diverged", "finished", "finished"]
    assert [event.run for event in heard if event.kind == "diverged"] == runs[:1]


def test_a_run_that_diverges_is_an_outcome_of_a_comparison(tmp_path: Path) -> None:
    comparison = read_comparison(["fedprox", "fedavg", *SMALL, "seeds=0", "fedprox.lr=1e30"])
    for _ in range(2):
        diverged, finished = (outcome.record for outcome in compare(comparison, tmp_path))
        assert diverged.status == "diverged"
        assert known(diverged.problem).startswith(
            "fedprox: the model's parameters were no longer finite"
        )
        assert known(diverged.cost).gradients == sum(entry.gradients for entry in diverged.rounds)
        assert known(diverged.times).total > 0
        assert finished.status == "finished"


def test_comparing_and_tuning_in_processes_come_to_the_same(tmp_path: Path) -> None:
    words = ["fedavg", "fedprox", *SMALL, "seeds=0,1", "pretrain=1", "tune.lr=0.05,0.5", "trials=2"]
    comparison = read_comparison(words)
    found: dict[int, list[Any]] = {}
    for jobs in (1, 2):
        outcomes = compare(comparison, tmp_path / f"compared-{jobs}", jobs)
        trials = tune(comparison, tmp_path / f"tuned-{jobs}", jobs)
        scores = [
            (outcome.record.name, outcome.record.scores, outcome.is_finished)
            for outcome in outcomes
        ]
        found[jobs] = [scores, [trial.score for trial in trials]]
    assert found[1] == found[2]
    assert [len(each) for each in found[1]] == [4, 8]


def test_processes_and_ranks_do_not_go_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(
        InputError,
        match=r"^jobs=2 starts processes of its own; leave out either that or torchrun\.$",
    ):
        execute(runs_for(tmp_path), 2)
