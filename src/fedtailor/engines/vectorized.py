"""The fast engine: the clients of a cohort take their steps together, a chunk of them at a time.

On a GPU nothing in a round waits for the device: the host prepares the next steps while the device
works. How a stack of clients takes its steps is up to `stack_runner.py`.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedtailor import prng
from fedtailor.compat.torch_internals import silence_speed_warnings
from fedtailor.core import trees
from fedtailor.core.stopwatch import time_phase
from fedtailor.core.types import ClientResult, CohortUpdate, Routine, ServerState, Tree
from fedtailor.engines import client_loop
from fedtailor.engines.aggregation import UpdateAggregator
from fedtailor.engines.base import (
    ClientWork,
    ScoreResult,
    TrainResult,
    count_upload_bytes,
    error_context,
)
from fedtailor.engines.chunking import MAX_CHUNK
from fedtailor.engines.client_state import ClientStateStore
from fedtailor.engines.compile_policy import CompileMode
from fedtailor.engines.context import EngineContext
from fedtailor.engines.device_data import DeviceDataset
from fedtailor.engines.scoring import build_scoring_routine, compute_mean_loss
from fedtailor.engines.stack_runner import ClientStack, PhaseWork, StackRunner
from fedtailor.ops.conv2d import has_wide_convolutions
from fedtailor.prng.streams import Stream


class StackWork(NamedTuple):
    """The members of a stack that a routine runs for: clients, or updates that the server corrects.

    With `shares_batches` all members see the same batches, those of the only entry of `client_ids`
    and `keys`. The server is client 0 of its own examples.
    """

    device_data: DeviceDataset | None  # examples of all clients; None: steps see no batches
    client_ids: np.ndarray  # [members] or [1]
    keys: Tensor  # [members] or [1]: random keys for this routine and round
    is_compiled: bool
    num_members: int
    shares_batches: bool = False


class ScoringInputs(NamedTuple):
    """Inputs that the clients that are scored have in common."""

    broadcast: Tree
    initial_state: Tree
    offering_ids: np.ndarray  # clients whose states an unseen client may start from


class VectorizedEngine:
    """Engine that runs cohorts in stacks of clients.

    Args:
        context: The run.
        chunk: Maximum number of clients in a stack.
        compile: Steps to compile. "training" leaves out those of personalization and scoring, which
            have many shapes and run seldom.
        notes: Decisions that the user should know of.
        use_programs: Whether steps are programs; None: if they are compiled, or on a GPU.
    """

    def __init__(
        self,
        context: EngineContext,
        chunk: int = MAX_CHUNK,
        compile: CompileMode = False,
        notes: tuple[str, ...] = (),
        use_programs: bool | None = None,
    ) -> None:
        self.context = context
        self.chunk = chunk
        self.compile_mode = compile
        self.notes = notes
        self.client_states = context.client_states
        self._client_data = context.make_client_dataset()
        self._server_data = context.make_server_dataset()
        self._scoring_routine = build_scoring_routine(context.task)
        self._adapt_scoring_routine = build_scoring_routine(context.task, "adapt")
        # Made once, since the runner knows functions by their ids.
        self._server_function = partial(_run_without_phases, context.method.server)
        model = context.task.train_module
        should_loop_clients = False
        if use_programs is None:
            use_programs = bool(compile) or context.device.type == "cuda"
            is_on_cpu = context.device.type == "cpu"
            should_loop_clients = is_on_cpu and client_loop.is_faster_unstacked(model)
        self._runner = StackRunner(
            context.device,
            use_programs,
            should_loop_clients=should_loop_clients,
            should_step_alone=has_wide_convolutions(model),
            should_trace_steps=not client_loop.is_recurrent(model),
        )

    def compile_ahead(
        self, state: ServerState, cohorts: Sequence[np.ndarray], timeout: float
    ) -> str:
        """Compile the steps of training, by training cohorts whose results are thrown away.

        Args:
            state: Server state that the cohorts are trained from.
            cohorts: Cohorts that meet every kind of steps between them.
            timeout: Seconds after which no further step is compiled.

        Returns:
            Why some step could not be compiled; "" if all are.
        """
        kept_states = self.client_states
        self.client_states = ClientStateStore(self.context.data.clients.count)
        self._runner.compile_deadline = time.monotonic() + timeout
        try:
            for cohort in cohorts:
                result = self.train(state, cohort, 0)
                self.update_server(state, result.cohort_update, 0)
                if self._runner.compile_failure:
                    break
        finally:
            self.client_states = kept_states
            self._runner.compile_deadline = float("inf")
        return self._runner.compile_failure

    def train(self, state: ServerState, cohort: np.ndarray, round_idx: int) -> TrainResult:
        """Train a cohort chunk by chunk and aggregate the updates (see `Engine.train`).

        Args:
            state: Server state that the broadcast is made from.
            cohort: Indices of the clients, [clients].
            round_idx: Index of the round.
        """
        method = self.context.method
        chunks = list(self._iter_chunks(cohort))
        aggregator = UpdateAggregator(
            method, self._runner.trace_once, is_single_stack=len(chunks) == 1
        )
        broadcast = method.broadcast(state)
        initial_state = method.init_client_state(state)
        bytes_up = 0
        for chunk in chunks:
            client_states = self.client_states.gather(chunk, initial_state)
            result: ClientResult = self._run_clients(
                method.client, broadcast, client_states, chunk, Stream.CLIENT, round_idx
            )
            self.client_states.scatter(chunk, result.state)
            bytes_up += count_upload_bytes(method, result)
            updates = self._correct_updates(state, result.update, len(chunk), round_idx)
            aggregator.add(updates, self.context.compute_weights(chunk))
        return TrainResult(
            self.context.make_cohort_update(aggregator.compute_update(), cohort),
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
        with self._error_context("server work", round_idx, "the server"):
            new_state: ServerState = self._run_server(state, cohort_update, round_idx)
        return new_state

    def score(
        self, state: ServerState, client_ids: np.ndarray, personalize: Routine | None = None
    ) -> ScoreResult:
        """Personalize and score clients chunk by chunk (see `Engine.score`).

        Args:
            state: Server state that the broadcast is made from.
            client_ids: Indices of the clients, [clients].
            personalize: Routine to personalize with; None is the method's own.
        """
        method = self.context.method
        after_routine = personalize or method.personalize
        before_routine = after_routine._replace(phases=())
        inputs = ScoringInputs(
            broadcast=method.broadcast(state),
            initial_state=method.init_client_state(state),
            offering_ids=self.context.select_offered_clients(),
        )
        chunk_scores = []
        for chunk in split_into_chunks(client_ids, self.chunk):
            states = self._gather_best_states(inputs, chunk)
            before = self._personalize_and_score(before_routine, inputs.broadcast, states, chunk)
            after = self._personalize_and_score(after_routine, inputs.broadcast, states, chunk)
            chunk_scores.append(ScoreResult(before, after))
        if not chunk_scores:
            return ScoreResult({}, {})
        return trees.to(trees.concat(chunk_scores), torch.device("cpu"))

    def _run_server(self, state: ServerState, update: CohortUpdate, round_idx: int) -> Tree:
        """Return the result of the server's routine, whose steps are programs of a stack of one."""
        routine = self.context.method.server
        work = self._make_server_work(round_idx)
        if not self._runner.use_programs:
            server = ClientWork(self._server_data, 0, work.keys[0])
            return client_loop.run_routine(routine, state, update, server)
        if not routine.phases:
            return self._runner.trace_once(self._server_function)(state, update)
        inputs = trees.apply(_add_row_dim, update)
        return trees.take_row(self._run_stack(routine, state, inputs, work), 0)

    def _personalize_and_score(
        self, personalize: Routine, broadcast: Tree, client_states: Tree, client_ids: np.ndarray
    ) -> dict[str, Tensor]:
        """Return the (sum, weight) of each metric over the clients' test examples, [clients, 2]."""
        with time_phase("personalizing"):
            params = self._run_clients(
                personalize, broadcast, client_states, client_ids, Stream.PERSONALIZE
            )
        sums: dict[str, Tensor] = self._run_clients(
            self._scoring_routine, (), params, client_ids, Stream.SCORE
        )
        return sums

    def _gather_best_states(self, inputs: ScoringInputs, client_ids: np.ndarray) -> Tree:
        """Return the stacked states that clients personalize from.

        These are their own states and, for unseen clients, the best of the offered ones.
        """
        is_unseen = ~self.client_states.initialized.numpy()[client_ids]
        unseen_ids = client_ids[is_unseen]
        state_owners = client_ids.copy()
        if len(inputs.offering_ids) and len(unseen_ids):
            losses = self._compute_adapt_losses(inputs, unseen_ids)
            state_owners[is_unseen] = inputs.offering_ids[losses.argmin(1).cpu().numpy()]
        return self.client_states.gather(state_owners, inputs.initial_state)

    def _compute_adapt_losses(self, inputs: ScoringInputs, client_ids: np.ndarray) -> Tensor:
        """Return the loss of each client on what it adapts on, from each offered state.

        All pairs of a client and an offered state, [clients, states], run together, in chunks.
        """
        personalize = self.context.method.personalize
        offering_ids = inputs.offering_ids
        pair_clients = np.repeat(client_ids, len(offering_ids))
        pair_owners = np.tile(offering_ids, len(client_ids))
        losses = []
        for pairs in split_into_chunks(np.stack([pair_clients, pair_owners], axis=1), self.chunk):
            clients = pairs[:, 0]
            states = self.client_states.gather(pairs[:, 1], inputs.initial_state)
            params = self._run_clients(
                personalize, inputs.broadcast, states, clients, Stream.PERSONALIZE
            )
            sums = self._run_clients(self._adapt_scoring_routine, (), params, clients, Stream.SCORE)
            losses.append(compute_mean_loss(sums))
        return torch.cat(losses).reshape(len(client_ids), len(offering_ids))

    def _iter_chunks(self, cohort: np.ndarray) -> Iterator[np.ndarray]:
        """Return the cohort in chunks of clients with similar numbers of steps."""
        order = np.argsort(-self.context.count_steps(cohort), kind="stable")
        return split_into_chunks(cohort[order], self.chunk)

    def _run_clients(
        self,
        routine: Routine,
        shared_input: Tree,
        client_inputs: Tree,
        client_ids: np.ndarray,
        stream: Stream,
        round_idx: int = 0,
    ) -> Tree:
        """Return the stacked results of a routine for a stack of clients, with a key each."""
        work = StackWork(
            device_data=self._client_data,
            client_ids=client_ids,
            keys=self.context.derive_keys(stream, round_idx, client_ids),
            is_compiled=self._is_compiled(stream),
            num_members=len(client_ids),
        )
        with self._error_context(f"{stream.label} work", round_idx, self._describe(client_ids)):
            return self._run_stack(routine, shared_input, client_inputs, work)

    def _correct_updates(
        self, state: ServerState, updates: Tree, num_updates: int, round_idx: int
    ) -> Tree:
        """Return stacked updates after the server's correction, on the same batches for all."""
        routine = self.context.method.correct_update
        if routine is None:
            return updates
        work = self._make_server_work(round_idx)
        work = work._replace(num_members=num_updates, shares_batches=True)
        with self._error_context("server's correction", round_idx, "the server"):
            return self._run_stack(routine, state, updates, work)

    def _make_server_work(self, round_idx: int) -> StackWork:
        """Return the server as a stack of one."""
        server = np.array([0])
        return StackWork(
            device_data=self._server_data,
            client_ids=server,
            keys=self.context.derive_keys(Stream.SERVER, round_idx, server),
            is_compiled=self._is_compiled(Stream.SERVER),
            num_members=1,
        )

    def _run_stack(
        self, routine: Routine, shared_input: Tree, inputs: Tree, work: StackWork
    ) -> Tree:
        """Return the stacked results of a routine for stacked inputs, [members, ...]."""
        init = self._runner.vmap_over_clients(routine.init, work.num_members)
        finalize = self._runner.vmap_over_clients(routine.finalize, work.num_members)
        carry = init(shared_input, inputs)
        for phase_idx, phase in enumerate(routine.phases):
            phase_work = PhaseWork(phase, shared_input, work.device_data, work.is_compiled)
            num_steps = phase_work.count_steps(work.client_ids)
            stack = ClientStack(
                carry=carry,
                num_steps=np.broadcast_to(num_steps, work.num_members),
                client_ids=work.client_ids,
                keys=_fold_keys(work.keys, phase_idx),
                shares_batches=work.shares_batches,
            )
            carry = self._runner.run_phase(phase_work, stack)
        return finalize(shared_input, carry)

    def _is_compiled(self, stream: Stream) -> bool:
        """Return whether the steps of a routine are compiled."""
        if self.compile_mode == "training":
            return stream not in (Stream.PERSONALIZE, Stream.SCORE)
        return self.compile_mode

    @contextmanager
    def _error_context(self, stage: str, round_idx: int, subject: str) -> Iterator[None]:
        with (
            error_context(f"{self.context.method.name}: {stage}", round_idx, subject),
            silence_speed_warnings(),
        ):
            yield

    def _describe(self, client_ids: np.ndarray) -> str:
        """Return how errors call the clients of a stack."""
        first = self.context.data.client_names[client_ids[0]]
        if len(client_ids) == 1:
            return f"client '{first}'"
        return f"one of {len(client_ids)} clients from '{first}' on"


def split_into_chunks(array: np.ndarray, size: int) -> Iterator[np.ndarray]:
    """Return consecutive slices of at most `size` rows."""
    return (array[begin : begin + size] for begin in range(0, len(array), size))


def _fold_keys(keys: Tensor, phase_idx: int) -> Tensor:
    """Return the keys of a phase; NumPy is faster than torch for the few keys of a stack."""
    return torch.from_numpy(prng.fold(keys.numpy(), phase_idx))


def _run_without_phases(routine: Routine, shared_input: Tree, client_input: Tree) -> Tree:
    return routine.finalize(shared_input, routine.init(shared_input, client_input))


def _add_row_dim(leaf: Tensor) -> Tensor:
    return leaf[None]
