"""An engine of several processes, each with a device of its own: all of them train and score.

A cohort is split in the order of clients' steps, so that ranks get equally many clients and about
equal work. Each rank runs its part on an engine of its own, corrections of updates included. Rank 0
broadcasts the server state whenever it has changed. The weighted sum of the updates is reduced to
rank 0 (or all updates are sent there, if the method aggregates them by a rule), which alone runs
the server's routine. That costs as many bytes as if all ranks got the sum, and their states cannot
drift apart.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedtailor.core import trees
from fedtailor.core.types import CohortUpdate, Routine, ServerState, Tree
from fedtailor.engines.base import Engine, ScoreResult, TrainResult
from fedtailor.engines.client_state import ClientStateStore
from fedtailor.engines.context import EngineContext
from fedtailor.engines.distributed.client_shards import ClientStateShards, Move
from fedtailor.engines.distributed.process_group import Ranks, Shapes, get_local_rank
from fedtailor.errors import FedtailorError, RoutineError, require, summarize_error

SINGLE_PROCESS_NOTE = (
    "distributed runs as one process; several are started by: "
    "torchrun --nproc-per-node N -m fedtailor ..."
)

Action = Literal["train", "score", "collect"]
"""The work of a command; "collect" only sends client states to rank 0."""


class Command(NamedTuple):
    """A piece of work that all ranks do together."""

    action: Action
    parts: tuple[np.ndarray, ...]  # indices of each rank's clients
    moves: list[Move]  # of client states, before the action
    initialized: np.ndarray  # [clients] bool: which clients have a state
    has_new_state: bool  # whether rank 0 broadcasts the server state first
    round_idx: int = 0
    personalize: Routine | None = None  # routine for scoring; None: the method's own


class CommandStatus(NamedTuple):
    """Outcome of a rank's part of a command."""

    error: FedtailorError | None = None
    shapes: Shapes = ()  # of the leaves of its update; empty without an update
    weight: float = 0.0  # of all its clients together
    costs: tuple[int, int, int] = (0, 0, 0)  # bytes down, bytes up, steps


class DistributedEngine:
    """Engine that splits cohorts among ranks: on rank 0 like any other, the others follow it.

    Args:
        context: The run, the same on all ranks.
        inner: Engine of this rank, for the context of `make_rank_context`.
        ranks: This process among all.
    """

    def __init__(self, context: EngineContext, inner: Engine, ranks: Ranks) -> None:
        _require_device(context, ranks)
        self.context = context
        self.inner = inner
        self.client_states = context.client_states
        self.ranks = ranks
        self.notes = inner.notes
        if ranks.world_size == 1:
            self.notes = (*inner.notes, SINGLE_PROCESS_NOTE)
        self._shards = ClientStateShards(context.client_states, ranks)
        self._state = context.init_server_state()
        self._sent_state: ServerState | None = None

    def train(self, state: ServerState, cohort: np.ndarray, round_idx: int) -> TrainResult:
        """Train a cohort, each rank its part, and aggregate the updates (see `Engine.train`).

        Args:
            state: Server state that the broadcast is made from.
            cohort: Indices of the clients, [clients].
            round_idx: Index of the round.
        """
        order = np.argsort(-self.context.count_steps(cohort), kind="stable")
        parts = self._split_clients(cohort[order])
        initial_state = self.context.method.init_client_state(state)
        moves = self._shards.plan_moves_to_parts(parts, initial_state)
        statuses, update = self._run_on_all_ranks("train", state, parts, moves, round_idx)
        self._shards.record_training(parts, initial_state)
        bytes_down, bytes_up, steps = np.sum([status.costs for status in statuses], axis=0).tolist()
        cohort_update = self.context.make_cohort_update(update, cohort)
        return TrainResult(cohort_update, bytes_down, bytes_up, steps)

    def update_server(
        self, state: ServerState, cohort_update: CohortUpdate, round_idx: int
    ) -> ServerState:
        """Return the server state after the server's routine, which runs on rank 0 alone.

        Args:
            state: Server state that the cohort was trained from.
            cohort_update: Aggregated update of the cohort.
            round_idx: Index of the round.
        """
        return self.inner.update_server(state, cohort_update, round_idx)

    def score(
        self, state: ServerState, client_ids: np.ndarray, personalize: Routine | None = None
    ) -> ScoreResult:
        """Personalize and score clients, each rank its part (see `Engine.score`).

        Args:
            state: Server state that the broadcast is made from.
            client_ids: Indices of the clients, [clients].
            personalize: Routine to personalize with; None is the method's own.
        """
        if not len(client_ids):
            return ScoreResult({}, {})
        parts = self._split_clients(client_ids)
        initial_state = self.context.method.init_client_state(state)
        moves = self._shards.plan_moves_to_parts(parts, initial_state)
        offering_ids = self.context.select_offered_clients()
        moves += self._shards.plan_moves_to_all(offering_ids, initial_state)
        scores: ScoreResult
        _, scores = self._run_on_all_ranks("score", state, parts, moves, personalize=personalize)
        return scores

    def collect_client_states(self) -> ClientStateStore:
        """Return rank 0's store after copying all states into it that have changed elsewhere."""
        initial_state = self.context.method.init_client_state(self._state)
        moves = self._shards.plan_moves_to_rank_0(initial_state)
        if moves:
            no_clients = self._split_clients(np.array([], dtype=np.int64))
            self._run_on_all_ranks("collect", self._state, no_clients, moves)
        return self.client_states

    def follow_commands(self) -> Any:
        """Run rank 0's commands to engines; return the first that is not for engines."""
        command = self.ranks.receive_command()
        while isinstance(command, Command):
            self._run_command(command)
            command = self.ranks.receive_command()
        return command

    def _split_clients(self, client_ids: np.ndarray) -> tuple[np.ndarray, ...]:
        """Deal clients out to the ranks in turn."""
        world_size = self.ranks.world_size
        return tuple(client_ids[rank::world_size] for rank in range(world_size))

    def _run_on_all_ranks(
        self,
        action: Action,
        state: ServerState,
        parts: tuple[np.ndarray, ...],
        moves: list[Move],
        round_idx: int = 0,
        personalize: Routine | None = None,
    ) -> tuple[list[CommandStatus], Any]:
        """Announce a command and run it; raise the first error of any rank."""
        command = Command(
            action=action,
            parts=parts,
            moves=moves,
            initialized=self.client_states.initialized.numpy(),
            has_new_state=state is not self._sent_state,
            round_idx=round_idx,
            personalize=personalize,
        )
        self._state = state
        self._sent_state = state
        self.ranks.announce(command)
        statuses, result = self._run_command(command)
        self.ranks.finish_command()
        for status in statuses:
            if status.error is not None:
                raise status.error
        return statuses, result

    def _run_command(self, command: Command) -> tuple[list[CommandStatus], Any]:
        """Run this rank's part of a command.

        Returns:
            The statuses of all ranks and, on rank 0, the result; None if any rank has failed.
        """
        if command.action == "train":
            self.ranks.round_idx = command.round_idx + 1
        if command.has_new_state:
            self._broadcast_state()
        self.client_states.initialized.copy_(torch.from_numpy(command.initialized))
        initial_state = self.context.method.init_client_state(self._state)
        self._shards.apply_moves(command.moves, initial_state)
        status, result = self._run_own_part(command)
        statuses = self.ranks.all_gather_object(status)
        has_failed = any(each.error is not None for each in statuses)
        if command.action == "collect" or has_failed:
            return statuses, None
        if command.action == "score":
            scores = self.ranks.gather_object(result)
            return statuses, _interleave_scores(scores, self.ranks.world_size)
        if self.context.method.aggregate is None:
            return statuses, self._reduce_mean(statuses, result)
        return statuses, self._aggregate_uploads(statuses, result)

    def _broadcast_state(self) -> None:
        leaves = self.ranks.broadcast(trees.leaves(self._state))
        if self.ranks.rank != 0:
            self._state = trees.unflatten(self._state, leaves)

    def _run_own_part(self, command: Command) -> tuple[CommandStatus, Any]:
        """Train or score this rank's clients.

        Errors are part of the status: a rank that raised one would leave the others waiting.
        """
        part = command.parts[self.ranks.rank]
        try:
            if command.action == "score":
                return CommandStatus(), tuple(
                    self.inner.score(self._state, part, command.personalize)
                )
            if not len(part):
                return CommandStatus(), None
            result = self.inner.train(self._state, part, command.round_idx)
        except FedtailorError as problem:
            return CommandStatus(problem), None
        except Exception as problem:
            message = f"Rank {self.ranks.rank} failed: {summarize_error(problem)}"
            return CommandStatus(RoutineError(message)), None
        update = result.cohort_update.update
        status = CommandStatus(
            shapes=[(tuple(leaf.shape), leaf.dtype) for leaf in trees.leaves(update)],
            weight=float(self.context.compute_weights(part).sum()),
            costs=(result.bytes_down, result.bytes_up, result.steps),
        )
        return status, update

    def _reduce_mean(self, statuses: list[CommandStatus], update: Tree | None) -> Tree:
        """Return the weighted mean of all updates, from each rank's mean, on rank 0."""
        if update is None:
            leaves = []
            for shape, dtype in statuses[0].shapes:
                leaves.append(torch.zeros(tuple(shape), dtype=dtype, device=self.context.device))
        else:
            leaves = trees.leaves(trees.scale(update, statuses[self.ranks.rank].weight))
        # If all weights are 0, so is the mean.
        total_weight = sum(status.weight for status in statuses) or 1.0
        sums = self.ranks.reduce(leaves)
        if self.ranks.rank != 0:
            return None
        return trees.unflatten(update, [leaf / total_weight for leaf in sums])

    def _aggregate_uploads(self, statuses: list[CommandStatus], uploads: Tree | None) -> Tree:
        """Return the aggregate of all updates, in the order of one process, on rank 0.

        Args:
            statuses: Outcomes of all ranks, with the shapes of their uploads.
            uploads: This rank's stacked updates and their weights; None if it has no clients.
        """
        if uploads is None:
            return None
        if self.ranks.rank != 0:
            self.ranks.send(trees.leaves(uploads), 0)
            return None
        parts = [trees.leaves(uploads)]
        for rank, status in enumerate(statuses):
            if rank != 0 and status.shapes:
                parts.append(self.ranks.recv(status.shapes, rank))
        leaves = []
        for leaf_parts in zip(*parts, strict=True):
            leaves.append(_interleave(leaf_parts, self.ranks.world_size))
        updates, weights = trees.unflatten(uploads, leaves)
        aggregate = self.context.method.aggregate
        assert aggregate is not None
        return aggregate(updates, weights)


def make_rank_context(context: EngineContext) -> EngineContext:
    """Return the context of a rank's own engine, which leaves updates to a rule as they are."""
    method = context.method
    if method.aggregate is None:
        return context
    return replace(context, method=method._replace(aggregate=_keep_uploads))


def _keep_uploads(updates: Tree, weights: Tensor) -> Tree:
    return updates, weights


def _interleave(parts: Sequence[Tensor], world_size: int) -> Tensor:
    """Return the rows of all ranks in the order from before `_split_clients`.

    Ranks without rows come last and may be left out of `parts`.
    """
    num_rows = sum(map(len, parts))
    rows = parts[0].new_empty((num_rows, *parts[0].shape[1:]))
    for rank, part in enumerate(parts):
        rows[rank::world_size] = part.to(rows.device)
    return rows


def _interleave_scores(
    scores: list[tuple[dict[str, Tensor], dict[str, Tensor]]], world_size: int
) -> ScoreResult:
    """Return the scores of all ranks in the order of the clients; empty dicts without any."""
    parts = [(before, after) for before, after in scores if before]
    return ScoreResult(
        before=_interleave_sums([before for before, _ in parts], world_size),
        after=_interleave_sums([after for _, after in parts], world_size),
    )


def _interleave_sums(parts: list[dict[str, Tensor]], world_size: int) -> dict[str, Tensor]:
    if not parts:
        return {}
    sums = {}
    for name in parts[0]:
        sums[name] = _interleave([part[name] for part in parts], world_size)
    return sums


def _require_device(context: EngineContext, ranks: Ranks) -> None:
    """Raise an InputError unless every rank can have such a device of its own."""
    device = context.device
    if ranks.world_size == 1 or device.type == "cpu":
        return
    local_rank = get_local_rank()
    is_own_device = device.type == "cuda" and device.index in (None, local_rank)
    require(
        is_own_device,
        f"Engine: ranks of distributed need device=cpu or device=cuda, got {str(device)!r}.",
    )
    num_gpus = torch.cuda.device_count()
    require(
        local_rank < num_gpus,
        f"Engine: rank {ranks.rank} has no GPU of its own, as PyTorch sees {num_gpus} here; "
        "start fewer ranks.",
    )
