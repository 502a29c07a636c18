"""The reference engine: one client after another, one step after another. Slow and obvious."""

from collections.abc import Iterator

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
from fedtailor.data.batching import count_steps, iter_batch_indices
from fedtailor.engines.aggregation import UpdateAggregator
from fedtailor.engines.base import ScoreResult, TrainResult, error_context
from fedtailor.engines.context import EngineContext
from fedtailor.engines.device_data import DeviceDataset
from fedtailor.engines.scoring import compute_mean_loss, scoring_routine
from fedtailor.prng.streams import Stream


class SequentialEngine:
    """Runs every client by itself. An error names the stage, the round and the client."""

    def __init__(self, context: EngineContext, notes: tuple[str, ...] = ()) -> None:
        self.context, self.notes, self.client_states = context, notes, context.client_states
        self._client_data, self._server_data = (
            context.make_client_dataset(),
            context.make_server_dataset(),
        )
        self._scoring_routine = scoring_routine(context.task)

    def train(self, state: ServerState, cohort: np.ndarray, round_idx: int) -> TrainResult:
        """Trains the clients of the cohort one by one."""
        method, aggregator, bytes_up = self.context.method, UpdateAggregator(self.context.method), 0
        broadcast, initial = method.broadcast(state), method.init_client_state(state)
        for client, weight in zip(cohort, self.context.compute_weights(cohort), strict=True):
            client_state = trees.take_row(self.client_states.gather(np.array([client]), initial), 0)
            result: ClientResult = self._run_client(
                method.client, broadcast, client_state, client, Stream.CLIENT, round_idx
            )
            self.client_states.scatter(
                np.array([client]), trees.apply(lambda leaf: leaf[None], result.state)
            )
            bytes_up += trees.nbytes(result.update) + (
                trees.nbytes(result.state) if method.num_offered_states else 0
            )
            update = self._correct_update(state, result.update, round_idx)
            aggregator.add(trees.apply(lambda leaf: leaf[None], update), weight[None])
        counts = (
            self.context.make_scalar(len(cohort)),
            self.context.make_scalar(len(self.context.data.groups["train"])),
        )
        bytes_down, steps = (
            trees.nbytes(broadcast) * len(cohort),
            int(self.context.count_steps(cohort).sum()),
        )
        return TrainResult(CohortUpdate(aggregator.result(), *counts), bytes_down, bytes_up, steps)

    def update_server(
        self, state: ServerState, cohort_update: CohortUpdate, round_idx: int
    ) -> ServerState:
        """Does the server's work on what was gathered."""
        result: ServerState = self._run_server(
            self.context.method.server, state, cohort_update, round_idx
        )
        return result

    def score(
        self, state: ServerState, client_ids: np.ndarray, personalize: Routine | None = None
    ) -> ScoreResult:
        """Personalizes and scores clients one by one."""
        method = self.context.method
        personalize_routine = personalize or method.personalize
        broadcast, initial = method.broadcast(state), method.init_client_state(state)
        before: list[dict[str, Tensor]] = []
        after: list[dict[str, Tensor]] = []
        for client in client_ids:
            with error_context(
                f"{method.name}: personalize work",
                0,
                f"client '{self.context.data.client_names[client]}'",
            ):
                client_state = resolve_client_state(
                    self.context, self._client_data, broadcast, initial, int(client)
                )
            for routine, figures in (
                (personalize_routine._replace(phases=()), before),
                (personalize_routine, after),
            ):
                params: Params = self._run_client(
                    routine, broadcast, client_state, client, Stream.PERSONALIZE, 0
                )
                figures.append(
                    self._run_client(self._scoring_routine, (), params, client, Stream.SCORE, 0)
                )
        return ScoreResult(_stack_figures(before), _stack_figures(after))

    def _run_client(
        self,
        routine: Routine,
        shared_input: Tree,
        client_input: Tree,
        client: int,
        purpose: Stream,
        round_idx: int,
    ) -> Tree:
        with error_context(
            f"{self.context.method.name}: {purpose.label} work",
            round_idx,
            f"client '{self.context.data.client_names[client]}'",
        ):
            return run_single_client(
                routine,
                shared_input,
                client_input,
                self._client_data,
                int(client),
                self.context.derive_keys(purpose, round_idx, [client])[0],
            )

    def _run_server(
        self, routine: Routine, state: ServerState, update: Tree, round_idx: int
    ) -> Tree:
        with error_context(f"{self.context.method.name}: server work", round_idx, "the server"):
            return run_single_client(
                routine,
                state,
                update,
                self._server_data,
                0,
                self.context.derive_keys(Stream.SERVER, round_idx, [0])[0],
            )

    def _correct_update(self, state: ServerState, update: Tree, round_idx: int) -> Tree:
        routine = self.context.method.correct_update
        return update if routine is None else self._run_server(routine, state, update, round_idx)


def _stack_figures(figures: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return (
        {name: torch.stack([each[name] for each in figures]).cpu() for name in figures[0]}
        if figures
        else {}
    )


def run_single_client(
    routine: Routine,
    shared_input: Tree,
    client_input: Tree,
    device_data: DeviceDataset | None,
    client: int,
    key: Tensor,
) -> Tree:
    """Runs a work for one holder, step by step: the reference for every other way of running it."""
    carry, client_ids = routine.init(shared_input, client_input), np.array([client])
    for phase_idx, phase in enumerate(routine.phases):
        for batches in iter_batches(phase.plan, device_data, client_ids, prng.fold(key, phase_idx)):
            carry = phase.step(shared_input, carry, batches)
    return routine.finalize(shared_input, carry)


def iter_batches(
    plan: BatchPlan, device_data: DeviceDataset | None, client_ids: np.ndarray, key: Tensor
) -> Iterator[tuple[Batch, ...]]:
    """What one holder sees, step by step; without data, steps without batches."""
    if device_data is None:
        yield from (() for _ in range(plan.steps or 0))
        return
    for step_indices in iter_batch_indices(
        plan,
        device_data.examples,
        client_ids,
        key[None],
        int(count_steps(plan, device_data.examples, client_ids)[0]),
    ):
        yield tuple(device_data.load_batch(indices.select(0)) for indices in step_indices)


def choose_best_state(
    method: Method,
    task: Task,
    shared_input: Tree,
    candidate_states: Tree,
    device_data: DeviceDataset,
    client: int,
    key: Tensor,
) -> Tree:
    """Of stacked memories the one with which the holder's model, once adapted, has the least loss on what it saw."""
    losses = []
    for index in range(len(trees.leaves(candidate_states)[0])):
        params = run_single_client(
            method.personalize,
            shared_input,
            trees.take_row(candidate_states, index),
            device_data,
            client,
            key,
        )
        losses.append(
            compute_mean_loss(
                run_single_client(
                    scoring_routine(task, "adapt"), (), params, device_data, client, key
                )
            )
        )
    return trees.take_row(candidate_states, int(torch.stack(losses).argmin()))


def resolve_client_state(
    context: EngineContext,
    device_data: DeviceDataset,
    shared_input: Tree,
    initial: Tree,
    client: int,
) -> Tree:
    """What a client remembers; a newcomer takes the best of what it is offered, or what everybody begins with."""
    offered_ids = (
        context.select_offered_clients()
        if context.method.num_offered_states and not context.client_states.initialized[client]
        else ()
    )
    if not len(offered_ids):
        return trees.take_row(context.client_states.gather(np.array([client]), initial), 0)
    key = context.derive_keys(Stream.PERSONALIZE, 0, [client])[0]
    candidate_states = context.client_states.gather(np.asarray(offered_ids), initial)
    return choose_best_state(
        context.method, context.task, shared_input, candidate_states, device_data, client, key
    )
