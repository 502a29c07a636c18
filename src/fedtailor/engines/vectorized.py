"""The fast engine: the clients of a cohort are stepped together by `torch.func.vmap`, a chunk at a time.

Clients are sorted by their number of steps and leave the stack when they have finished, so unequal clients cost no
masked steps; masks exist only inside the last batch of an epoch. When steps are compiled, or recorded on a GPU, they
are programs (see `programs`), and clients leave in a few lots, so that there are few shapes to make programs for. On a
GPU nothing in a round waits for the device: the host lays out the next steps while it works.
"""

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from fedtailor import prng
from fedtailor.compat.torch_internals import silence_speed_warnings
from fedtailor.compiler.inductor import Backend, CompileMode, bind_compiled, bind_eager
from fedtailor.compiler.step_program import IndexBlocks, StepProgram, step_stack
from fedtailor.compiler.trace import TracedFunction
from fedtailor.core import trees
from fedtailor.core.types import ClientResult, CohortUpdate, Phase, Routine, ServerState, Tree
from fedtailor.data.batching import (
    BatchIndices,
    count_steps,
    iter_batch_index_blocks,
    iter_batch_indices,
)
from fedtailor.data.examples import ClientExamples
from fedtailor.engines import client_loop
from fedtailor.engines.aggregation import UpdateAggregator
from fedtailor.engines.base import ScoreResult, TrainResult, error_context
from fedtailor.engines.chunking import MAX_CHUNK, cache_sized_slices
from fedtailor.engines.context import EngineContext
from fedtailor.engines.device_data import DeviceDataset
from fedtailor.engines.scoring import compute_mean_loss, scoring_routine
from fedtailor.engines.sequential import iter_batches
from fedtailor.ops.conv2d import has_wide_convolutions
from fedtailor.ops.transfer import to_device
from fedtailor.prng.streams import Stream


class VectorizedEngine:
    """Runs whole cohorts as one program; `chunk` bounds how many clients are stacked, `compile` compiles steps.

    With `compile="training"` those of personalizing and scoring, which take many shapes and are done seldom, are not.

    Steps are `static`, done by programs, if they are compiled or on a GPU and nothing else is said.
    """

    def __init__(
        self,
        context: EngineContext,
        chunk: int = MAX_CHUNK,
        compile: CompileMode = False,
        notes: tuple[str, ...] = (),
        use_programs: bool | None = None,
    ) -> None:
        self.context, self.notes, self.client_states = context, notes, context.client_states
        self.compile_mode = compile
        self.chunk = chunk
        self._client_data, self._server_data = (
            context.make_client_dataset(),
            context.make_server_dataset(),
        )
        self._scoring_routine, self._adapt_scoring_routine = (
            scoring_routine(context.task),
            scoring_routine(context.task, "adapt"),
        )
        self._use_programs = (
            use_programs
            if use_programs is not None
            else bool(compile) or context.device.type == "cuda"
        )
        on_cpu = context.device.type == "cpu"
        self._should_loop_clients = (
            on_cpu
            and use_programs is None
            and client_loop.is_faster_unstacked(context.task.train_module)
        )
        self._server_function = partial(_run_without_phases, context.method.server)
        self._programs: dict[Any, tuple[Phase, StepProgram]] = {}
        self._traced: dict[tuple[int, bool], tuple[Any, TracedFunction]] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Without the programs, which do not pickle and are made again when they are needed."""
        return self.__dict__ | {"_programs": {}, "_traced": {}}

    def train(self, state: ServerState, cohort: np.ndarray, round_idx: int) -> TrainResult:
        """Trains the cohort chunk by chunk."""
        method, chunks, bytes_up = self.context.method, list(self._iter_chunks(cohort)), 0
        aggregator = UpdateAggregator(method, self._trace_once, is_single_stack=len(chunks) == 1)
        broadcast, initial = method.broadcast(state), method.init_client_state(state)
        for chunk in chunks:
            states = self.client_states.gather(chunk, initial)
            result: ClientResult = self._run_routine(
                method.client, broadcast, states, chunk, Stream.CLIENT, round_idx
            )
            self.client_states.scatter(chunk, result.state)
            bytes_up += trees.nbytes(result.update) + (
                trees.nbytes(result.state) if method.num_offered_states else 0
            )
            aggregator.add(
                self._correct_updates(state, result.update, len(chunk), round_idx),
                self.context.compute_weights(chunk),
            )
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
        routine = self.context.method.server
        with (
            error_context(f"{self.context.method.name}: server work", round_idx, "the server"),
            silence_speed_warnings(),
        ):
            if not self._use_programs:
                key = self.context.derive_keys(Stream.SERVER, round_idx, [0])[0]
                return client_loop.run_routine(
                    routine, state, cohort_update, self._server_data, 0, key
                )  # type: ignore[no-any-return]
            if not routine.phases:
                return self._trace_once(self._server_function)(state, cohort_update)  # type: ignore[no-any-return]
            carry = self._trace_once(routine.init)(state, cohort_update)
            for phase_idx, phase in enumerate(routine.phases):
                keys = torch.from_numpy(
                    prng.fold(
                        self.context.derive_keys(Stream.SERVER, round_idx, [0]).numpy(), phase_idx
                    )
                )
                stacked_carry = trees.apply(_add_row_dim, carry)
                carry = trees.take_row(
                    self._run_phase(
                        phase,
                        state,
                        stacked_carry,
                        np.array([0]),
                        keys,
                        self._server_data,
                        self._choose_backend(),
                    ),
                    0,
                )
            return self._trace_once(routine.finalize)(state, carry)  # type: ignore[no-any-return]

    def score(
        self, state: ServerState, client_ids: np.ndarray, personalize: Routine | None = None
    ) -> ScoreResult:
        """Personalizes and scores clients chunk by chunk, in the order in which they are asked for."""
        method, parts = self.context.method, []
        personalize_routine = personalize or method.personalize
        routines = (personalize_routine._replace(phases=()), personalize_routine)
        broadcast, initial = method.broadcast(state), method.init_client_state(state)
        offered_ids = (
            self.context.select_offered_clients()
            if method.num_offered_states
            else np.array([], dtype=np.int64)
        )
        for chunk in split_into_chunks(client_ids, self.chunk):
            states = self._gather_best_states(broadcast, initial, offered_ids, chunk)
            models = [
                self._run_routine(routine, broadcast, states, chunk, Stream.PERSONALIZE, 0)
                for routine in routines
            ]
            parts.append(
                ScoreResult(
                    *(
                        self._run_routine(self._scoring_routine, (), params, chunk, Stream.SCORE, 0)
                        for params in models
                    )
                )
            )
        return (
            ScoreResult(*trees.apply(lambda leaf: leaf.cpu(), tuple(trees.concat(parts))))
            if parts
            else ScoreResult({}, {})
        )

    def _gather_best_states(
        self, broadcast: Tree, initial: Tree, offered_ids: np.ndarray, client_ids: np.ndarray
    ) -> Tree:
        """What clients remember; newcomers take the offered memory that serves them best, all pairs tried together."""
        state_owners, newcomers = (
            client_ids.copy(),
            np.flatnonzero(~self.client_states.initialized.numpy()[client_ids]),
        )
        if len(offered_ids) and len(newcomers):
            losses = []
            pairs = np.stack(
                [
                    np.repeat(client_ids[newcomers], len(offered_ids)),
                    np.tile(offered_ids, len(newcomers)),
                ],
                axis=1,
            )
            for some in split_into_chunks(pairs, self.chunk):
                states = self.client_states.gather(some[:, 1], initial)
                models = self._run_routine(
                    self.context.method.personalize,
                    broadcast,
                    states,
                    some[:, 0],
                    Stream.PERSONALIZE,
                    0,
                )
                losses.append(
                    compute_mean_loss(
                        self._run_routine(
                            self._adapt_scoring_routine, (), models, some[:, 0], Stream.SCORE, 0
                        )
                    )
                )
            best = torch.cat(losses).reshape(len(newcomers), -1).argmin(1)
            state_owners[newcomers] = offered_ids[best.cpu().numpy()]
        return self.client_states.gather(state_owners, initial)

    def _iter_chunks(self, cohort: np.ndarray) -> Iterator[np.ndarray]:
        """The cohort in chunks of clients with similar numbers of steps."""
        order = np.argsort(-self.context.count_steps(cohort), kind="stable")
        return split_into_chunks(cohort[order], self.chunk)

    def _run_routine(
        self,
        routine: Routine,
        shared_input: Tree,
        client_input: Tree,
        client_ids: np.ndarray,
        purpose: Stream,
        round_idx: int,
    ) -> Tree:
        """What clients make of what they are given and have, with their own keys."""
        keys = self.context.derive_keys(purpose, round_idx, client_ids)
        with (
            error_context(
                f"{self.context.method.name}: {purpose.label} work",
                round_idx,
                self._describe_clients(client_ids),
            ),
            silence_speed_warnings(),
        ):
            carry = self._vmap_over_clients(routine.init, len(client_ids))(
                shared_input, client_input
            )
            for phase_idx, phase in enumerate(routine.phases):
                folded = torch.from_numpy(prng.fold(keys.numpy(), phase_idx))
                carry = self._run_phase(
                    phase,
                    shared_input,
                    carry,
                    client_ids,
                    folded,
                    self._client_data,
                    self._choose_backend(purpose),
                )
            return self._vmap_over_clients(routine.finalize, len(client_ids))(shared_input, carry)

    def _run_phase(
        self,
        phase: Phase,
        shared_input: Tree,
        carry: Tree,
        client_ids: np.ndarray,
        keys: Tensor,
        device_data: DeviceDataset | None,
        backend: Backend,
    ) -> Tree:
        """All steps of a phase for a stack of holders, who are sorted for it: the first has the most steps."""
        counts = (
            np.full(len(client_ids), phase.plan.steps)
            if device_data is None
            else count_steps(phase.plan, device_data.examples, client_ids)
        )
        order = np.argsort(-counts, kind="stable")
        moved = bool((order != np.arange(len(order))).any())
        if moved:
            there, back = (
                to_device(torch.from_numpy(each), self.context.device)
                for each in (order, np.argsort(order))
            )
            carry, client_ids, keys, counts = (
                trees.take_rows(carry, there),
                client_ids[order],
                keys[order],
                counts[order],
            )
        working = int((counts > 0).sum())
        if not working:
            return carry
        at_work = trees.take_rows(carry, slice(0, working)) if working < len(client_ids) else carry
        plan, examples = phase.plan, _get_examples(device_data)
        if self._should_loop_clients and backend is not bind_compiled:
            some = client_ids[:working], keys[:working]
            worked = client_loop.run_phase_per_client(
                phase, shared_input, at_work, device_data, *some
            )
        elif (
            self._use_programs and plan.specs
        ):  # a step without batches is done once, and may change the carry's shape
            worked = self._run_programs(
                *(phase, device_data, shared_input, at_work),
                lambda part: iter_batch_index_blocks(
                    plan,
                    examples,
                    client_ids[part],
                    keys[part],
                    int(counts[part][0]),
                    full_width=True,
                ),
                *(counts[:working], backend),
            )
        else:
            worked = self._run_shrinking_stack(
                phase,
                device_data,
                shared_input,
                at_work,
                client_ids[:working],
                keys[:working],
                counts[:working],
            )
        if working < len(client_ids):
            worked = trees.concat([worked, trees.take_rows(carry, slice(working, None))])
        return trees.take_rows(worked, back) if moved else worked

    def _run_shrinking_stack(
        self,
        phase: Phase,
        device_data: DeviceDataset | None,
        shared_input: Tree,
        carry: Tree,
        client_ids: np.ndarray,
        keys: Tensor,
        counts: np.ndarray,
    ) -> Tree:
        """The carry of some clients after all steps; whoever has finished leaves the stack at once."""
        finished = list[Tree]()
        batch_indices = iter_batch_indices(
            phase.plan,
            _get_examples(device_data),
            client_ids,
            keys,
            int(counts[0]),
            self._use_programs,
        )
        for step_idx, step_indices in enumerate(batch_indices):
            active = int((counts > step_idx).sum())
            if active < len(trees.leaves(carry)[0]):
                finished.append(trees.take_rows(carry, slice(active, None)))
                carry = trees.take_rows(carry, slice(0, active))
            batches = (
                tuple(
                    device_data.load_batch(indices.select(slice(0, active)))
                    for indices in step_indices
                )
                if device_data
                else ()
            )
            carry = step_stack(
                phase.step, False, shared_input, carry, batches, torch.arange(active)
            )
        return trees.concat([carry, *finished[::-1]]) if finished else carry

    def _correct_updates(
        self, state: ServerState, updates: Tree, cohort_size: int, round_idx: int
    ) -> Tree:
        """The server's correction of every upload, on the same server batches for all."""
        routine = self.context.method.correct_update
        if routine is None:
            return updates
        key = self.context.derive_keys(Stream.SERVER, round_idx, [0]).numpy()
        with (
            error_context(
                f"{self.context.method.name}: server's correction", round_idx, "the server"
            ),
            silence_speed_warnings(),
        ):
            carry = self._vmap_over_clients(routine.init, cohort_size)(state, updates)
            for phase_idx, phase in enumerate(routine.phases):
                folded = torch.from_numpy(prng.fold(key, phase_idx))
                carry = self._run_server_phase(phase, state, carry, folded, cohort_size)
            return self._vmap_over_clients(routine.finalize, cohort_size)(state, carry)

    def _run_server_phase(
        self, phase: Phase, state: ServerState, carry: Tree, key: Tensor, cohort_size: int
    ) -> Tree:
        """A phase of the server's work on a stack of uploads, which all see the same batches."""
        device_data, server = self._server_data, np.array([0])
        if self._should_loop_clients and not self.compile_mode:
            return client_loop.run_phase_per_client(
                phase,
                state,
                carry,
                device_data,
                server.repeat(cohort_size),
                key.expand(cohort_size),
            )
        if self._use_programs:
            steps = (
                (phase.plan.steps or 0)
                if device_data is None
                else int(count_steps(phase.plan, device_data.examples, server)[0])
            )
            if not steps:
                return carry
            make_index_blocks = partial(
                iter_batch_index_blocks,
                phase.plan,
                _get_examples(device_data),
                server,
                key,
                steps,
                full_width=True,
            )
            counts = np.full(cohort_size, steps)
            return self._run_programs(
                phase,
                device_data,
                state,
                carry,
                lambda _: make_index_blocks(),
                counts,
                self._choose_backend(),
                shared=True,
            )
        for batches in iter_batches(phase.plan, device_data, server, key[0]):
            carry = step_stack(phase.step, True, state, carry, batches, torch.arange(cohort_size))
        return carry

    def _run_programs(
        self,
        phase: Phase,
        device_data: DeviceDataset | None,
        shared_input: Tree,
        carry: Tree,
        make_index_blocks: Callable[[slice], IndexBlocks],
        counts: np.ndarray,
        backend: Backend,
        shared: bool = False,
    ) -> Tree:
        """The carry after all steps, of the whole stack at a time, a part of it or one client."""
        worked, parts = (
            trees.apply(_empty_like, carry),
            self._split_stack(len(counts), trees.nbytes(carry) // len(counts)),
        )
        for part in parts:
            part_carry, out = (
                trees.take_rows(tree, part) if len(parts) > 1 else tree for tree in (carry, worked)
            )
            index_blocks = make_index_blocks(part)
            first = next(index_blocks)
            program = self._get_program(
                phase, device_data, shared_input, part_carry, first[1], backend, shared
            )
            program.run(
                shared_input,
                part_carry,
                itertools.chain([first], index_blocks),
                counts[part],
                backend,
                out,
            )
        return worked

    def _get_program(
        self,
        phase: Phase,
        device_data: DeviceDataset | None,
        shared_input: Tree,
        carry: Tree,
        batch_indices: tuple[BatchIndices, ...],
        backend: Backend,
        shared: bool,
    ) -> StepProgram:
        """The program for such a phase and such shapes, which is made once."""
        leaves = trees.leaves(
            (shared_input, carry, *(indices.rows[0] for indices in batch_indices))
        )
        program_key = (
            id(phase.step),
            shared,
            backend,
            *((leaf.shape, leaf.dtype) for leaf in leaves),
        )
        if program_key not in self._programs:
            columns = () if device_data is None else device_data.columns
            decode = None if device_data is None else device_data.decode
            program = StepProgram(
                phase.step, columns, decode, shared_input, carry, batch_indices, shared
            )
            self._programs[program_key] = (
                phase,
                program,
            )  # the phase is kept, so that no other gets its name
        return self._programs[program_key][1]

    def _split_stack(self, num_clients: int, bytes_per_client: int = 0) -> list[slice]:
        """What goes through its steps together: the whole stack, or less where large stacks are slow.

        On CPUs they are, for clients with large convolutions, and where carries, of so many bytes each, fill the cache.
        """
        if self.context.device.type != "cpu":
            return [slice(0, num_clients)]
        if has_wide_convolutions(self.context.task.train_module):
            return [slice(at, at + 1) for at in range(num_clients)]
        return cache_sized_slices(num_clients, bytes_per_client)

    def _choose_backend(self, purpose: Stream = Stream.SERVER) -> Backend:
        """How the steps of such work become a program."""
        seldom = purpose in (Stream.PERSONALIZE, Stream.SCORE)
        return (
            bind_compiled
            if self.compile_mode is True or (self.compile_mode and not seldom)
            else bind_eager
        )

    def _vmap_over_clients(
        self, function: Callable[[Tree, Tree], Tree], num_clients: int
    ) -> Callable[[Tree, Tree], Tree]:
        """`start` or `finish` for a stack of `count` clients with one `given`."""
        whole = self._trace_once(function, is_stacked=True)
        return lambda shared_input, client_input: whole(
            shared_input, client_input, torch.arange(num_clients)
        )

    def _trace_once(self, function: Any, is_stacked: bool = False) -> Callable[..., Tree]:
        """A function, or that of a stack, followed through once and for all if steps are programs."""
        name = id(function), is_stacked
        if name in self._traced:
            return self._traced[name][1]
        whole = (
            vmap(partial(_call_without_index, function), (None, 0, 0)) if is_stacked else function
        )
        if not self._use_programs:
            return whole
        self._traced[name] = (
            function,
            TracedFunction(whole),
        )  # the function is kept, so that no other gets its name
        return self._traced[name][1]

    def _describe_clients(self, client_ids: np.ndarray) -> str:
        ids = self.context.data.client_names[client_ids]
        return (
            f"client '{ids[0]}'"
            if len(ids) == 1
            else f"one of {len(ids)} clients from '{ids[0]}' on"
        )


def _empty_like(leaf: Tensor) -> Tensor:
    return torch.empty_like(leaf, memory_format=torch.contiguous_format)


def _call_without_index(
    function: Callable[[Tree, Tree], Tree], shared_input: Tree, client_input: Tree, index: Tensor
) -> Tree:
    return function(shared_input, client_input)


def _run_without_phases(routine: Routine, shared_input: Tree, client_input: Tree) -> Tree:
    """A work without phases."""
    return routine.finalize(shared_input, routine.init(shared_input, client_input))


def _get_examples(device_data: DeviceDataset | None) -> ClientExamples | None:
    return None if device_data is None else device_data.examples


def _add_row_dim(leaf: Tensor) -> Tensor:
    return leaf[None]


def split_into_chunks(array: np.ndarray, size: int) -> Iterator[np.ndarray]:
    """So many at a time."""
    return (array[begin : begin + size] for begin in range(0, len(array), size))
