"""The one round loop, for every method and every engine."""

import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch

from fedtailor import keyed, trees
from fedtailor.engines.base import Engine, Setting
from fedtailor.errors import DivergedError, require
from fedtailor.types import State


class Cost(NamedTuple):
    """What rounds cost."""

    bytes_down: int = 0
    bytes_up: int = 0
    steps: int = 0  # of clients
    seconds: float = 0.0

    def plus(self, other: "Cost") -> "Cost":
        """The two together."""
        return Cost(
            self.bytes_down + other.bytes_down,
            self.bytes_up + other.bytes_up,
            self.steps + other.steps,
            self.seconds + other.seconds,
        )


class Round(NamedTuple):
    """A round that has ended."""

    number: int  # of rounds so far
    state: State
    cohort: np.ndarray
    cost: Cost


def round_loop(
    setting: Setting, engine: Engine, state: State, cohort: int, looked_at: Callable[[int], bool] = lambda number: True
) -> Iterator[Round]:
    """Trains round after round from a state on, for as long as rounds are asked for.

    Cohorts depend on the seed and the round alone, so every method of a comparison meets the same ones. A model that
    has diverged is refused after the round, or, on a GPU, a round later if the state is not `looked_at` before: then
    the host need not wait for the device in every round.
    """
    people, number = setting.data.groups["train"], int(state.round)
    before: _Outcome | None = None
    while True:
        began = time.perf_counter()
        chosen = people[keyed.choice(keyed.key(setting.seed, "cohort", number).numpy(), len(people), cohort)]
        down = up = steps = 0
        if setting.method.client.phases:  # a method that trains nobody in rounds has nothing to gather
            gathered, down, up, steps = engine.train(state, chosen, number)
            state = engine.serve(state, gathered, number)
        number += 1
        state = state._replace(round=torch.full_like(state.round, number))
        outcome = _Outcome(setting.method.name, number, state)
        if before is not None:
            before.refuse_divergence()
        before = outcome
        if looked_at(number) or not state.round.is_cuda:
            outcome.refuse_divergence()
        yield Round(number, state, chosen, Cost(down, up, steps, time.perf_counter() - began))


def refuse_cohort(setting: Setting, cohort: int) -> None:
    """Raises if a cohort of that size cannot be drawn."""
    people = len(setting.data.groups["train"])
    require(
        1 <= cohort <= people,
        f"{setting.method.name}: {cohort} clients a round were asked for, but data set '{setting.data.name}' has "
        f"{people} to train on; choose a cohort of 1 to {people}.",
    )


def refuse_divergence(method: str, state: State) -> None:
    """Raises if the model is no longer made of finite numbers."""
    _Outcome(method, int(state.round), state).refuse_divergence()


class _Outcome:
    """Whether a round ended in finite numbers, known as soon as the device has come that far, whatever it does then."""

    def __init__(self, method: str, number: int, state: State) -> None:
        self._method, self._number, self._finite = method, number, trees.finite(state.params)
        self._there = None
        if self._finite.is_cuda:
            flag = torch.empty((), dtype=torch.bool, pin_memory=True)
            self._finite = flag.copy_(self._finite, non_blocking=True)
            self._there = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._there.record()

    def refuse_divergence(self) -> None:
        """Waits for the round's end if it must, and raises if the model is no longer made of finite numbers."""
        if self._there is not None:
            self._there.synchronize()
        if not self._finite:
            raise DivergedError(
                f"{self._method}: the model's parameters were no longer finite after round {self._number}; "
                "lower the learning rate (lr) or check the data for extreme values."
            )
