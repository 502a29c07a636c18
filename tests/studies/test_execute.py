"""Runs of studies: equal results whatever stops them and in however many processes."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedtailor.cli.verify import verify
from fedtailor.errors import InputError
from fedtailor.experiments.executor import Event
from fedtailor.studies.execute import read_minutes
from fedtailor.studies.publish import copy_records
from fedtailor.studies.record import PartRecord, TrialSummary, read_record
from fedtailor.training.run_dir import RunDir
from known import known
from small_study import COMPARISON, done, figures, small

TUNE = COMPARISON + "[tune]\nlr = [0.05, 0.5]\n"


def after(rounds: int) -> Callable[[], bool]:
    """Asks to stop once it has been asked so often."""
    left = iter(range(rounds))
    return lambda: next(left, None) is None


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> PartRecord:
    """The record of the small study, run in one go."""
    tmp_path = tmp_path_factory.mktemp("whole")
    return done(small(tmp_path), tmp_path / "out")["one"]


def test_the_figures_are_means_over_the_last_fifth_and_curves_are_what_was_seen(
    tmp_path: Path,
) -> None:
    study = small(tmp_path)
    record = done(study, tmp_path / "out", "rounds=10")["one"]
    assert [(run.name, run.seed) for run in record.runs] == [
        (name, seed) for name in ("fedavg", "fedprox") for seed in (0, 1)
    ]
    for run in record.runs:
        kept = RunDir(tmp_path / "out" / "one" / f"{run.name}-seed{run.seed}").read_record()
        evaluations = [known(entry.scores)["unseen"]["after"] for entry in kept.rounds]
        micro = np.array([evaluation["acc_micro"] for evaluation in evaluations], dtype=float)
        macro = np.array([evaluation["accuracy"] for evaluation in evaluations], dtype=float)
        shown = run.figures["unseen after"]
        assert shown.micro == pytest.approx(micro[-2:].mean(), abs=1e-6)
        assert shown.macro == pytest.approx(macro[-2:].mean(), abs=1e-6)
        last_scores = known(kept.scores)["unseen"]
        accuracies = np.array(last_scores.after["accuracy"], dtype=float)
        assert shown.std == pytest.approx(accuracies.std(), abs=1e-6)
        assert shown.worst_tenth == pytest.approx(accuracies.min(), abs=1e-6)
        weights = np.array(last_scores.weights, dtype=float)
        assert micro[-1] == pytest.approx(np.average(accuracies, weights=weights))
        assert run.curve.rounds == list(range(1, 11))
        assert run.curve.figures["unseen after"] == pytest.approx(micro, abs=1e-4)
        assert (run.status, run.rounds) == ("finished", 10)
        assert (run.speed, run.problem) == (None, None)
        cost = known(kept.cost)
        assert (run.cost.bytes_up, run.cost.flops) == (cost.bytes_up, cost.flops)
    assert read_record(tmp_path / "out" / "one.json") == record
    assert record.about.scale == "paper"
    assert known(record.about.minutes) >= 0
    assert record.comparison.rounds == 10
    assert (tmp_path / "out" / "one.md").read_text().startswith("# Two methods\n")
    assert [path.name for path in (tmp_path / "out" / "figures").iterdir()] == ["one-curves.svg"]


def test_a_study_that_is_stopped_goes_on_and_ends_the_same(
    tmp_path: Path, whole: PartRecord
) -> None:
    study, heard = small(tmp_path), list[Event]()
    assert (
        done(study, tmp_path / "out", on_event=heard.append, should_stop=lambda: len(heard) > 3)
        == {}
    )
    assert not (tmp_path / "out" / "one.json").exists()
    assert 0 < len([event for event in heard if event.kind == "round"]) < 24
    heard.clear()
    assert figures(done(study, tmp_path / "out", on_event=heard.append)["one"]) == figures(whole)
    assert any(
        event.round for event in heard if event.kind == "began"
    )  # it went on in the midst of runs


@pytest.mark.slow
def test_processes_that_are_stopped_go_on_and_end_the_same(
    tmp_path: Path, whole: PartRecord
) -> None:
    study, heard = small(tmp_path), list[Event]()
    done(study, tmp_path / "out", jobs=2, on_event=heard.append, should_stop=lambda: bool(heard))
    assert figures(done(study, tmp_path / "out", jobs=2)["one"]) == figures(whole)


def test_several_processes_come_to_the_same_as_one(tmp_path: Path, whole: PartRecord) -> None:
    heard: list[Event] = []
    before = os.environ.get("OMP_NUM_THREADS")
    found = done(small(tmp_path), tmp_path / "out", jobs=2, on_event=heard.append)
    assert figures(found["one"]) == figures(whole)
    ends = sorted(event.run.path.name for event in heard if event.kind == "finished")
    assert ends == [f"{name}-seed{seed}" for name in ("fedavg", "fedprox") for seed in (0, 1)]
    assert os.environ.get("OMP_NUM_THREADS") == before


JOBS = [pytest.param(1, marks=pytest.mark.slow), 2]


@pytest.mark.parametrize("jobs", JOBS)
def test_a_study_that_is_killed_goes_on_and_ends_the_same(jobs: int, tmp_path: Path) -> None:
    study = small(tmp_path)
    words = ["study", "small", "scale=paper", "rounds=16", f"jobs={jobs}", "out=out"]
    command = [sys.executable, "-m", "fedtailor", *words]
    going = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    place = tmp_path / "out" / "one" / "fedavg-seed0" / "rounds.jsonl"
    while not place.exists() or not place.stat().st_size:
        assert going.poll() is None, going.communicate()
        time.sleep(0.02)
    going.send_signal(signal.SIGKILL)
    going.communicate()  # ends when the last process that may write has ended
    assert not (tmp_path / "out" / "one.json").exists()
    found = done(study, tmp_path / "out", "rounds=16", jobs=jobs)
    assert figures(found["one"]) == figures(done(study, tmp_path / "whole", "rounds=16")["one"])


def test_a_run_that_diverges_is_written_down_and_not_run_again(tmp_path: Path) -> None:
    study, heard = small(tmp_path), list[Event]()
    record = done(study, tmp_path / "out", "fedprox.lr=1e30", on_event=heard.append)["one"]
    gone = [run for run in record.runs if run.name == "fedprox"]
    assert [run.status for run in gone] == ["diverged", "diverged"]
    assert all("no longer finite" in known(run.problem) for run in gone)
    assert all(run.figures == {} for run in gone)
    assert all(run.status == "finished" for run in record.runs if run.name == "fedavg")
    shown = (tmp_path / "out" / "one.md").read_text()
    assert "| `fedprox` | 2 | diverged | diverged | diverged | diverged |" in shown
    assert sum(event.kind == "diverged" for event in heard) == 2
    heard.clear()
    again = done(study, tmp_path / "out", "fedprox.lr=1e30", on_event=heard.append)["one"]
    assert again.runs == record.runs
    assert heard == []


def test_what_varies_is_run_with_each_value(tmp_path: Path) -> None:
    study = small(tmp_path, 'tables = ["sweep"]\nvary = { key = "lr", values = [0.1, 0.5] }\n')
    record = done(study, tmp_path / "out", "seeds=0")["one"]
    assert [(run.name, run.value) for run in record.runs] == [
        (name, value) for value in (0.1, 0.5) for name in ("fedavg", "fedprox")
    ]
    specs = [
        RunDir(tmp_path / "out" / "one" / value / "fedavg-seed0").read_config()
        for value in ("0.1", "0.5")
    ]
    assert [spec.hparams["lr"] for spec in specs] == [0.1, 0.5]
    assert sorted(path.name for path in (tmp_path / "out" / "figures").iterdir()) == [
        "one-0.1-curves.svg",
        "one-0.5-curves.svg",
        "one-sweep.svg",
    ]


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_what_is_tuned_is_chosen_as_the_command_tune_would(jobs: int, tmp_path: Path) -> None:
    from fedtailor.experiments.tune import select_best, tune
    from fedtailor.training.overrides import read_comparison

    study = small(
        tmp_path, 'tune = { rounds = 3, trials = 2, "data.validation_clients" = 0.3 }\n', TUNE
    )
    record = done(study, tmp_path / "out", "seeds=0", jobs=jobs)["one"]
    words = ["rounds=3", "trials=2", "data.validation_clients=0.3", "seeds=0"]
    trials = tune(read_comparison([str(study.folder / "one.toml"), *words]), tmp_path / "tuned")
    for run in record.runs:
        expected = select_best(trial for trial in trials if trial.variant == run.name).point
        assert run.tuned == expected
        spec = RunDir(tmp_path / "out" / "one" / f"{run.name}-seed0").read_config()
        assert spec.hparams["lr"] == expected["lr"]
        assert (spec.rounds, spec.tuned) == (6, ("lr",))
        assert "validation_clients" not in record.comparison.data_options
    assert record.trials == [
        TrialSummary(method=trial.variant, point=trial.point, validation=trial.score)
        for trial in trials
    ]
    written = (tmp_path / "out" / "one" / "tune" / "tuned.toml").read_text()
    assert (
        written.replace(str(tmp_path / "out"), "")
        == (tmp_path / "tuned" / "tuned.toml").read_text()
    )


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    study = small(tmp_path)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine").write_text("x")
    with pytest.raises(
        InputError, match=r"other' holds 'mine'; choose another folder with out=DIR\.$"
    ):
        done(study, tmp_path / "other")
    done(study, tmp_path / "out", "rounds=1", "seeds=0")
    with pytest.raises(
        InputError, match=r"holds study small at scale=paper; choose another folder"
    ):
        done(study, tmp_path / "out", "rounds=1", "seeds=0", scale="quick")
    with pytest.raises(InputError, match=r"fedavg-seed0' holds a run with another specification; "):
        done(study, tmp_path / "out", "rounds=2", "seeds=0")


def test_runs_that_ended_elsewhere_are_taken_as_they_are(tmp_path: Path) -> None:
    study, elsewhere = small(tmp_path), ("chunk=2", "engine=sequential", "checkpoint_every=3")
    done(study, tmp_path / "out", "seeds=0")
    record = tmp_path / "out" / "one" / "fedavg-seed0" / "record.json"
    before = record.read_bytes()
    done(study, tmp_path / "out", "seeds=0,1", *elsewhere)
    assert record.read_bytes() == before
    assert (
        read_record(tmp_path / "out" / "one.json").comparison.engine == "vectorized"
    )  # as the first run was made
    assert RunDir(tmp_path / "out" / "one" / "fedavg-seed1").read_config().engine == "sequential"
    with pytest.raises(InputError, match=r"fedavg-seed0' holds a run with another specification; "):
        done(study, tmp_path / "out", "seeds=0,1", "precision=float64")


def test_a_run_that_was_stopped_goes_on_as_it_began(tmp_path: Path) -> None:
    done(small(tmp_path), tmp_path / "out", "checkpoint_every=1", should_stop=after(3))
    with pytest.raises(InputError, match=r"fedavg-seed0' holds a run with another specification; "):
        done(small(tmp_path), tmp_path / "out", "checkpoint_every=1", "chunk=2")


def test_everything_is_checked_before_anything_is_begun(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="99 clients a round were asked for"):
        done(small(tmp_path), tmp_path / "out", "cohort=99")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_process_that_fails_lets_the_others_finish(tmp_path: Path) -> None:
    study = small(tmp_path)
    place = tmp_path / "out" / "one" / "fedavg-seed0"
    done(study, tmp_path / "out", should_stop=after(3))
    (place / "rounds.jsonl").unlink()
    with pytest.raises(InputError, match=r"^No checkpoint .* can be used"):
        done(study, tmp_path / "out", jobs=2)
    ended = [
        json.loads(path.read_text())["status"]
        for path in (tmp_path / "out" / "one").glob("fedprox*/record.json")
    ]
    assert ended == ["finished", "finished"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A place with the small study and its folder, run in one go."""
    place = tmp_path_factory.mktemp("finished")
    done(small(place), place / "out")
    return place


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("study.json", r"study.json' is not what was written; put back"),
        ("manifest.json", r"manifest.json' "),
        ("one/seconds.jsonl", r"^line 2 of '.*one/seconds.jsonl' is not what was written; put "),
    ],
)
def test_damage_to_the_files_of_a_study_is_noticed(
    name: str, sentence: str, finished: Path, tmp_path: Path
) -> None:
    shutil.copytree(finished, tmp_path / "place")
    study = small(tmp_path / "place")
    out = tmp_path / "place" / "out"
    path = out / name
    lines = path.read_text().splitlines(keepends=True)
    lines[1] = lines[1].upper()
    path.write_text("".join(lines))
    with pytest.raises(InputError, match=sentence):
        done(study, out)
    with pytest.raises(InputError, match=r"folders in .* are damaged: out"):
        verify(str(out))


def test_a_damaged_record_is_not_published(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "place")
    study = small(tmp_path / "place")
    out = tmp_path / "place" / "out"
    verify(str(out))
    (tmp_path / "place" / "pyproject.toml").touch()  # a checkout, where records are published
    record_path = out / "one.json"
    text = record_path.read_text()
    record_path.write_text(text.replace('"seed": 1', '"seed": 2', 1))
    assert record_path.read_text() != text
    with pytest.raises(InputError, match=r"one.json' is not what was written; repeat the command"):
        copy_records(study, out)
    assert not study.get_record_path(study.parts[0]).exists()
    done(study, out)
    assert copy_records(study, out) == [study.get_record_path(study.parts[0])]


def test_a_study_that_was_killed_before_its_first_file_begins(tmp_path: Path) -> None:
    study = small(tmp_path)
    done(study, tmp_path / "out")
    (tmp_path / "killed").mkdir()
    shutil.copy(tmp_path / "out" / "manifest.json", tmp_path / "killed" / "manifest.json")
    (tmp_path / "killed" / ".study.json.new").write_text('{"stu')
    assert list(done(study, tmp_path / "killed")) == ["one"]


def test_a_duration_that_was_cut_off_by_a_kill_is_left_out(finished: Path, tmp_path: Path) -> None:
    path = tmp_path / "one" / "seconds.jsonl"
    path.parent.mkdir()
    content = (finished / "out" / "one" / "seconds.jsonl").read_text()
    path.write_text(content)
    minutes = known(read_minutes("one", tmp_path))
    path.write_text(content + content[:30])
    assert read_minutes("one", tmp_path) == minutes
    seconds = [json.loads(line)["seconds"] for line in content.splitlines()]
    assert minutes == pytest.approx(sum(seconds) / 60)
    assert read_minutes("two", tmp_path) is None
