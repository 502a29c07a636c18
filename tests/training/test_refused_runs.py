"""A run that is refused leaves nothing behind, so that the corrected command works."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedtailor.cli.progress import reserve_out
from fedtailor.engines import factory
from fedtailor.errors import DivergedError, InputError, RoutineError
from fedtailor.training import runner
from fedtailor.training.record.schema import RoundEntry, RunRecord
from fedtailor.training.run_dir import RunDir
from fedtailor.training.runner import resume_run, start_run
from interruptions import small

WORDS = ["method=fedavg", "rounds=2"]


@pytest.fixture
def refuse(monkeypatch: pytest.MonkeyPatch) -> Callable[[Exception], pytest.MonkeyPatch]:
    """Make engines impossible, as the wrong device or a failing compiler would."""

    def raise_instead(problem: Exception) -> pytest.MonkeyPatch:
        def make_engine(*_: Any) -> None:
            raise problem

        monkeypatch.setattr(factory, "make_engine", make_engine)
        return monkeypatch

    return raise_instead


@pytest.mark.parametrize("name", ["out", "new/folders/out", "empty"])
@pytest.mark.parametrize("problem", [InputError("No device."), RoutineError("No compiler.")])
def test_nothing_is_left_and_the_corrected_command_works(
    name: str, problem: Exception, refuse: Callable[[Exception], Any], tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    patch = refuse(problem)
    with pytest.raises(type(problem), match=str(problem)):
        start_run(small(*WORDS), tmp_path / name)
    assert [path.name for path in tmp_path.rglob("*")] == ["empty"]
    patch.undo()
    assert start_run(small(*WORDS), tmp_path / name).is_finished


def test_a_failure_in_the_first_round_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    flag = tmp_path / "is_training"
    source = (
        "from pathlib import Path\n\nfrom torch import nn\n\nclass Net(nn.Linear):\n"
        "    def __init__(self):\n        super().__init__(64, 10)\n\n"
        "    def forward(self, x):\n"
        "        return super().forward(x.flatten(1))\n"
    )
    path.write_text(
        source.replace("return", f"assert not Path({str(flag)!r}).exists()\n        return")
    )
    config = small(*WORDS, f"model={path}:Net", "engine=sequential")

    class FirstRound:
        """Makes the model fail from the first round on."""

        def on_run_start(self, record: RunRecord, rounds_done: int) -> None:
            flag.touch()

        def on_round_end(self, entry: RoundEntry) -> None: ...
        def on_run_end(self, record: RunRecord) -> None: ...

    with pytest.raises(RoutineError):
        start_run(config, tmp_path / "out", (FirstRound(),))
    assert sorted(tmp_path.iterdir()) == [flag, path]
    path.write_text(source)
    assert start_run(config, tmp_path / "out").is_finished


def test_files_of_the_user_in_the_folder_stay(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match=r"is not empty; choose another folder\.$"):
        start_run(small(*WORDS), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_run_with_a_round_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = iter([False])

    def fail_later() -> bool:
        for is_stopping in rounds:
            return is_stopping
        raise InputError("Too late.")

    with pytest.raises(InputError, match="Too late"):
        start_run(small(*WORDS), tmp_path / "out", should_stop=fail_later)
    assert len(RunDir(tmp_path / "out").read_rounds()) == 1
    assert resume_run(tmp_path / "out").is_finished


def test_a_run_that_diverges_at_once_stays(tmp_path: Path) -> None:
    with pytest.raises(DivergedError):
        start_run(small(*WORDS, "lr=1e30"), tmp_path / "out")
    record = RunDir(tmp_path / "out").read_record()
    assert record.status == "diverged"
    assert "no longer finite" in (record.problem or "")


def test_a_second_run_in_the_folder_leaves_the_first_alone(tmp_path: Path) -> None:
    out = tmp_path / "out"

    def begin_another() -> bool:
        with pytest.raises(InputError, match="holds another run already"):
            start_run(small(*WORDS), out)
        return False

    assert start_run(small(*WORDS), out, should_stop=begin_another).is_finished


def test_a_second_run_before_anything_is_written_leaves_the_first_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    make_run = runner.Run
    refusals = []

    def begin_another(*args: Any) -> Any:
        monkeypatch.setattr(runner, "Run", make_run)
        (out / "config.json").rename(tmp_path / "kept")  # as it is before that is written
        with pytest.raises(InputError) as caught:
            start_run(small(*WORDS), out)
        refusals.append(str(caught.value))
        (tmp_path / "kept").rename(out / "config.json")
        return make_run(*args)

    monkeypatch.setattr(runner, "Run", begin_another)
    assert start_run(small(*WORDS), out).is_finished
    assert refusals == [
        f"Another process is working on the run in '{out}'; wait until it has ended."
    ]


def test_commands_at_once_choose_different_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    barrier = threading.Barrier(4)
    chosen: list[Path] = []

    def choose() -> None:
        barrier.wait()
        with reserve_out(None, "my/digits.npz") as out:
            chosen.append(out)
            barrier.wait()
            (out / "run").touch()

    for _ in range(5):
        threads = [threading.Thread(target=choose) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(chosen) == sorted(Path("runs", f"digits-{index}") for index in range(1, 21))


def test_a_chosen_folder_that_stays_empty_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError), reserve_out(None, "digits"):
        raise InputError("refused")
    assert list(tmp_path.iterdir()) == []
    with reserve_out(None, "digits") as out:
        (out / "run").touch()
    with reserve_out(None, "digits") as other_out:
        assert other_out == Path("runs", "digits-2")
        assert other_out.is_dir()
    assert [path.name for path in Path("runs").iterdir()] == ["digits-1"]
