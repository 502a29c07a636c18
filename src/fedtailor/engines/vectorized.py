"""The fast engine: the clients of a cohort take their steps together, a chunk of them at a time.

On a GPU nothing in a round waits for the device: the host prepares the next steps while the device
works. How a stack of clients takes its steps is up to `stack_runner.py`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np
import torch
from torch import Tensor

from fedtailor import prng
from fedtailor.compat.torch_internals import silence_speed_warnings
from fedtailor.compiler.inductor import CompileMode
from fedtailor.core import trees
from fedtailor.core.types import ClientResult, CohortUpdate, Routine, ServerState, Tree
from fedtailor.engines import client_loop
from fedtailor.engines.aggregation import UpdateAggregator
from fedtailor.engines.base import ScoreResult, TrainResult, count_upload_bytes, error_context
from fedtailor.engines.chunking import MAX_CHUNK
from fedtailor.engines.context import EngineContext
from fedtailor.engines.scoring import compute_mean_loss, scoring_routine
from fedtailor.engines.stack_runner import ClientStack, PhaseWork, StackRunner
from fedtailor.ops.conv2d import has_wide_convolutions
from fedtailor.prng.streams import Stream


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
        self._scoring_routine = scoring_routine(context.task)
        self._adapt_scoring_routine = scoring_routine(context.task, "adapt")
        # Made once, since the runner knows functions by their ids.
        self._server_function = partial(_run_without_phases, context.method.server)
        model = context.task.train_module
        loops_clients = False
        if use_programs is None:
            use_programs = bool(compile) or context.device.type == "cuda"
            loops_clients = context.device.type == "cpu" and client_loop.is_faster_unstacked(model)
        self._runner = StackRunner(
            context.device,
            use_programs,
            loops_clients=loops_clients,
            steps_alone=has_wide_convolutions(model),
        )

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
            self.context.make_cohort_update(aggregator.result(), cohort),
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
        broadcast = method.broadcast(state)
        initial_state = method.init_client_state(state)
        offering_ids = np.array([], dtype=np.int64)
        if method.num_offered_states:
            offering_ids = self.context.select_offered_clients()
        chunk_scores = []
        for chunk in split_into_chunks(client_ids, self.chunk):
            client_states = self._gather_best_states(broadcast, initial_state, offering_ids, chunk)
            before = self._personalize_and_score(before_routine, broadcast, client_states, chunk)
            after = self._personalize_and_score(after_routine, broadcast, client_states, chunk)
            chunk_scores.append((before, after))
        if not chunk_scores:
            return ScoreResult({}, {})
        before, after = trees.apply(lambda leaf: leaf.cpu(), trees.concat(chunk_scores))
        return ScoreResult(before, after)

    def _run_server(self, state: ServerState, update: CohortUpdate, round_idx: int) -> Tree:
        """Return the result of the server's routine, whose steps are programs of a stack of one."""
        routine = self.context.method.server
        keys = self.context.derive_keys(Stream.SERVER, round_idx, [0])
        if not self._runner.use_programs:
            return client_loop.run_routine(routine, state, update, self._server_data, 0, keys[0])
        if not routine.phases:
            return self._runner.trace_once(self._server_function)(state, update)
        server = np.array([0])
        is_compiled = self._is_compiled(Stream.SERVER)
        carry = self._runner.trace_once(routine.init)(state, update)
        for phase_idx, phase in enumerate(routine.phases):
            work = PhaseWork(phase, state, self._server_data, is_compiled)
            stack = ClientStack(
                carry=trees.apply(_add_row_dim, carry),
                num_steps=work.count_steps(server),
                client_ids=server,
                keys=_fold_keys(keys, phase_idx),
            )
            carry = trees.take_row(self._runner.run_phase(work, stack), 0)
        return self._runner.trace_once(routine.finalize)(state, carry)

    def _personalize_and_score(
        self, personalize: Routine, broadcast: Tree, client_states: Tree, client_ids: np.ndarray
    ) -> dict[str, Tensor]:
        """Return the (sum, weight) of each metric over the clients' test examples, [clients, 2]."""
        params = self._run_clients(
            personalize, broadcast, client_states, client_ids, Stream.PERSONALIZE
        )
        sums: dict[str, Tensor] = self._run_clients(
            self._scoring_routine, (), params, client_ids, Stream.SCORE
        )
        return sums

    def _gather_best_states(
        self,
        broadcast: Tree,
        initial_state: Tree,
        offering_ids: np.ndarray,
        client_ids: np.ndarray,
    ) -> Tree:
        """Return the stacked states that clients personalize from.

        These are their own states and, for unseen clients, the best of the offered ones.
        """
        is_unseen = ~self.client_states.initialized.numpy()[client_ids]
        unseen_ids = client_ids[is_unseen]
        state_owners = client_ids.copy()
        if len(offering_ids) and len(unseen_ids):
            losses = self._compute_adapt_losses(broadcast, initial_state, offering_ids, unseen_ids)
            state_owners[is_unseen] = offering_ids[losses.argmin(1).cpu().numpy()]
        return self.client_states.gather(state_owners, initial_state)

    def _compute_adapt_losses(
        self,
        broadcast: Tree,
        initial_state: Tree,
        offering_ids: np.ndarray,
        client_ids: np.ndarray,
    ) -> Tensor:
        """Return the loss of each client on what it adapts on, from each offered state.

        All pairs of a client and an offered state, [clients, states], run together, in chunks.
        """
        pair_clients = np.repeat(client_ids, len(offering_ids))
        pair_owners = np.tile(offering_ids, len(client_ids))
        losses = []
        for pairs in split_into_chunks(np.stack([pair_clients, pair_owners], axis=1), self.chunk):
            clients = pairs[:, 0]
            states = self.client_states.gather(pairs[:, 1], initial_state)
            params = self._run_clients(
                self.context.method.personalize, broadcast, states, clients, Stream.PERSONALIZE
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
        num_clients = len(client_ids)
        keys = self.context.derive_keys(stream, round_idx, client_ids)
        is_compiled = self._is_compiled(stream)
        with self._error_context(f"{stream.label} work", round_idx, self._describe(client_ids)):
            init = self._runner.vmap_over_clients(routine.init, num_clients)
            finalize = self._runner.vmap_over_clients(routine.finalize, num_clients)
            carry = init(shared_input, client_inputs)
            for phase_idx, phase in enumerate(routine.phases):
                work = PhaseWork(phase, shared_input, self._client_data, is_compiled)
                phase_keys = _fold_keys(keys, phase_idx)
                num_steps = work.count_steps(client_ids)
                stack = ClientStack(carry, num_steps, client_ids, phase_keys)
                carry = self._runner.run_phase(work, stack)
            return finalize(shared_input, carry)

    def _correct_updates(
        self, state: ServerState, updates: Tree, num_updates: int, round_idx: int
    ) -> Tree:
        """Return stacked updates after the server's correction, on the same batches for all."""
        routine = self.context.method.correct_update
        if routine is None:
            return updates
        server = np.array([0])
        keys = self.context.derive_keys(Stream.SERVER, round_idx, server)
        is_compiled = self._is_compiled(Stream.SERVER)
        with self._error_context("server's correction", round_idx, "the server"):
            carry = self._runner.vmap_over_clients(routine.init, num_updates)(state, updates)
            for phase_idx, phase in enumerate(routine.phases):
                work = PhaseWork(phase, state, self._server_data, is_compiled)
                num_steps = work.count_steps(server).repeat(num_updates)
                phase_keys = _fold_keys(keys, phase_idx)
                stack = ClientStack(carry, num_steps, server, phase_keys, shares_batches=True)
                carry = self._runner.run_phase(work, stack)
            return self._runner.vmap_over_clients(routine.finalize, num_updates)(state, carry)

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
