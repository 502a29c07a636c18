"""Cases, the random draws that they are made of, and targets, which make them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import SearchStrategy

T = TypeVar("T")

_BUFFER_BYTES = 1 << 13
"""Random bytes that an example of a strategy is drawn from; a longer one is drawn again."""
_MAX_TRIES = 20

Draws = np.random.Generator


class Case(NamedTuple):
    """A hostile case: what it does in a folder of its own, and how it ends if nothing is wrong."""

    description: str  # one line
    act: Callable[[Path], str]  # returns "ok", "refused" or "working", or raises what it meets


class Target(Protocol):
    """A kind of cases."""

    name: str

    def prepare(self, folder: Path) -> None:
        """Write into a new folder what cases start from; runs in a process of its own."""

    def open(self, folder: Path) -> None:
        """Read what was prepared and load what cases need, without starting a thread."""

    def make_case(self, draws: Draws) -> Case:
        """Return a case that depends on the draws and on what was prepared alone."""


def make_draws(seed: int, target: str, number: int) -> Draws:
    """Return the random draws of a case."""
    name = int.from_bytes(target.encode(), "big")
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, name, number])))


def pick(draws: Draws, choices: "list[T] | tuple[T, ...]") -> T:
    """Return one of the choices, all of which are equally likely."""
    return choices[int(draws.integers(len(choices)))]


class StrategyDrawer:
    """Draws examples of a hypothesis strategy from random bytes, as external fuzzers do."""

    def __init__(self, strategy: SearchStrategy[Any]) -> None:
        drawn: list[Any] = []

        @settings(database=None, deadline=None, suppress_health_check=list(HealthCheck))
        @given(strategy)
        def keep(value: Any) -> None:
            drawn.append(value)

        self._drawn = drawn
        self._fuzz = keep.hypothesis.fuzz_one_input  # type: ignore[attr-defined]

    def draw(self, draws: Draws) -> Any:
        """Return the example that follows from the draws."""
        self._drawn.clear()
        for _ in range(_MAX_TRIES):
            self._fuzz(draws.bytes(_BUFFER_BYTES))
            if self._drawn:
                return self._drawn[0]
        raise RuntimeError(f"No example fits into {_BUFFER_BYTES} random bytes.")
