"""What an engine is: it trains a cohort, does the server's work, and personalizes and scores clients.

Data is reached only inside an engine, because on real machines it is somewhere else. An engine knows the type `Method`
and no method by name.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple, Protocol

import numpy as np
from torch import Tensor

from fedtailor.core.types import CohortUpdate, Routine, ServerState
from fedtailor.engines.client_state import ClientStateStore
from fedtailor.errors import FedtailorError, RoutineError


class TrainResult(NamedTuple):
    """What training a cohort gives: the gathered change, and what it cost."""

    cohort_update: CohortUpdate
    bytes_down: int
    bytes_up: int
    steps: int  # of all clients together


class ScoreResult(NamedTuple):
    """Per client and figure (the loss and each metric) the pair (sum, weight), before and after personalizing."""

    before: dict[str, Tensor]
    after: dict[str, Tensor]


class Engine(Protocol):
    """Where and how the functions of a method run."""

    notes: tuple[str, ...]
    """What was decided on the way here that the user should know."""

    client_states: ClientStateStore

    def train(self, state: ServerState, cohort: np.ndarray, round_idx: int) -> TrainResult:
        """Sends the broadcast to the clients of a cohort, lets them work, and gathers their changes."""
        ...

    def update_server(
        self, state: ServerState, cohort_update: CohortUpdate, round_idx: int
    ) -> ServerState:
        """Does the server's work on what was gathered."""
        ...

    def score(
        self, state: ServerState, client_ids: np.ndarray, personalize: Routine | None = None
    ) -> ScoreResult:
        """Personalizes clients, old or new, on their train examples and scores them on their test examples.

        They personalize as the method does, or as another work of the same kind does.
        """
        ...


@contextmanager
def error_context(stage: str, round_idx: int, subject: str) -> Iterator[None]:
    """Says at which stage, in which round and for whom something failed."""
    try:
        yield
    except FedtailorError:
        raise
    except Exception as problem:
        message = f"{type(problem).__name__}: {next(iter(str(problem).splitlines()), '')}"
        if "out of memory" in message:  # torch goes on to tell of every process on the GPU
            message = "the device's memory is full; stack fewer clients (chunk=8, say) or have less beside it (jobs=1)."
        raise RoutineError(
            f"{stage} failed in round {round_idx} for {subject}: {message}"
        ) from problem
