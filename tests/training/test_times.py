"""Where the time of a run goes, on a clock that moves by one second whenever it is read."""

from functools import partial
from itertools import count
from pathlib import Path

import pytest

from fedtailor.core.stopwatch import Stopwatch
from fedtailor.training import runner
from fedtailor.training.run_dir import RunDir
from fedtailor.training.runner import resume_run, start_run
from interruptions import small
from known import known

WORDS = ["method=fedavg", "rounds=4", "evaluate_every=2", "compile=false"]


@pytest.fixture
def readings(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """All readings of the clock of the runs that the test starts."""
    seen: list[float] = []
    ticks = count(1.0)

    def read_clock() -> float:
        seen.append(next(ticks))
        return seen[-1]

    monkeypatch.setattr(runner, "Stopwatch", partial(Stopwatch, read_clock))
    return seen


def test_the_times_of_a_run_add_up_to_the_wall_clock(tmp_path: Path, readings: list[float]) -> None:
    record = start_run(small(*WORDS), tmp_path / "out").record
    times = known(record.times)
    # The last thing that a run writes is its record, and the clock is read before it is written.
    after_the_record = [reading for reading in readings if reading > readings[0] + times.total]
    assert times.total == readings[-1 - len(after_the_record)] - readings[0]
    assert len(after_the_record) == 2  # to begin and to end the writing
    assert min(times.data, times.training, times.evaluation, times.personalizing) > 0
    assert times.compiling == 0


def test_a_resumed_run_adds_to_the_times_that_its_record_has(
    tmp_path: Path, readings: list[float]
) -> None:
    calls = count(1)
    stopped = start_run(small(*WORDS), tmp_path / "out", should_stop=lambda: next(calls) == 2)
    assert stopped.record.status == "interrupted"
    before = known(stopped.record.times)
    assert before.total > 0
    first_of_the_second_start = len(readings)
    times = known(resume_run(tmp_path / "out").record.times)
    in_the_second_start = times.total - before.total
    assert 0 < in_the_second_start <= readings[-1] - readings[first_of_the_second_start]
    for name in ("data", "training", "evaluation", "personalizing"):
        assert getattr(times, name) > getattr(before, name)
    assert RunDir(tmp_path / "out").read_record().times == times
