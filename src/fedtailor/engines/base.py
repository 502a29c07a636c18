"""What an engine is: it trains a cohort, does the server's work, and personalizes and scores clients.

Data is reached only inside an engine, because on real machines it is somewhere else. An engine knows the type `Method`
and no method by name.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple, Protocol

import numpy as np
from torch import Tensor

from fedtailor.core import trees
from fedtailor.core.types import ClientResult, CohortUpdate, Method, Routine, ServerState
from fedtailor.engines.client_state import ClientStateStore
from fedtailor.errors import FedtailorError, RoutineError


class TrainResult(NamedTuple):
    """What training a cohort gives: the aggregated update, and what it cost."""

    cohort_update: CohortUpdate
    bytes_down: int
    bytes_up: int
    steps: int  # of all clients together


class ScoreResult(NamedTuple):
    """The (sum, weight) of the loss and of each metric over a client's test examples, [clients, 2] each."""

    before: dict[str, Tensor]
    after: dict[str, Tensor]


class Engine(Protocol):
    """Where and how the functions of a method run."""

    notes: tuple[str, ...]
    """Decisions that the user should know of, such as why a run is not compiled."""

    client_states: ClientStateStore

    def train(self, state: ServerState, cohort: np.ndarray, round_idx: int) -> TrainResult:
        """Train the clients of a cohort from the broadcast and aggregate their updates."""
        ...

    def update_server(
        self, state: ServerState, cohort_update: CohortUpdate, round_idx: int
    ) -> ServerState:
        """Return the server state after the server's work on the update of a cohort."""
        ...

    def score(
        self, state: ServerState, client_ids: np.ndarray, personalize: Routine | None = None
    ) -> ScoreResult:
        """Personalize clients on the examples they adapt on and score them on their test examples.

        Args:
            state: Server state whose model is broadcast.
            client_ids: Indices of the clients, participating or unseen.
            personalize: Routine to personalize by; default: the method's own.
        """
        ...


def count_upload_bytes(method: Method, result: ClientResult) -> int:
    """Return the bytes that a client, or a stack of clients, sends to the server after training."""
    if method.num_offered_states:
        return trees.nbytes(result.update) + trees.nbytes(result.state)
    return trees.nbytes(result.update)


@contextmanager
def error_context(stage: str, round_idx: int, subject: str) -> Iterator[None]:
    """Raise what fails inside as a RoutineError that names stage, round and client."""
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
