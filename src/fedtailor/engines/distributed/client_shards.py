"""Clients' memories on several ranks: each stays with the rank that last worked with the client.

It is sent on when another rank gets the client. So who works with whom does not depend on where memories are, but on
the cohort alone, and a run that is resumed deals out its cohorts as if it had never stopped.
"""

from typing import NamedTuple

import numpy as np

from fedtailor.core import trees
from fedtailor.core.types import Tree
from fedtailor.engines.client_state import ClientStateStore
from fedtailor.engines.distributed.process_group import Ranks

_TRANSFER_BYTES = 1 << 26  # bytes of memories that are sent at a time


class Move(NamedTuple):
    """Memories that are sent from one rank to another."""

    src: int
    dst: int
    client_ids: np.ndarray


class ClientStateShards:
    """One rank's memories; on rank 0 also the list of who is where. What is read from a checkpoint is on rank 0."""

    def __init__(self, client_states: ClientStateStore, ranks: Ranks) -> None:
        self._client_states, self._ranks = client_states, ranks
        self._owner_ranks = np.zeros(len(client_states.initialized), dtype=np.int32)

    def plan_moves_to_parts(self, parts: tuple[np.ndarray, ...], initial: Tree) -> list[Move]:
        """What must be sent so that every rank has what its part remembers."""
        moves: list[Move] = []
        for rank, part in enumerate(parts):
            initialized_ids = part[self._client_states.initialized.numpy()[part]]
            moves += self._plan_moves(initialized_ids, rank, initial)
            self._owner_ranks[initialized_ids] = rank
        return moves

    def plan_moves_to_all(self, client_ids: np.ndarray, initial: Tree) -> list[Move]:
        """What must be sent so that every rank has a copy of some clients' memories."""
        return [
            move
            for rank in range(self._ranks.world_size)
            for move in self._plan_moves(client_ids, rank, initial)
        ]

    def plan_moves_to_rank_0(self, initial: Tree) -> list[Move]:
        """What must be sent so that rank 0 has a copy of everything that has changed."""
        return self._plan_moves(np.flatnonzero(self._client_states.changed.numpy()), 0, initial)

    def record_training(self, parts: tuple[np.ndarray, ...], initial: Tree) -> None:
        """Notes that every rank has worked with its part."""
        for rank, part in enumerate(parts):
            self._owner_ranks[part] = rank
            self._client_states.initialized[part] = True
            self._client_states.changed[part] = bool(trees.leaves(initial))

    def apply_moves(self, moves: list[Move], initial: Tree) -> None:
        """Sends and receives. All ranks go through the moves in one order, so nobody waits in a circle."""
        changed = self._client_states.changed.clone()
        for src, dst, client_ids in moves:
            if self._ranks.rank == src:
                self._ranks.send(self._client_states.read_rows(client_ids), dst)
            elif self._ranks.rank == dst:
                like = [
                    ((len(client_ids), *leaf.shape), leaf.dtype) for leaf in trees.leaves(initial)
                ]
                self._client_states.restore(client_ids, self._ranks.receive(like, src), initial)
        self._client_states.changed.copy_(changed)

    def _plan_moves(self, client_ids: np.ndarray, dst: int, initial: Tree) -> list[Move]:
        """The moves of clients who are elsewhere, in pieces that are not too large."""
        if not trees.leaves(initial):
            return []
        rows = max(1, _TRANSFER_BYTES // max(1, trees.nbytes(initial)))
        found = [
            (src, client_ids[self._owner_ranks[client_ids] == src])
            for src in range(self._ranks.world_size)
            if src != dst
        ]
        return [
            Move(src, dst, some[begin : begin + rows])
            for src, some in found
            for begin in range(0, len(some), rows)
        ]
