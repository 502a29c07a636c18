"""The reference engine: one client after another, one step after another.

It reads like the pseudocode of the papers, and the fast engine is tested against it. The two share
what makes their numbers comparable, random keys (`prng`) and the order of batches
(`data/batching.py`), but no code that takes a step, loads a batch or averages updates.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager

import numpy as np
import torch
from torch import Tensor

from fedtailor import prng
from fedtailor.core import trees
from fedtailor.core.task import Task
from fedtailor.core.types import (
    Batch,
    BatchPlan,
    ClientResult,
    CohortUpdate,
    Method,
    Params,
    Routine,
    ServerState,
    Tree,
)
from fedtailor.data.batching import BatchIndices, count_steps, iter_batch_indices
from fedtailor.engines.base import ScoreResult, TrainResult, count_upload_bytes, error_context
from fedtailor.engines.context import EngineContext
from fedtailor.engines.device_data import DeviceDataset
from fedtailor.engines.scoring import compute_mean_loss, scoring_routine
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
            update = self._correct_update(state, result.update, round_idx)
            if method.aggregate is None:
                weighted_sum = _add_weighted(weighted_sum, update, weight)
            else:
                updates.append(update)
        if method.aggregate is None:
            update = divide(weighted_sum, weights.sum())
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
        routine = self.context.method.server
        new_state: ServerState = self._run_server(routine, state, cohort_update, round_idx)
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
        before = []
        after = []
        for client in client_ids.tolist():
            with self._error_context(Stream.PERSONALIZE, 0, client):
                client_state = resolve_client_state(
                    self.context, self._client_data, broadcast, initial_state, client
                )
            before.append(self._score_client(before_routine, broadcast, client_state, client))
            after.append(self._score_client(after_routine, broadcast, client_state, client))
        return ScoreResult(_stack_sums(before), _stack_sums(after))

    def _score_client(
        self, personalize: Routine, broadcast: Tree, client_state: Tree, client: int
    ) -> dict[str, Tensor]:
        """Return the (sum, weight) of each metric over a client's test examples."""
        params: Params = self._run_client(
            personalize, broadcast, client_state, client, Stream.PERSONALIZE
        )
        score = scoring_routine(self.context.task)
        sums: dict[str, Tensor] = self._run_client(score, (), params, client, Stream.SCORE)
        return sums

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
        with self._error_context(stream, round_idx, client):
            return run_single_client(
                routine, shared_input, client_input, self._client_data, client, key
            )

    def _run_server(
        self, routine: Routine, state: ServerState, server_input: Tree, round_idx: int
    ) -> Tree:
        key = self.context.derive_keys(Stream.SERVER, round_idx, [0])[0]
        stage = f"{self.context.method.name}: server work"
        with error_context(stage, round_idx, "the server"):
            return run_single_client(routine, state, server_input, self._server_data, 0, key)

    def _correct_update(self, state: ServerState, update: Tree, round_idx: int) -> Tree:
        routine = self.context.method.correct_update
        if routine is None:
            return update
        return self._run_server(routine, state, update, round_idx)

    def _error_context(
        self, stream: Stream, round_idx: int, client: int
    ) -> AbstractContextManager[None]:
        stage = f"{self.context.method.name}: {stream.label} work"
        client_name = self.context.data.client_names[client]
        return error_context(stage, round_idx, f"client '{client_name}'")


def run_single_client(
    routine: Routine,
    shared_input: Tree,
    client_input: Tree,
    device_data: DeviceDataset | None,
    client: int,
    key: Tensor,
) -> Tree:
    """Run a routine for one client, step by step: the reference for every other way of running it.

    Args:
        routine: Its phases run in their order.
        shared_input: Input that all clients have in common, such as the broadcast.
        client_input: The client's own input, such as its state.
        device_data: Examples of all clients; None if steps see no batches.
        client: Index of the client.
        key: Random key of the client for this routine and round.
    """
    carry = routine.init(shared_input, client_input)
    for phase_idx, phase in enumerate(routine.phases):
        phase_key = prng.fold(key, phase_idx)
        for batches in iter_batches(phase.plan, device_data, np.array([client]), phase_key):
            carry = phase.step(shared_input, carry, batches)
    return routine.finalize(shared_input, carry)


def iter_batches(
    plan: BatchPlan, device_data: DeviceDataset | None, client_ids: np.ndarray, key: Tensor
) -> Iterator[tuple[Batch, ...]]:
    """Yield the batches of each step of one client, one for each spec of the plan.

    Args:
        plan: Plan of the phase, which also says how many steps there are.
        device_data: Examples of all clients; None if steps see no batches.
        client_ids: Index of the client, [1].
        key: Random key of the client for this phase.
    """
    if device_data is None:
        for _ in range(plan.steps or 0):
            yield ()
        return
    examples = device_data.examples
    num_steps = int(count_steps(plan, examples, client_ids)[0])
    for step_indices in iter_batch_indices(plan, examples, client_ids, key[None], num_steps):
        yield tuple(load_batch(device_data, indices.select(0)) for indices in step_indices)


def load_batch(device_data: DeviceDataset, indices: BatchIndices) -> Batch:
    """Gather the examples of one batch and convert them to what models and losses take."""
    rows = indices.rows.numpy()
    x = torch.from_numpy(device_data.examples.x[rows])
    y = torch.from_numpy(device_data.examples.y[rows])
    dtype = device_data.dtype
    example_spec = device_data.example_spec
    inputs = x.long() if example_spec.tokens else x.to(dtype) * example_spec.scale
    targets = y.to(dtype) if y.is_floating_point() else y.long()
    batch = Batch(inputs, targets, indices.mask.to(dtype), indices.key)
    return trees.to(batch, device_data.device)


def divide(weighted_sum: Tree, total_weight: Tensor) -> Tree:
    """Return the weighted mean from the weighted sum; zero if the total weight is zero."""
    if total_weight == 0:
        return trees.zeros_like(weighted_sum)
    return trees.apply(lambda leaf: leaf / total_weight.to(leaf.dtype), weighted_sum)


def _add_weighted(weighted_sum: Tree | None, update: Tree, weight: Tensor) -> Tree:
    """Return `weighted_sum` + `weight` * `update`; None is the sum of no updates."""
    if weighted_sum is None:
        return trees.scale(update, weight)
    return trees.add(weighted_sum, update, weight)


def _stack_sums(sums: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Return the (sum, weight) pairs of all clients by metric, [clients, 2], on the CPU."""
    if not sums:
        return {}
    stacked = {}
    for name in sums[0]:
        stacked[name] = torch.stack([client_sums[name] for client_sums in sums]).cpu()
    return stacked


def resolve_client_state(
    context: EngineContext,
    device_data: DeviceDataset,
    shared_input: Tree,
    initial_state: Tree,
    client: int,
) -> Tree:
    """Return the state that a client personalizes from.

    That is its own state if it has one. Otherwise it is the initial state or, for a method with
    `num_offered_states`, the best of the states that other clients offer.

    Args:
        context: The run.
        device_data: Examples of all clients.
        shared_input: The broadcast.
        initial_state: State of a client that has not taken part yet.
        client: Index of the client.
    """
    client_states = context.client_states
    if not context.method.num_offered_states or client_states.initialized[client]:
        return client_states.read(client, initial_state)
    offering_ids = context.select_offered_clients()
    if not len(offering_ids):
        return initial_state
    offered_states = client_states.gather(offering_ids, initial_state)
    key = context.derive_keys(Stream.PERSONALIZE, 0, [client])[0]
    return choose_best_state(
        context.method, context.task, shared_input, offered_states, device_data, client, key
    )


def choose_best_state(
    method: Method,
    task: Task,
    shared_input: Tree,
    candidate_states: Tree,
    device_data: DeviceDataset,
    client: int,
    key: Tensor,
) -> Tree:
    """Return the state whose personalized model has the lowest loss on what the client adapts on.

    Args:
        method: Its `personalize` is run for each state.
        task: Loss and model.
        shared_input: The broadcast.
        candidate_states: Stacked states, [states, ...].
        device_data: Examples of all clients.
        client: Index of the client.
        key: Random key of the client, the same for all states.
    """
    score = scoring_routine(task, "adapt")
    losses = []
    for index in range(len(trees.leaves(candidate_states)[0])):
        state = trees.take_row(candidate_states, index)
        params = run_single_client(
            method.personalize, shared_input, state, device_data, client, key
        )
        sums = run_single_client(score, (), params, device_data, client, key)
        losses.append(compute_mean_loss(sums))
    best = int(torch.stack(losses).argmin())
    return trees.take_row(candidate_states, best)
