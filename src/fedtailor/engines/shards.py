"""Clients' memories on several ranks: each stays with the rank that last worked with the client.

It is sent on when another rank gets the client. So who works with whom does not depend on where memories are, but on
the cohort alone, and a run that is resumed deals out its cohorts as if it had never stopped.
"""

from typing import NamedTuple

import numpy as np

from fedtailor import trees
from fedtailor.engines.memory import Memory
from fedtailor.engines.ranks import Ranks
from fedtailor.types import Tree

_SENT = 1 << 26  # bytes of memories that are sent at a time


class Move(NamedTuple):
    """Memories that are sent from one rank to another."""

    source: int
    to: int
    who: np.ndarray


class Shards:
    """One rank's memories; on rank 0 also the list of who is where. What is read from a checkpoint is on rank 0."""

    def __init__(self, memory: Memory, ranks: Ranks) -> None:
        self._memory, self._ranks = memory, ranks
        self._where = np.zeros(len(memory.known), dtype=np.int32)

    def to_parts(self, parts: tuple[np.ndarray, ...], fresh: Tree) -> list[Move]:
        """What must be sent so that every rank has what its part remembers."""
        moves: list[Move] = []
        for rank, part in enumerate(parts):
            known = part[self._memory.known.numpy()[part]]
            moves += self._to(known, rank, fresh)
            self._where[known] = rank
        return moves

    def to_all(self, who: np.ndarray, fresh: Tree) -> list[Move]:
        """What must be sent so that every rank has a copy of some clients' memories."""
        return [move for rank in range(self._ranks.world) for move in self._to(who, rank, fresh)]

    def to_rank_0(self, fresh: Tree) -> list[Move]:
        """What must be sent so that rank 0 has a copy of everything that has changed."""
        return self._to(np.flatnonzero(self._memory.changed.numpy()), 0, fresh)

    def trained(self, parts: tuple[np.ndarray, ...], fresh: Tree) -> None:
        """Notes that every rank has worked with its part."""
        for rank, part in enumerate(parts):
            self._where[part] = rank
            self._memory.known[part] = True
            self._memory.changed[part] = bool(trees.leaves(fresh))

    def carry_out(self, moves: list[Move], fresh: Tree) -> None:
        """Sends and receives. All ranks go through the moves in one order, so nobody waits in a circle."""
        changed = self._memory.changed.clone()
        for source, to, who in moves:
            if self._ranks.rank == source:
                self._ranks.send(self._memory.rows(who), to)
            elif self._ranks.rank == to:
                like = [((len(who), *leaf.shape), leaf.dtype) for leaf in trees.leaves(fresh)]
                self._memory.restore(who, self._ranks.receive(like, source), fresh)
        self._memory.changed.copy_(changed)

    def _to(self, who: np.ndarray, to: int, fresh: Tree) -> list[Move]:
        """The moves of clients who are elsewhere, in pieces that are not too large."""
        if not trees.leaves(fresh):
            return []
        rows = max(1, _SENT // max(1, trees.nbytes(fresh)))
        found = [(source, who[self._where[who] == source]) for source in range(self._ranks.world) if source != to]
        return [
            Move(source, to, some[begin : begin + rows])
            for source, some in found
            for begin in range(0, len(some), rows)
        ]
