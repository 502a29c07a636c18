"""An engine of several processes, each with its own device: rank 0 leads, and all of them train and score.

A cohort is dealt out in the order of clients' steps, so that ranks get equally many clients and about as much work.
Each runs its part on an engine of its own, corrections of uploads included. Rank 0 sends the state out, once for every
change of it, takes in the weighted sum of the changes, or every change if the method combines them by a rule, and alone
does the server's work: the same bytes travel as if all ranks got the sum, and their states cannot drift apart.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedtailor.core import trees
from fedtailor.core.types import CohortUpdate, Routine, ServerState, Tree
from fedtailor.engines.base import Engine, ScoreResult, TrainResult
from fedtailor.engines.client_state import ClientStateStore
from fedtailor.engines.context import EngineContext
from fedtailor.engines.distributed.client_shards import ClientStateShards, Move
from fedtailor.engines.distributed.process_group import Ranks, get_local_rank
from fedtailor.errors import FedtailorError, RoutineError, require

Shapes = Sequence[tuple[tuple[int, ...], torch.dtype]]


class Command(NamedTuple):
    """What all ranks do together."""

    action: str  # "train", "score" or "collect"
    parts: tuple[np.ndarray, ...]  # whose clients are whose
    round_idx: int  # of the round
    moves: list[Move]
    initialized: np.ndarray  # who remembers something
    has_new_state: bool  # whether a state is sent first
    personalize: Routine | None = None  # by which clients personalize, if not as the method does


class Status(NamedTuple):
    """How a rank's part went."""

    error: FedtailorError | None = None
    shapes: Shapes = ()  # of its change, if it has one
    weight: float = 0.0
    costs: tuple[int, int, int] = (0, 0, 0)


class DistributedEngine:
    """Shares cohorts among ranks. On rank 0 it is used like any engine; the others `follow`."""

    def __init__(self, context: EngineContext, inner: Engine, ranks: Ranks) -> None:
        _require_device(context, ranks)
        self.context, self.inner, self.client_states, self.ranks = (
            context,
            inner,
            context.client_states,
            ranks,
        )
        self.notes = (*inner.notes, *(() if ranks.world_size > 1 else (SINGLE_PROCESS_NOTE,)))
        self._shards, self._state = (
            ClientStateShards(context.client_states, ranks),
            context.init_server_state(),
        )
        self._sent_state: ServerState | None = None

    def train(self, state: ServerState, cohort: np.ndarray, round_idx: int) -> TrainResult:
        """Trains the cohort, every rank its part."""
        parts = self._split_clients(
            cohort[np.argsort(-self.context.count_steps(cohort), kind="stable")]
        )
        initial = self.context.method.init_client_state(state)
        statuses, update = self._run_on_all_ranks(
            "train", state, parts, self._shards.plan_moves_to_parts(parts, initial), round_idx
        )
        self._shards.record_training(parts, initial)
        down, up, steps = np.sum([status.costs for status in statuses], axis=0).tolist()
        return TrainResult(self.context.make_cohort_update(update, cohort), down, up, steps)

    def update_server(
        self, state: ServerState, cohort_update: CohortUpdate, round_idx: int
    ) -> ServerState:
        """Does the server's work on what was gathered, on rank 0."""
        return self.inner.update_server(state, cohort_update, round_idx)

    def score(
        self, state: ServerState, client_ids: np.ndarray, personalize: Routine | None = None
    ) -> ScoreResult:
        """Personalizes and scores clients, every rank its part."""
        if not len(client_ids):
            return ScoreResult({}, {})
        parts, initial = (
            self._split_clients(client_ids),
            self.context.method.init_client_state(state),
        )
        moves = self._shards.plan_moves_to_parts(parts, initial)
        if self.context.method.num_offered_states:
            moves += self._shards.plan_moves_to_all(self.context.select_offered_clients(), initial)
        scored: ScoreResult = self._run_on_all_ranks(
            "score", state, parts, moves, personalize=personalize
        )[1]
        return scored

    def collect_client_states(self) -> ClientStateStore:
        """Every client's memory as it is now, on rank 0."""
        moves = self._shards.plan_moves_to_rank_0(
            self.context.method.init_client_state(self._state)
        )
        if moves:
            self._run_on_all_ranks(
                "collect", self._state, self._split_clients(np.array([], dtype=np.int64)), moves
            )
        return self.client_states

    def follow_commands(self) -> Any:
        """Does what rank 0 announces, for as long as it is for engines; returns what is not."""
        while isinstance(command := self.ranks.receive_command(), Command):
            self._run_command(command)
        return command

    def _split_clients(self, client_ids: np.ndarray) -> tuple[np.ndarray, ...]:
        return tuple(
            client_ids[rank :: self.ranks.world_size] for rank in range(self.ranks.world_size)
        )

    def _run_on_all_ranks(
        self,
        action: str,
        state: ServerState,
        parts: tuple[np.ndarray, ...],
        moves: list[Move],
        round_idx: int = 0,
        personalize: Routine | None = None,
    ) -> tuple[list[Status], Any]:
        """Announces something and does it with the others; raises what went wrong on any rank."""
        command = Command(
            action,
            parts,
            round_idx,
            moves,
            self.client_states.initialized.numpy(),
            state is not self._sent_state,
            personalize,
        )
        self._state = self._sent_state = state
        self.ranks.announce(command)
        statuses, result = self._run_command(command)
        self.ranks.finish_command()
        for problem in (status.error for status in statuses):
            if problem:
                raise problem
        return statuses, result

    def _run_command(self, command: Command) -> tuple[list[Status], Any]:
        """A rank's part of a command, and how all of them fared; on rank 0 also what came of it."""
        if command.action == "train":
            self.ranks.round_idx = command.round_idx + 1
        if command.has_new_state:
            leaves = self.ranks.broadcast(trees.leaves(tuple(self._state)))
            self._state = (
                ServerState(*trees.unflatten(tuple(self._state), leaves))
                if self.ranks.rank
                else self._state
            )
        self.client_states.initialized.copy_(torch.from_numpy(command.initialized))
        self._shards.apply_moves(command.moves, self.context.method.init_client_state(self._state))
        status, result = self._run_own_part(command)
        statuses = self.ranks.all_gather_object(status)
        if command.action == "collect" or any(each.error for each in statuses):
            return statuses, None
        if command.action == "score":
            return statuses, _interleave_scores(
                self.ranks.gather_object(result), self.ranks.world_size
            )
        pooled = (
            self._reduce_mean if self.context.method.aggregate is None else self._aggregate_uploads
        )
        return statuses, pooled(statuses, result)

    def _run_own_part(self, command: Command) -> tuple[Status, Any]:
        """A rank's own work; what goes wrong is told to all before anybody gives up."""
        part = command.parts[self.ranks.rank]
        try:
            if command.action == "score":
                return Status(), tuple(self.inner.score(self._state, part, command.personalize))
            if not len(part):
                return Status(), None
            (update, *_), down, up, steps = self.inner.train(self._state, part, command.round_idx)
        except FedtailorError as problem:
            return Status(problem), None
        except Exception as problem:
            first_line = next(iter(str(problem).splitlines()), "")
            message = f"Rank {self.ranks.rank} failed: {type(problem).__name__}: {first_line}"
            return Status(RoutineError(message)), None
        shapes = [(tuple(leaf.shape), leaf.dtype) for leaf in trees.leaves(update)]
        return Status(
            None, shapes, float(self.context.compute_weights(part).sum()), (down, up, steps)
        ), update

    def _reduce_mean(self, statuses: list[Status], update: Tree | None) -> Tree:
        """The weighted mean of all changes, from each rank's mean."""
        if update is None:
            leaves = [
                torch.zeros(shape, dtype=dtype, device=self.context.device)
                for shape, dtype in statuses[0].shapes
            ]
        else:
            leaves = trees.leaves(trees.scale(update, statuses[self.ranks.rank].weight))
        total = (
            sum(status.weight for status in statuses) or 1.0
        )  # nobody counts: nothing has changed
        sums = self.ranks.reduce_sum(leaves)
        return None if self.ranks.rank else trees.unflatten(update, [leaf / total for leaf in sums])

    def _aggregate_uploads(self, statuses: list[Status], uploads: Tree | None) -> Tree:
        """What the method's rule makes of all changes, which go to rank 0 for it, in the order of one process."""
        if uploads is None:
            return None
        if self.ranks.rank:
            return self.ranks.send(trees.leaves(uploads), 0)
        received = [
            self.ranks.receive(status.shapes, 1 + index)
            for index, status in enumerate(statuses[1:])
        ]
        all_parts = [trees.leaves(uploads), *(leaves for leaves in received if leaves)]
        interleaved = [
            _interleave(parts, self.ranks.world_size) for parts in zip(*all_parts, strict=True)
        ]
        aggregate, (updates, weights) = (
            self.context.method.aggregate,
            trees.unflatten(uploads, interleaved),
        )
        assert aggregate is not None
        return aggregate(updates, weights)


SINGLE_PROCESS_NOTE = "distributed runs as one process; several are started by: torchrun --nproc-per-node N -m fedtailor ..."


def make_rank_context(context: EngineContext) -> EngineContext:
    """The setting of one rank's own engine: uploads that are combined by a rule are left as they are."""
    method = context.method
    return (
        context
        if method.aggregate is None
        else replace(context, method=method._replace(aggregate=_keep_uploads))
    )


def _keep_uploads(updates: Tree, weights: Tensor) -> Tree:
    return updates, weights


def _interleave(parts: Sequence[Tensor], world_size: int) -> Tensor:
    """Rows that were dealt out, in the order from before; a part for each of the first ranks."""
    whole = parts[0].new_empty((sum(map(len, parts)), *parts[0].shape[1:]))
    for rank, part in enumerate(parts):
        whole[rank::world_size] = part.to(whole.device)
    return whole


def _interleave_scores(
    parts: list[tuple[dict[str, Tensor], dict[str, Tensor]]], world_size: int
) -> ScoreResult:
    """What rank 0 was handed in, in the order in which clients were asked for; other ranks have nothing."""
    found = [part for part in parts if part[0]]
    return ScoreResult(
        *(_interleave_figures([part[when] for part in found], world_size) for when in (0, 1))
    )


def _interleave_figures(parts: list[dict[str, Tensor]], world_size: int) -> dict[str, Tensor]:
    return {
        name: _interleave([part[name] for part in parts], world_size)
        for name in (parts[0] if parts else ())
    }


def _require_device(context: EngineContext, ranks: Ranks) -> None:
    """Refuses devices that ranks cannot have one each of."""
    if ranks.world_size == 1 or context.device.type == "cpu":
        return
    device, count = context.device, torch.cuda.device_count()
    is_own_device = device.type == "cuda" and device.index in (None, get_local_rank())
    require(
        is_own_device,
        f"Engine: ranks of distributed need device=cpu or device=cuda, got {str(device)!r}.",
    )
    require(
        get_local_rank() < count,
        f"Engine: rank {ranks.rank} has no GPU of its own, as PyTorch sees {count} here; start fewer ranks.",
    )
