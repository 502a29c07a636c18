"""The one round loop, for every method and every engine."""

import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch

from fedtailor import prng
from fedtailor.core import trees
from fedtailor.core.stopwatch import time_phase
from fedtailor.core.types import ServerState
from fedtailor.engines.base import Engine
from fedtailor.engines.context import EngineContext
from fedtailor.errors import DivergedError, require
from fedtailor.prng.streams import Stream


class Cost(NamedTuple):
    """The cost of one round or of several."""

    bytes_down: int = 0
    bytes_up: int = 0
    steps: int = 0  # of clients
    seconds: float = 0.0

    def add(self, other: "Cost") -> "Cost":
        """Return the sum of two costs."""
        return Cost(
            self.bytes_down + other.bytes_down,
            self.bytes_up + other.bytes_up,
            self.steps + other.steps,
            self.seconds + other.seconds,
        )


class Round(NamedTuple):
    """A round that has ended."""

    rounds_done: int  # so far, this one included
    state: ServerState
    cohort: np.ndarray
    cost: Cost


def run_rounds(
    context: EngineContext,
    engine: Engine,
    state: ServerState,
    cohort_size: int,
    should_sync: Callable[[int], bool] = lambda rounds_done: True,
) -> Iterator[Round]:
    """Train round after round, for as long as the caller asks for another one.

    Cohorts depend on the seed and the round alone, so all methods of a comparison train the same
    ones.

    Args:
        context: The method, task and data of the run.
        engine: What trains cohorts and updates the server.
        state: The state to begin from.
        cohort_size: Clients a round.
        should_sync: Whether a model that has diverged must be found after this many rounds. On a
            GPU it may be found a round later otherwise, so that the host need not wait for the
            device in every round.

    Raises:
        DivergedError: The model has parameters that are not finite.
    """
    round_idx = int(state.round)
    previous: _FiniteCheck | None = None
    while True:
        started_at = time.perf_counter()
        cohort = draw_cohort(context, cohort_size, round_idx)
        bytes_down = 0
        bytes_up = 0
        steps = 0
        with time_phase("training"):
            if context.method.client.phases:
                cohort_update, bytes_down, bytes_up, steps = engine.train(state, cohort, round_idx)
                state = engine.update_server(state, cohort_update, round_idx)
            round_idx += 1
            state = state._replace(round=torch.full_like(state.round, round_idx))
            check = _FiniteCheck(context.method.name, round_idx, state)
            if previous is not None:
                previous.wait_and_raise()
            previous = check
            if should_sync(round_idx) or not state.round.is_cuda:
                check.wait_and_raise()
        cost = Cost(bytes_down, bytes_up, steps, time.perf_counter() - started_at)
        yield Round(round_idx, state, cohort, cost)


def draw_cohort(context: EngineContext, cohort_size: int, round_idx: int) -> np.ndarray:
    """Return the clients of a round, drawn without replacement from the trainable ones."""
    client_ids = context.data.groups["train"]
    key = prng.key(context.seed, Stream.COHORT, round_idx).numpy()
    cohort: np.ndarray = client_ids[prng.choice(key, len(client_ids), cohort_size)]
    return cohort


def check_cohort_size(context: EngineContext, cohort_size: int) -> None:
    """Raise an error if a cohort of that size cannot be drawn."""
    num_clients = len(context.data.groups["train"])
    require(
        1 <= cohort_size <= num_clients,
        f"{context.method.name}: {cohort_size} clients a round were asked for, but data set "
        f"'{context.data.name}' has {num_clients} to train on; choose a cohort of 1 to "
        f"{num_clients}.",
    )


def raise_if_diverged(method: str, state: ServerState) -> None:
    """Raise an error if a model has parameters that are not finite."""
    _FiniteCheck(method, int(state.round), state).wait_and_raise()


class _FiniteCheck:
    """A check that a model is finite after a round, copied to the host once the device has it."""

    def __init__(self, method: str, rounds_done: int, state: ServerState) -> None:
        self._method = method
        self._rounds_done = rounds_done
        self._is_finite = trees.is_finite_tensor(state.params)
        self._ready_event = None
        if self._is_finite.is_cuda:
            flag = torch.empty((), dtype=torch.bool, pin_memory=True)
            self._is_finite = flag.copy_(self._is_finite, non_blocking=True)
            self._ready_event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._ready_event.record()

    def wait_and_raise(self) -> None:
        """Wait for the device to finish the round, and raise an error if the model diverged."""
        if self._ready_event is not None:
            self._ready_event.synchronize()
        if not self._is_finite:
            raise DivergedError(
                f"{self._method}: the model's parameters were no longer finite after round "
                f"{self._rounds_done}; "
                "lower the learning rate (lr) or check the data for extreme values."
            )
