"""Client states over several ranks: each is on the rank that last trained or scored the client.

A state is sent to another rank when that rank gets the client. Which rank gets a client therefore
depends on the cohort alone and not on where states are, and a resumed run splits its cohorts as if
it had not been interrupted.
"""

from typing import NamedTuple

import numpy as np

from fedtailor.core import trees
from fedtailor.core.types import Tree
from fedtailor.engines.client_state import ClientStateStore
from fedtailor.engines.distributed.process_group import Ranks

_TRANSFER_BYTES = 1 << 26
"""Bytes of client states that are sent at a time."""


class Move(NamedTuple):
    """Client states that one rank sends to another."""

    src: int
    dst: int
    client_ids: np.ndarray  # [clients]


class ClientStateShards:
    """This rank's client states and, on rank 0, the rank that owns each client's state.

    States restored from a checkpoint are on rank 0.

    Args:
        client_states: Store of this rank.
        ranks: This process among all.
    """

    def __init__(self, client_states: ClientStateStore, ranks: Ranks) -> None:
        self._client_states = client_states
        self._ranks = ranks
        self._owner_ranks = np.zeros(len(client_states.initialized), dtype=np.int32)

    def plan_moves_to_parts(self, parts: tuple[np.ndarray, ...], initial: Tree) -> list[Move]:
        """Return the moves that give each rank the states of its part, and make it their owner.

        Args:
            parts: Indices of each rank's clients.
            initial: State of a client that has not taken part yet.
        """
        moves: list[Move] = []
        for rank, part in enumerate(parts):
            initialized_ids = part[self._client_states.initialized.numpy()[part]]
            moves += self._plan_moves(initialized_ids, rank, initial)
            self._owner_ranks[initialized_ids] = rank
        return moves

    def plan_moves_to_all(self, client_ids: np.ndarray, initial: Tree) -> list[Move]:
        """Return the moves that give each rank a copy of some clients' states."""
        moves: list[Move] = []
        for rank in range(self._ranks.world_size):
            moves += self._plan_moves(client_ids, rank, initial)
        return moves

    def plan_moves_to_rank_0(self, initial: Tree) -> list[Move]:
        """Return the moves that give rank 0 a copy of all states that have changed."""
        changed_ids = np.flatnonzero(self._client_states.changed.numpy())
        return self._plan_moves(changed_ids, 0, initial)

    def record_training(self, parts: tuple[np.ndarray, ...], initial: Tree) -> None:
        """Record that each rank has trained its part, so that it owns their changed states."""
        has_leaves = bool(trees.leaves(initial))
        for rank, part in enumerate(parts):
            self._owner_ranks[part] = rank
            self._client_states.initialized[part] = True
            self._client_states.changed[part] = has_leaves

    def apply_moves(self, moves: list[Move], initial: Tree) -> None:
        """Send and receive the states of this rank's moves.

        All ranks go through the moves in the same order, so there are no deadlocks.
        """
        # A state that was moved has not changed.
        changed = self._client_states.changed.clone()
        for move in moves:
            if self._ranks.rank == move.src:
                self._ranks.send(self._client_states.read_rows(move.client_ids), move.dst)
            elif self._ranks.rank == move.dst:
                self._receive(move, initial)
        self._client_states.changed.copy_(changed)

    def _receive(self, move: Move, initial: Tree) -> None:
        shapes = []
        for leaf in trees.leaves(initial):
            shapes.append(((len(move.client_ids), *leaf.shape), leaf.dtype))
        leaves = self._ranks.recv(shapes, move.src)
        self._client_states.restore(move.client_ids, leaves, initial)

    def _plan_moves(self, client_ids: np.ndarray, dst: int, initial: Tree) -> list[Move]:
        """Return the moves to a rank of the states on other ranks, in pieces of limited size."""
        if not trees.leaves(initial):
            return []
        states_per_move = max(1, _TRANSFER_BYTES // max(1, trees.nbytes(initial)))
        owner_ranks = self._owner_ranks[client_ids]
        moves = []
        for src in range(self._ranks.world_size):
            if src == dst:
                continue
            ids = client_ids[owner_ranks == src]
            for begin in range(0, len(ids), states_per_move):
                moves.append(Move(src, dst, ids[begin : begin + states_per_move]))
        return moves
