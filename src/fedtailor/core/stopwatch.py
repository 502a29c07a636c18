"""Where the time of a run goes: seconds by phase, which add up to the wall clock.

A run starts a `Stopwatch`, and code of any room names the phase that it is in by `time_phase`.
Phases nest, and only the innermost one counts, so no second counts twice; seconds outside of any
phase are the rest. Without a running stopwatch `time_phase` does nothing.

On a GPU seconds are those of the host: work that was queued counts where the host waits for it.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal

TimedPhase = Literal["data", "compiling", "training", "evaluation", "personalizing", "saving"]
PHASES: tuple[TimedPhase, ...] = (
    "data",
    "compiling",
    "training",
    "evaluation",
    "personalizing",
    "saving",
)
REST = "rest"
"""The phase of seconds outside of any other."""

_running: ContextVar["Stopwatch | None"] = ContextVar("stopwatch", default=None)


class Stopwatch:
    """Seconds by phase since it was made.

    `read_clock` returns seconds; tests pass a clock of their own.
    """

    def __init__(self, read_clock: Callable[[], float] = time.perf_counter) -> None:
        self._read_clock = read_clock
        self._seconds: dict[str, float] = dict.fromkeys((*PHASES, REST), 0.0)
        self._stack: list[str] = [REST]
        self._last = read_clock()

    def read(self) -> dict[str, float]:
        """Return the seconds of each phase so far, those of the present one included."""
        self._count()
        return dict(self._seconds)

    @contextmanager
    def run(self) -> Iterator[None]:
        """Let `time_phase` count on this stopwatch within the block."""
        token = _running.set(self)
        try:
            yield
        finally:
            _running.reset(token)

    def enter(self, phase: str) -> None:
        """Begin a phase within the present one, which stands still meanwhile."""
        self._count()
        self._stack.append(phase)

    def leave(self) -> None:
        """End the present phase."""
        self._count()
        self._stack.pop()

    def _count(self) -> None:
        """Add the seconds since the last call to the present phase."""
        now = self._read_clock()
        self._seconds[self._stack[-1]] += now - self._last
        self._last = now


@contextmanager
def time_phase(phase: TimedPhase) -> Iterator[None]:
    """Count the seconds within the block as those of a phase."""
    stopwatch = _running.get()
    if stopwatch is None:
        yield
        return
    stopwatch.enter(phase)
    try:
        yield
    finally:
        stopwatch.leave()
