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

from fedtailor import trees
from fedtailor.engines.base import Engine, Scored, Setting, Trained
from fedtailor.engines.memory import Memory
from fedtailor.engines.ranks import Ranks, local_rank
from fedtailor.engines.shards import Move, Shards
from fedtailor.errors import FedtailorError, WorkError, require
from fedtailor.types import Gathered, State, Tree, Work

Shapes = Sequence[tuple[tuple[int, ...], torch.dtype]]


class Command(NamedTuple):
    """What all ranks do together."""

    what: str  # "train", "score" or "collect"
    parts: tuple[np.ndarray, ...]  # whose clients are whose
    number: int  # of the round
    moves: list[Move]
    known: np.ndarray  # who remembers something
    fresh: bool  # whether a state is sent first
    work: Work | None = None  # by which clients personalise, if not as the method does


class Status(NamedTuple):
    """How a rank's part went."""

    problem: FedtailorError | None = None
    shapes: Shapes = ()  # of its change, if it has one
    weight: float = 0.0
    costs: tuple[int, int, int] = (0, 0, 0)


class Distributed:
    """Shares cohorts among ranks. On rank 0 it is used like any engine; the others `follow`."""

    def __init__(self, setting: Setting, inner: Engine, ranks: Ranks) -> None:
        _require_device(setting, ranks)
        self.setting, self.inner, self.memory, self.ranks = setting, inner, setting.memory, ranks
        self.notes = (*inner.notes, *(() if ranks.world > 1 else (ALONE,)))
        self._shards, self._state = Shards(setting.memory, ranks), setting.first_state()
        self._sent: State | None = None

    def train(self, state: State, cohort: np.ndarray, number: int) -> Trained:
        """Trains the cohort, every rank its part."""
        parts = self._dealt(cohort[np.argsort(-self.setting.steps(cohort), kind="stable")])
        fresh = self.setting.method.new_memory(state)
        statuses, change = self._together("train", state, parts, self._shards.to_parts(parts, fresh), number)
        self._shards.trained(parts, fresh)
        counts = (self.setting.count(len(cohort)), self.setting.count(len(self.setting.data.groups["train"])))
        down, up, steps = np.sum([status.costs for status in statuses], axis=0).tolist()
        return Trained(Gathered(change, *counts), down, up, steps)

    def serve(self, state: State, gathered: Gathered, number: int) -> State:
        """Does the server's work on what was gathered, on rank 0."""
        return self.inner.serve(state, gathered, number)

    def score(self, state: State, who: np.ndarray, personalise: Work | None = None) -> Scored:
        """Personalises and scores clients, every rank its part."""
        if not len(who):
            return Scored({}, {})
        parts, fresh = self._dealt(who), self.setting.method.new_memory(state)
        moves = self._shards.to_parts(parts, fresh)
        if self.setting.method.tries:
            moves += self._shards.to_all(self.setting.offered(), fresh)
        scored: Scored = self._together("score", state, parts, moves, work=personalise)[1]
        return scored

    def collected(self) -> Memory:
        """Every client's memory as it is now, on rank 0."""
        moves = self._shards.to_rank_0(self.setting.method.new_memory(self._state))
        if moves:
            self._together("collect", self._state, self._dealt(np.array([], dtype=np.int64)), moves)
        return self.memory

    def follow(self) -> Any:
        """Does what rank 0 announces, for as long as it is for engines; returns what is not."""
        while isinstance(command := self.ranks.heard(), Command):
            self._done(command)
        return command

    def _dealt(self, who: np.ndarray) -> tuple[np.ndarray, ...]:
        return tuple(who[rank :: self.ranks.world] for rank in range(self.ranks.world))

    def _together(
        self,
        what: str,
        state: State,
        parts: tuple[np.ndarray, ...],
        moves: list[Move],
        number: int = 0,
        work: Work | None = None,
    ) -> tuple[list[Status], Any]:
        """Announces something and does it with the others; raises what went wrong on any rank."""
        command = Command(what, parts, number, moves, self.memory.known.numpy(), state is not self._sent, work)
        self._state = self._sent = state
        self.ranks.announce(command)
        statuses, result = self._done(command)
        self.ranks.done()
        for problem in (status.problem for status in statuses):
            if problem:
                raise problem
        return statuses, result

    def _done(self, command: Command) -> tuple[list[Status], Any]:
        """A rank's part of a command, and how all of them fared; on rank 0 also what came of it."""
        if command.what == "train":
            self.ranks.round = command.number + 1
        if command.fresh:
            leaves = self.ranks.spread(trees.leaves(tuple(self._state)))
            self._state = State(*trees.rebuild(tuple(self._state), leaves)) if self.ranks.rank else self._state
        self.memory.known.copy_(torch.from_numpy(command.known))
        self._shards.carry_out(command.moves, self.setting.method.new_memory(self._state))
        status, result = self._part(command)
        statuses = self.ranks.exchanged(status)
        if command.what == "collect" or any(each.problem for each in statuses):
            return statuses, None
        if command.what == "score":
            return statuses, _woven_scores(self.ranks.handed_in(result), self.ranks.world)
        pooled = self._summed if self.setting.method.combine is None else self._combined
        return statuses, pooled(statuses, result)

    def _part(self, command: Command) -> tuple[Status, Any]:
        """A rank's own work; what goes wrong is told to all before anybody gives up."""
        part = command.parts[self.ranks.rank]
        try:
            if command.what == "score":
                return Status(), tuple(self.inner.score(self._state, part, command.work))
            if not len(part):
                return Status(), None
            (change, *_), down, up, steps = self.inner.train(self._state, part, command.number)
        except FedtailorError as problem:
            return Status(problem), None
        except Exception as problem:
            first_line = next(iter(str(problem).splitlines()), "")
            said = f"Rank {self.ranks.rank} failed: {type(problem).__name__}: {first_line}"
            return Status(WorkError(said)), None
        shapes = [(tuple(leaf.shape), leaf.dtype) for leaf in trees.leaves(change)]
        return Status(None, shapes, float(self.setting.weights(part).sum()), (down, up, steps)), change

    def _summed(self, statuses: list[Status], change: Tree | None) -> Tree:
        """The weighted mean of all changes, from each rank's mean."""
        if change is None:
            leaves = [
                torch.zeros(shape, dtype=dtype, device=self.setting.device) for shape, dtype in statuses[0].shapes
            ]
        else:
            leaves = trees.leaves(trees.scaled(change, statuses[self.ranks.rank].weight))
        total = sum(status.weight for status in statuses) or 1.0  # nobody counts: nothing has changed
        sums = self.ranks.summed(leaves)
        return None if self.ranks.rank else trees.rebuild(change, [leaf / total for leaf in sums])

    def _combined(self, statuses: list[Status], uploads: Tree | None) -> Tree:
        """What the method's rule makes of all changes, which go to rank 0 for it, in the order of one process."""
        if uploads is None:
            return None
        if self.ranks.rank:
            return self.ranks.send(trees.leaves(uploads), 0)
        sent = [self.ranks.receive(status.shapes, 1 + place) for place, status in enumerate(statuses[1:])]
        all_parts = [trees.leaves(uploads), *(leaves for leaves in sent if leaves)]
        woven = [_woven(parts, self.ranks.world) for parts in zip(*all_parts, strict=True)]
        combine, (changes, weights) = self.setting.method.combine, trees.rebuild(uploads, woven)
        assert combine is not None
        return combine(changes, weights)


ALONE = "distributed runs as one process; several are started by: torchrun --nproc-per-node N -m fedtailor ..."


def for_a_rank(setting: Setting) -> Setting:
    """The setting of one rank's own engine: uploads that are combined by a rule are left as they are."""
    method = setting.method
    return setting if method.combine is None else replace(setting, method=method._replace(combine=_as_they_are))


def _as_they_are(changes: Tree, weights: Tensor) -> Tree:
    return changes, weights


def _woven(parts: Sequence[Tensor], world: int) -> Tensor:
    """Rows that were dealt out, in the order from before; a part for each of the first ranks."""
    whole = parts[0].new_empty((sum(map(len, parts)), *parts[0].shape[1:]))
    for rank, part in enumerate(parts):
        whole[rank::world] = part.to(whole.device)
    return whole


def _woven_scores(parts: list[tuple[dict[str, Tensor], dict[str, Tensor]]], world: int) -> Scored:
    """What rank 0 was handed in, in the order in which clients were asked for; other ranks have nothing."""
    found = [part for part in parts if part[0]]
    return Scored(*(_woven_figures([part[when] for part in found], world) for when in (0, 1)))


def _woven_figures(parts: list[dict[str, Tensor]], world: int) -> dict[str, Tensor]:
    return {name: _woven([part[name] for part in parts], world) for name in (parts[0] if parts else ())}


def _require_device(setting: Setting, ranks: Ranks) -> None:
    """Refuses devices that ranks cannot have one each of."""
    if ranks.world == 1 or setting.device.type == "cpu":
        return
    device, count = setting.device, torch.cuda.device_count()
    own = device.type == "cuda" and device.index in (None, local_rank())
    require(own, f"Engine: ranks of distributed need device=cpu or device=cuda, got {str(device)!r}.")
    require(
        local_rank() < count,
        f"Engine: rank {ranks.rank} has no GPU of its own, as PyTorch sees {count} here; start fewer ranks.",
    )
