"""Seconds by phase, on a clock of the test's own."""

import pytest

from fedtailor.core.stopwatch import PHASES, REST, Stopwatch, time_phase


class FakeClock:
    """A clock that moves when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        self.now += seconds


def test_phases_nest_and_add_up_to_the_wall_clock() -> None:
    clock = FakeClock()
    stopwatch = Stopwatch(clock)
    clock.wait(1)
    with stopwatch.run():
        with time_phase("evaluation"):
            clock.wait(2)
            with time_phase("personalizing"):
                clock.wait(4)
            clock.wait(8)
        with time_phase("training"), time_phase("compiling"):
            clock.wait(16)
        clock.wait(32)
    seconds = stopwatch.read()
    assert set(seconds) == {*PHASES, REST}
    assert seconds["evaluation"] == 10
    assert seconds["personalizing"] == 4
    assert seconds["compiling"] == 16
    assert seconds["training"] == 0
    assert seconds[REST] == 33
    assert sum(seconds.values()) == clock.now - 100


def test_a_phase_that_fails_has_ended() -> None:
    clock = FakeClock()
    stopwatch = Stopwatch(clock)
    with stopwatch.run():
        with pytest.raises(ValueError, match="x"), time_phase("data"):
            clock.wait(float("x"))
        clock.wait(2)
        with time_phase("data"):
            clock.wait(1)
    assert stopwatch.read()["data"] == 1
    assert stopwatch.read()[REST] == 2


def test_the_present_phase_counts_when_it_is_read() -> None:
    clock = FakeClock()
    stopwatch = Stopwatch(clock)
    with stopwatch.run(), time_phase("saving"):
        clock.wait(3)
        assert stopwatch.read()["saving"] == 3
        clock.wait(4)
    assert stopwatch.read()["saving"] == 7


def test_only_the_innermost_stopwatch_runs_and_none_need_run() -> None:
    clock = FakeClock()
    outer = Stopwatch(clock)
    inner = Stopwatch(clock)
    with outer.run():
        with inner.run(), time_phase("training"):
            clock.wait(5)
        with time_phase("training"):
            clock.wait(1)
    with time_phase("training"):
        clock.wait(10)
    assert inner.read()["training"] == 5
    assert outer.read()["training"] == 1
