"""The interface of engines, which train cohorts, run the server's routine, and score clients.

Only engines read the data, since in a real deployment the data stay on other machines. An engine
takes any `Method` and knows none by name.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple, Protocol

import numpy as np
from torch import Tensor

from fedtailor.core import trees
from fedtailor.core.types import ClientResult, CohortUpdate, Method, Routine, ServerState
from fedtailor.engines.client_state import ClientStateStore
from fedtailor.engines.device_data import DeviceDataset
from fedtailor.errors import FedtailorError, RoutineError, summarize_error


class ClientWork(NamedTuple):
    """A client that a routine runs for: its examples and its random key.

    The server is client 0 of its own examples.
    """

    device_data: DeviceDataset | None  # examples of all clients; None: steps see no batches
    client: int  # index of the client
    key: Tensor


class TrainResult(NamedTuple):
    """Aggregated update of a cohort, and the cost of all its clients together."""

    cohort_update: CohortUpdate
    bytes_down: int
    bytes_up: int
    steps: int


class ScoreResult(NamedTuple):
    """Scores of clients on their test examples, before and after personalization.

    Each dict has the (sum, weight) [clients, 2] of the loss and of each metric. Both are empty if
    there are no clients.
    """

    before: dict[str, Tensor]
    after: dict[str, Tensor]


class Engine(Protocol):
    """Runs the routines of a method."""

    notes: tuple[str, ...]
    """Decisions that the user should know of, such as why a run is not compiled."""

    client_states: ClientStateStore

    def train(self, state: ServerState, cohort: np.ndarray, round_idx: int) -> TrainResult:
        """Train the clients of a cohort from the broadcast and aggregate their updates.

        Args:
            state: Server state that the broadcast is made from.
            cohort: Indices of the clients, [clients].
            round_idx: Index of the round; random keys derive from it.
        """
        ...

    def update_server(
        self, state: ServerState, cohort_update: CohortUpdate, round_idx: int
    ) -> ServerState:
        """Return the server state after the server's routine.

        Args:
            state: Server state that the cohort was trained from.
            cohort_update: Aggregated update of the cohort.
            round_idx: Index of the round; random keys derive from it.
        """
        ...

    def score(
        self, state: ServerState, client_ids: np.ndarray, personalize: Routine | None = None
    ) -> ScoreResult:
        """Personalize clients on the examples they adapt on and score them on their test examples.

        Args:
            state: Server state that the broadcast is made from.
            client_ids: Indices of the clients, participating or unseen, [clients].
            personalize: Routine to personalize with; None is the method's own.
        """
        ...


def count_upload_bytes(method: Method, result: ClientResult) -> int:
    """Return the bytes that a client, or a stack of clients, sends to the server after training."""
    if method.num_offered_states:
        return trees.nbytes(result.update) + trees.nbytes(result.state)
    return trees.nbytes(result.update)


@contextmanager
def error_context(stage: str, round_idx: int, subject: str) -> Iterator[None]:
    """Raise any error in the block as a `RoutineError`; errors of fedtailor pass unchanged.

    Args:
        stage: Name of the method and of the routine that runs, for the message.
        round_idx: Index of the round.
        subject: Whose routine it is: the server's, a client's or one of several clients'.
    """
    try:
        yield
    except FedtailorError:
        raise
    except Exception as problem:
        message = summarize_error(problem)
        if "out of memory" in message:
            # torch's own message also lists every process on the GPU.
            message = (
                "the device's memory is full; stack fewer clients (chunk=8, say) "
                "or run fewer jobs at a time (jobs=1)."
            )
        raise RoutineError(
            f"{stage} failed in round {round_idx} for {subject}: {message}"
        ) from problem
