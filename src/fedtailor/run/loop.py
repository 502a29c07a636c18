"""The one round loop, for every method and every engine."""

import time
from collections.abc import Iterator
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


def round_loop(setting: Setting, engine: Engine, state: State, cohort: int) -> Iterator[Round]:
    """Trains round after round from a state on, for as long as rounds are asked for.

    Cohorts depend on the seed and the round alone, so every method of a comparison meets the same ones.
    """
    people, number = setting.data.groups["train"], int(state.round)
    while True:
        began = time.perf_counter()
        chosen = people[keyed.choice(keyed.key(setting.seed, "cohort", number), len(people), cohort).numpy()]
        down = up = steps = 0
        if setting.method.client.phases:  # a method that trains nobody in rounds has nothing to gather
            gathered, down, up, steps = engine.train(state, chosen, number)
            state = engine.serve(state, gathered, number)
        number += 1
        state = state._replace(round=torch.full_like(state.round, number))
        refuse_divergence(setting.method.name, state)
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
    if not trees.all_finite(state.params):
        raise DivergedError(
            f"{method}: the model's parameters were no longer finite after round {int(state.round)}; "
            "lower the learning rate (lr) or check the data for extreme values."
        )
