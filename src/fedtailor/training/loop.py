"""The one round loop, for every method and every engine."""

import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch

from fedtailor import prng
from fedtailor.core import trees
from fedtailor.core.types import ServerState
from fedtailor.engines.base import Engine
from fedtailor.engines.context import EngineContext
from fedtailor.errors import DivergedError, require
from fedtailor.prng.streams import Stream


class Cost(NamedTuple):
    """What rounds cost."""

    bytes_down: int = 0
    bytes_up: int = 0
    steps: int = 0  # of clients
    seconds: float = 0.0

    def add(self, other: "Cost") -> "Cost":
        """The two together."""
        return Cost(
            self.bytes_down + other.bytes_down,
            self.bytes_up + other.bytes_up,
            self.steps + other.steps,
            self.seconds + other.seconds,
        )


class Round(NamedTuple):
    """A round that has ended."""

    rounds_done: int  # of rounds so far
    state: ServerState
    cohort: np.ndarray
    cost: Cost


def run_rounds(
    context: EngineContext,
    engine: Engine,
    state: ServerState,
    cohort: int,
    should_sync: Callable[[int], bool] = lambda round_idx: True,
) -> Iterator[Round]:
    """Train round after round from a state on, for as long as rounds are asked for.

    Cohorts depend on the seed and the round alone, so every method of a comparison meets the same ones. A model that
    has diverged is refused after the round, or, on a GPU, a round later unless `should_sync` asks for it: then
    the host need not wait for the device in every round.
    """
    client_ids, round_idx = context.data.groups["train"], int(state.round)
    previous: _FiniteCheck | None = None
    while True:
        started_at = time.perf_counter()
        cohort_ids = client_ids[
            prng.choice(
                prng.key(context.seed, Stream.COHORT, round_idx).numpy(), len(client_ids), cohort
            )
        ]
        bytes_down = bytes_up = steps = 0
        if (
            context.method.client.phases
        ):  # a method that trains nobody in rounds has nothing to gather
            cohort_update, bytes_down, bytes_up, steps = engine.train(state, cohort_ids, round_idx)
            state = engine.update_server(state, cohort_update, round_idx)
        round_idx += 1
        state = state._replace(round=torch.full_like(state.round, round_idx))
        check = _FiniteCheck(context.method.name, round_idx, state)
        if previous is not None:
            previous.wait_and_raise()
        previous = check
        if should_sync(round_idx) or not state.round.is_cuda:
            check.wait_and_raise()
        yield Round(
            round_idx,
            state,
            cohort_ids,
            Cost(bytes_down, bytes_up, steps, time.perf_counter() - started_at),
        )


def check_cohort_size(context: EngineContext, cohort: int) -> None:
    """Raises if a cohort of that size cannot be drawn."""
    num_clients = len(context.data.groups["train"])
    require(
        1 <= cohort <= num_clients,
        f"{context.method.name}: {cohort} clients a round were asked for, but data set '{context.data.name}' has "
        f"{num_clients} to train on; choose a cohort of 1 to {num_clients}.",
    )


def raise_if_diverged(method: str, state: ServerState) -> None:
    """Raises if the model is no longer made of finite numbers."""
    _FiniteCheck(method, int(state.round), state).wait_and_raise()


class _FiniteCheck:
    """Whether a round ended in finite numbers, known as soon as the device has come that far, whatever it does then."""

    def __init__(self, method: str, rounds_done: int, state: ServerState) -> None:
        self._method, self._rounds_done, self._finite = (
            method,
            rounds_done,
            trees.is_finite_tensor(state.params),
        )
        self._ready_event = None
        if self._finite.is_cuda:
            flag = torch.empty((), dtype=torch.bool, pin_memory=True)
            self._finite = flag.copy_(self._finite, non_blocking=True)
            self._ready_event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._ready_event.record()

    def wait_and_raise(self) -> None:
        """Waits for the round's end if it must, and raises if the model is no longer made of finite numbers."""
        if self._ready_event is not None:
            self._ready_event.synchronize()
        if not self._finite:
            raise DivergedError(
                f"{self._method}: the model's parameters were no longer finite after round {self._rounds_done}; "
                "lower the learning rate (lr) or check the data for extreme values."
            )
