"""The reference engine: one client after another, one step after another.

It reads like the pseudocode of the papers, and the fast engine is tested against it. The two share
no code that takes a step, loads a batch or averages updates.
"""

from contextlib import AbstractContextManager

import numpy as np
import torch
from torch import Tensor

from fedtailor.core import trees
from fedtailor.core.stopwatch import time_phase
from fedtailor.core.types import ClientResult, CohortUpdate, Params, Routine, ServerState, Tree
from fedtailor.engines.base import (
    ClientWork,
    ScoreResult,
    TrainResult,
    count_upload_bytes,
    error_context,
)
from fedtailor.engines.context import EngineContext
from fedtailor.engines.offered_states import choose_best_state
from fedtailor.engines.scoring import build_scoring_routine
from fedtailor.engines.single_client import run_single_client
from fedtailor.prng.streams import Stream


class SequentialEngine:
    """Engine that runs each client by itself; an error names the stage, the round and the client.

    Args:
        context: The run.
        notes: Decisions that the user should know of.
    """

    def __init__(self, context: EngineContext, notes: tuple[str, ...] = ()) -> None:
        self.context = context
        self.notes = notes
        self.client_states = context.client_states
        self._client_data = context.make_client_dataset()
        self._server_data = context.make_server_dataset()

    def train(self, state: ServerState, cohort: np.ndarray, round_idx: int) -> TrainResult:
        """Train the clients of a cohort and aggregate their updates (see `Engine.train`).

        Args:
            state: Server state that the broadcast is made from.
            cohort: Indices of the clients, [clients].
            round_idx: Index of the round.
        """
        method = self.context.method
        broadcast = method.broadcast(state)
        initial_state = method.init_client_state(state)
        weights = self.context.compute_weights(cohort)
        weighted_sum = None
        updates = []
        bytes_up = 0
        for client, weight in zip(cohort.tolist(), weights, strict=True):
            client_state = self.client_states.read(client, initial_state)
            result: ClientResult = self._run_client(
                method.client, broadcast, client_state, client, Stream.CLIENT, round_idx
            )
            self.client_states.write(client, result.state)
            bytes_up += count_upload_bytes(method, result)
            update = result.update
            if method.correct_update is not None:
                update = self._run_server(method.correct_update, state, update, round_idx)
            if method.aggregate is None:
                weighted_sum = _add_weighted(weighted_sum, update, weight)
            else:
                updates.append(update)
        if method.aggregate is None:
            update = _compute_mean(weighted_sum, weights.sum())
        else:
            update = method.aggregate(trees.stack(updates), weights)
        return TrainResult(
            self.context.make_cohort_update(update, cohort),
            bytes_down=len(cohort) * trees.nbytes(broadcast),
            bytes_up=bytes_up,
            steps=int(self.context.count_steps(cohort).sum()),
        )

    def update_server(
        self, state: ServerState, cohort_update: CohortUpdate, round_idx: int
    ) -> ServerState:
        """Return the server state after the server's routine (see `Engine.update_server`).

        Args:
            state: Server state that the cohort was trained from.
            cohort_update: Aggregated update of the cohort.
            round_idx: Index of the round.
        """
        server = self.context.method.server
        new_state: ServerState = self._run_server(server, state, cohort_update, round_idx)
        return new_state

    def score(
        self, state: ServerState, client_ids: np.ndarray, personalize: Routine | None = None
    ) -> ScoreResult:
        """Personalize and score clients (see `Engine.score`).

        Args:
            state: Server state that the broadcast is made from.
            client_ids: Indices of the clients, [clients].
            personalize: Routine to personalize with; None is the method's own.
        """
        method = self.context.method
        after_routine = personalize or method.personalize
        before_routine = after_routine._replace(phases=())
        broadcast = method.broadcast(state)
        initial_state = method.init_client_state(state)
        scores = []
        for client in client_ids.tolist():
            client_state = self._choose_client_state(broadcast, initial_state, client)
            before = self._score_client(before_routine, broadcast, client_state, client)
            after = self._score_client(after_routine, broadcast, client_state, client)
            scores.append(ScoreResult(before, after))
        if not scores:
            return ScoreResult({}, {})
        return trees.to(trees.stack(scores), torch.device("cpu"))

    def personalize(self, state: ServerState, client: int) -> Params:
        """Return a client's personalized model, the one that `score` scores."""
        method = self.context.method
        broadcast = method.broadcast(state)
        initial_state = method.init_client_state(state)
        client_state = self._choose_client_state(broadcast, initial_state, client)
        params: Params = self._run_client(
            method.personalize, broadcast, client_state, client, Stream.PERSONALIZE
        )
        return params

    def _score_client(
        self, personalize: Routine, broadcast: Tree, client_state: Tree, client: int
    ) -> dict[str, Tensor]:
        """Return the (sum, weight) [2] of each metric over a client's test examples."""
        with time_phase("personalizing"):
            params = self._run_client(
                personalize, broadcast, client_state, client, Stream.PERSONALIZE
            )
        scoring = build_scoring_routine(self.context.task)
        sums: dict[str, Tensor] = self._run_client(scoring, (), params, client, Stream.SCORE)
        return sums

    def _choose_client_state(self, broadcast: Tree, initial_state: Tree, client: int) -> Tree:
        """Return the state that a client personalizes from.

        That is its own state if it has one, else the best of those that other clients offer, and
        the initial state if they offer none.
        """
        if self.client_states.initialized[client]:
            return self.client_states.read(client, initial_state)
        offering_ids = self.context.select_offered_clients()
        if not len(offering_ids):
            return initial_state
        offered_states = self.client_states.gather(offering_ids, initial_state)
        method = self.context.method
        key = self.context.derive_keys(Stream.PERSONALIZE, 0, [client])[0]
        work = ClientWork(self._client_data, client, key)
        with self._error_context(Stream.PERSONALIZE, 0, client):
            return choose_best_state(method, self.context.task, broadcast, offered_states, work)

    def _run_client(
        self,
        routine: Routine,
        shared_input: Tree,
        client_input: Tree,
        client: int,
        stream: Stream,
        round_idx: int = 0,
    ) -> Tree:
        key = self.context.derive_keys(stream, round_idx, [client])[0]
        work = ClientWork(self._client_data, client, key)
        with self._error_context(stream, round_idx, client):
            return run_single_client(routine, shared_input, client_input, work)

    def _run_server(
        self, routine: Routine, state: ServerState, server_input: Tree, round_idx: int
    ) -> Tree:
        key = self.context.derive_keys(Stream.SERVER, round_idx, [0])[0]
        work = ClientWork(self._server_data, 0, key)
        with error_context(f"{self.context.method.name}: server work", round_idx, "the server"):
            return run_single_client(routine, state, server_input, work)

    def _error_context(
        self, stream: Stream, round_idx: int, client: int
    ) -> AbstractContextManager[None]:
        stage = f"{self.context.method.name}: {stream.label} work"
        client_name = self.context.data.client_names[client]
        return error_context(stage, round_idx, f"client '{client_name}'")


def _add_weighted(weighted_sum: Tree | None, update: Tree, weight: Tensor) -> Tree:
    """Return `weighted_sum` + `weight` * `update`; None is the sum of no updates."""
    if weighted_sum is None:
        return trees.scale(update, weight)
    return trees.add(weighted_sum, update, weight)


def _compute_mean(weighted_sum: Tree, total_weight: Tensor) -> Tree:
    """Return the weighted mean from the weighted sum; zero if the total weight is zero."""
    if total_weight == 0:
        return trees.zeros_like(weighted_sum)
    return trees.apply(lambda leaf: leaf / total_weight.to(leaf.dtype), weighted_sum)
