"""The fast engine: the clients of a cohort are stepped together by `torch.func.vmap`, a chunk at a time.

Clients are sorted by their number of steps and leave the stack when they have finished, so unequal clients cost no
masked steps; masks exist only inside the last batch of an epoch. When steps are compiled, they leave in a few lots, so
that there are few shapes to compile for.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from fedtailor import keyed, trees
from fedtailor.data.batching import places, step_counts
from fedtailor.engines.base import (
    Collector,
    Scored,
    Setting,
    Trained,
    alone,
    batches_alone,
    mean_loss,
    scoring,
    telling,
)
from fedtailor.types import Batch, Gathered, Phase, Result, State, Tree, Work

_ROOM = 1 << 30  # bytes that the stacked copies of the parameters may take when no chunk size is given
_COPIES = 6  # parameters, gradients, optimiser's moments, change, memory
_MOST_COMPILED = 200  # steps and shapes that one process may compile
_MOST = 256  # clients at a time; more of them no longer make a step cheaper per client


class Vectorised:
    """Runs whole cohorts as one program; `chunk` bounds how many clients are stacked, `compile` compiles the step."""

    def __init__(
        self, setting: Setting, chunk: int | None = None, compile: bool = False, notes: tuple[str, ...] = ()
    ) -> None:
        self.setting, self.notes, self.memory = setting, notes, setting.memory
        self.compiled = compile
        if compile:  # every vmapped step is the same function to the compiler, which gives up after 8 by itself
            torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, _MOST_COMPILED)
        self.chunk = chunk or _chunk_that_fits(trees.nbytes(setting.task.params))
        self._clients, self._server = setting.clients(), setting.server()
        self._scoring, self._trying = scoring(setting.task), scoring(setting.task, "adapt")
        self._compile: Callable[[Any], Any] = partial(torch.compile, dynamic=False) if compile else _unchanged
        self._steps: dict[tuple[int, bool], Callable[..., Tree]] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Without the vmapped steps, which do not pickle and are made again when they are needed."""
        return self.__dict__ | {"_steps": {}}

    def train(self, state: State, cohort: np.ndarray, number: int) -> Trained:
        """Trains the cohort chunk by chunk."""
        method, collector, up = self.setting.method, Collector(self.setting.method), 0
        broadcast, fresh = method.broadcast(state), method.new_memory(state)
        for chunk in self._chunks(cohort):
            own = self.memory.gather(chunk, fresh)
            result: Result = self._work(method.client, broadcast, own, chunk, "client", number)
            self.memory.scatter(chunk, result.memory)
            up += trees.nbytes(result.change) + (trees.nbytes(result.memory) if method.tries else 0)
            collector.add(self._corrected(state, result.change, len(chunk), number), self.setting.weights(chunk))
        counts = (self.setting.count(len(cohort)), self.setting.count(len(self.setting.data.groups["train"])))
        down, steps = trees.nbytes(broadcast) * len(cohort), int(self.setting.steps(cohort).sum())
        return Trained(Gathered(collector.result(), *counts), down, up, steps)

    def serve(self, state: State, gathered: Gathered, number: int) -> State:
        """Does the server's work on what was gathered."""
        key = self.setting.keys("server", number, [0])[0]
        with telling(f"{self.setting.method.name}: server work", number, "the server"):
            result: State = alone(self.setting.method.server, state, gathered, self._server, 0, key)
        return result

    def score(self, state: State, who: np.ndarray, personalise: Work | None = None) -> Scored:
        """Personalises and scores clients chunk by chunk, in the order in which they are asked for."""
        method, parts = self.setting.method, []
        tailor = personalise or method.personalise
        works = (tailor._replace(phases=()), tailor)
        broadcast, fresh = method.broadcast(state), method.new_memory(state)
        offered = self.setting.offered() if method.tries else np.array([], dtype=np.int64)
        for chunk in _slices(who, self.chunk):
            own = self._with_best(broadcast, fresh, offered, chunk)
            models = [self._work(work, broadcast, own, chunk, "personalise", 0) for work in works]
            parts.append(Scored(*(self._work(self._scoring, (), params, chunk, "score", 0) for params in models)))
        return Scored(*trees.apply(lambda leaf: leaf.cpu(), tuple(trees.concat(parts)))) if parts else Scored({}, {})

    def _with_best(self, broadcast: Tree, fresh: Tree, offered: np.ndarray, who: np.ndarray) -> Tree:
        """What clients remember; newcomers take the offered memory that serves them best, all pairs tried together."""
        whose, newcomers = who.copy(), np.flatnonzero(~self.memory.known.numpy()[who])
        if len(offered) and len(newcomers):
            losses = []
            pairs = np.stack([np.repeat(who[newcomers], len(offered)), np.tile(offered, len(newcomers))], axis=1)
            for some in _slices(pairs, self.chunk):
                own = self.memory.gather(some[:, 1], fresh)
                models = self._work(self.setting.method.personalise, broadcast, own, some[:, 0], "personalise", 0)
                losses.append(mean_loss(self._work(self._trying, (), models, some[:, 0], "score", 0)))
            best = torch.cat(losses).reshape(len(newcomers), -1).argmin(1)
            whose[newcomers] = offered[best.cpu().numpy()]
        return self.memory.gather(whose, fresh)

    def _chunks(self, cohort: np.ndarray) -> Iterator[np.ndarray]:
        """The cohort in chunks of clients with similar numbers of steps."""
        order = np.argsort(-self.setting.steps(cohort), kind="stable")
        return _slices(cohort[order], self.chunk)

    def _work(self, work: Work, given: Tree, own: Tree, who: np.ndarray, purpose: str, number: int) -> Tree:
        keys = self.setting.keys(purpose, number, who)
        with telling(f"{self.setting.method.name}: {purpose} work", number, self._named(who)), _slow_rules_known():
            carry = _each(work.start, len(who))(given, own)
            for place, phase in enumerate(work.phases):
                carry = self._phase(phase, given, carry, who, keyed.fold(keys, place))
            return _each(work.finish, len(who))(given, carry)

    def _phase(self, phase: Phase, given: Tree, carry: Tree, who: np.ndarray, keys: Tensor) -> Tree:
        site, step = self._clients, self._step(phase, shared=False)
        counts = step_counts(phase.plan, site.holders, who)
        order = np.argsort(-counts, kind="stable")
        counts, carry, finished = counts[order], trees.rows(carry, torch.from_numpy(order)), []
        any_steps, most = order[counts > 0], int(counts.max(initial=0))
        steps = places(phase.plan, site.holders, who[any_steps], keys[any_steps], most, full_width=self.compiled)
        for number, placed in enumerate(steps):
            active = int((counts > number).sum())
            size = _stack_size(active, len(any_steps)) if self.compiled else active
            if size < len(trees.leaves(carry)[0]):
                finished.append(trees.rows(carry, slice(size, None)))
                carry = trees.rows(carry, slice(0, size))
            batches = tuple(site.batch(place.of(slice(0, size))) for place in placed)
            stepped = step(given, carry, batches, torch.arange(size))
            carry = stepped if active == size else trees.apply(partial(_first_rows, active), stepped, carry)
        return trees.rows(trees.concat([carry, *finished[::-1]]), torch.from_numpy(np.argsort(order)))

    def _corrected(self, state: State, changes: Tree, cohort: int, number: int) -> Tree:
        """The server's correction of every upload, on the same server batches for all."""
        correct = self.setting.method.correct
        if correct is None:
            return changes
        key = self.setting.keys("server", number, [0])[0]
        with telling(f"{self.setting.method.name}: server's correction", number, "the server"), _slow_rules_known():
            carry = _each(correct.start, cohort)(state, changes)
            for place, phase in enumerate(correct.phases):
                step = self._step(phase, shared=True)
                for batches in batches_alone(phase.plan, self._server, np.array([0]), keyed.fold(key, place)):
                    carry = step(state, carry, batches, torch.arange(cohort))
            return _each(correct.finish, cohort)(state, carry)

    def _step(self, phase: Phase, shared: bool) -> Callable[..., Tree]:
        """The phase's step for a stack of clients, made once; `shared` batches are the same for all of them."""
        name = (id(phase.step), shared)
        if name not in self._steps:
            in_dims = (None, 0, None if shared else 0, 0)
            self._steps[name] = self._compile(vmap(partial(_with_index, phase.step), in_dims, randomness="error"))
        return self._steps[name]

    def _named(self, who: np.ndarray) -> str:
        ids = self.setting.data.ids[who]
        return f"client '{ids[0]}'" if len(ids) == 1 else f"one of {len(ids)} clients from '{ids[0]}' on"


@contextmanager
def _slow_rules_known() -> Iterator[None]:
    """Without torch's warnings about operations that vmap has no rule for: they are told once, as a note."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "There is a performance drop", UserWarning)
        yield


def _unchanged(function: Any) -> Any:
    return function


def _with_index(step: Callable[..., Tree], given: Tree, carry: Tree, batches: tuple[Batch, ...], index: Tensor) -> Tree:
    """A step with one tensor more: `vmap` needs at least one, and a carry and batches may have none."""
    return step(given, carry, batches)


def _each(function: Callable[[Tree, Tree], Tree], count: int) -> Callable[[Tree, Tree], Tree]:
    """`start` or `finish` for a stack of `count` clients with one `given`."""

    def stacked(given: Tree, own: Tree) -> Tree:
        return vmap(lambda given, own, index: function(given, own), (None, 0, 0))(given, own, torch.arange(count))

    return stacked


def _stack_size(active: int, most: int) -> int:
    """The smallest of most, most/2, most/4, ... that holds all: few sizes, so that little is compiled."""
    size = most
    while active <= -(-size // 2) < size:
        size = -(-size // 2)
    return size


def _first_rows(count: int, new: Tensor, old: Tensor) -> Tensor:
    """The first rows of one stack, and the rest of another."""
    return torch.cat([new[:count], old[count:]])


def _slices(who: np.ndarray, size: int) -> Iterator[np.ndarray]:
    return (who[begin : begin + size] for begin in range(0, len(who), size))


def _chunk_that_fits(param_bytes: int) -> int:
    return max(1, min(_MOST, _ROOM // max(1, _COPIES * param_bytes)))
