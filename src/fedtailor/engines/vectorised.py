"""The fast engine: the clients of a cohort are stepped together by `torch.func.vmap`, a chunk at a time.

Clients are sorted by their number of steps and leave the stack when they have finished, so unequal clients cost no
masked steps; masks exist only inside the last batch of an epoch. When steps are compiled, or recorded on a GPU, they
are programs (see `programs`), and clients leave in a few lots, so that there are few shapes to make programs for. On a
GPU nothing in a round waits for the device: the host lays out the next steps while it works.
"""

import itertools
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
from fedtailor.convolution import convolves_much
from fedtailor.data.batching import Place, places, step_counts, stretches
from fedtailor.data.holders import Holders
from fedtailor.engines import sequential
from fedtailor.engines.base import (
    Collector,
    Scored,
    Setting,
    Site,
    Trained,
    batches_alone,
    mean_loss,
    scoring,
    sent,
    telling,
)
from fedtailor.engines.measuring import MOST, parts_that_stay
from fedtailor.engines.programs import Program, Stretches, stepped
from fedtailor.engines.tracing import Bind, Compile, Traced, as_it_is, compiled
from fedtailor.types import Gathered, Phase, Result, State, Tree, Work


class Vectorised:
    """Runs whole cohorts as one program; `chunk` bounds how many clients are stacked, `compile` compiles steps.

    With `compile="training"` those of personalising and scoring, which take many shapes and are done seldom, are not.

    Steps are `static`, done by programs, if they are compiled or on a GPU and nothing else is said.
    """

    def __init__(
        self,
        setting: Setting,
        chunk: int = MOST,
        compile: Compile = False,
        notes: tuple[str, ...] = (),
        static: bool | None = None,
    ) -> None:
        self.setting, self.notes, self.memory = setting, notes, setting.memory
        self.compiled = compile
        self.chunk = chunk
        self._clients, self._server = setting.clients(), setting.server()
        self._scoring, self._trying = scoring(setting.task), scoring(setting.task, "adapt")
        self._static = static if static is not None else bool(compile) or setting.device.type == "cuda"
        on_cpu = setting.device.type == "cpu"
        self._one_by_one = on_cpu and static is None and sequential.is_better_alone(setting.task.training)
        self._served = partial(_through, setting.method.server)
        self._programs: dict[Any, tuple[Phase, Program]] = {}
        self._traced: dict[tuple[int, bool], tuple[Any, Traced]] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Without the programs, which do not pickle and are made again when they are needed."""
        return self.__dict__ | {"_programs": {}, "_traced": {}}

    def train(self, state: State, cohort: np.ndarray, number: int) -> Trained:
        """Trains the cohort chunk by chunk."""
        method, chunks, up = self.setting.method, list(self._chunks(cohort)), 0
        collector = Collector(method, self._once, at_once=len(chunks) == 1)
        broadcast, fresh = method.broadcast(state), method.new_memory(state)
        for chunk in chunks:
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
        work = self.setting.method.server
        with telling(f"{self.setting.method.name}: server work", number, "the server"), _quiet():
            if not self._static:
                key = self.setting.keys("server", number, [0])[0]
                return sequential.run(work, state, gathered, self._server, 0, key)  # type: ignore[no-any-return]
            if not work.phases:
                return self._once(self._served)(state, gathered)  # type: ignore[no-any-return]
            carry = self._once(work.start)(state, gathered)
            for place, phase in enumerate(work.phases):
                keys = torch.from_numpy(keyed.fold(self.setting.keys("server", number, [0]).numpy(), place))
                one = trees.apply(_as_row, carry)
                carry = trees.row(self._phase(phase, state, one, np.array([0]), keys, self._server, self._bind()), 0)
            return self._once(work.finish)(state, carry)  # type: ignore[no-any-return]

    def score(self, state: State, who: np.ndarray, personalise: Work | None = None) -> Scored:
        """Personalises and scores clients chunk by chunk, in the order in which they are asked for."""
        method, parts = self.setting.method, []
        tailor = personalise or method.personalise
        works = (tailor._replace(phases=()), tailor)
        broadcast, fresh = method.broadcast(state), method.new_memory(state)
        offered = self.setting.offered() if method.tries else np.array([], dtype=np.int64)
        for chunk in slices(who, self.chunk):
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
            for some in slices(pairs, self.chunk):
                own = self.memory.gather(some[:, 1], fresh)
                models = self._work(self.setting.method.personalise, broadcast, own, some[:, 0], "personalise", 0)
                losses.append(mean_loss(self._work(self._trying, (), models, some[:, 0], "score", 0)))
            best = torch.cat(losses).reshape(len(newcomers), -1).argmin(1)
            whose[newcomers] = offered[best.cpu().numpy()]
        return self.memory.gather(whose, fresh)

    def _chunks(self, cohort: np.ndarray) -> Iterator[np.ndarray]:
        """The cohort in chunks of clients with similar numbers of steps."""
        order = np.argsort(-self.setting.steps(cohort), kind="stable")
        return slices(cohort[order], self.chunk)

    def _work(self, work: Work, given: Tree, own: Tree, who: np.ndarray, purpose: str, number: int) -> Tree:
        """What clients make of what they are given and have, with their own keys."""
        keys = self.setting.keys(purpose, number, who)
        with telling(f"{self.setting.method.name}: {purpose} work", number, self._named(who)), _quiet():
            carry = self._each(work.start, len(who))(given, own)
            for place, phase in enumerate(work.phases):
                folded = torch.from_numpy(keyed.fold(keys.numpy(), place))
                carry = self._phase(phase, given, carry, who, folded, self._clients, self._bind(purpose))
            return self._each(work.finish, len(who))(given, carry)

    def _phase(
        self,
        phase: Phase,
        given: Tree,
        carry: Tree,
        who: np.ndarray,
        keys: Tensor,
        site: Site | None,
        bind: Bind,
    ) -> Tree:
        """All steps of a phase for a stack of holders, who are sorted for it: the first has the most steps."""
        counts = np.full(len(who), phase.plan.steps) if site is None else step_counts(phase.plan, site.holders, who)
        order = np.argsort(-counts, kind="stable")
        moved = bool((order != np.arange(len(order))).any())
        if moved:
            there, back = (sent(torch.from_numpy(each), self.setting.device) for each in (order, np.argsort(order)))
            carry, who, keys, counts = trees.rows(carry, there), who[order], keys[order], counts[order]
        working = int((counts > 0).sum())
        if not working:
            return carry
        at_work = trees.rows(carry, slice(0, working)) if working < len(who) else carry
        plan, holders = phase.plan, _holders(site)
        if self._one_by_one and bind is not compiled:
            some = who[:working], keys[:working]
            worked = sequential.run_each(phase, given, at_work, site, *some)
        elif self._static and plan.draws:  # a step without batches is done once, and may change the carry's shape
            worked = self._run(
                *(phase, site, given, at_work),
                lambda part: stretches(plan, holders, who[part], keys[part], int(counts[part][0]), full_width=True),
                *(counts[:working], bind),
            )
        else:
            worked = self._stepped_out(phase, site, given, at_work, who[:working], keys[:working], counts[:working])
        if working < len(who):
            worked = trees.concat([worked, trees.rows(carry, slice(working, None))])
        return trees.rows(worked, back) if moved else worked

    def _stepped_out(
        self,
        phase: Phase,
        site: Site | None,
        given: Tree,
        carry: Tree,
        who: np.ndarray,
        keys: Tensor,
        counts: np.ndarray,
    ) -> Tree:
        """The carry of some clients after all steps; whoever has finished leaves the stack at once."""
        finished = list[Tree]()
        placed = places(phase.plan, _holders(site), who, keys, int(counts[0]), self._static)
        for number, draws in enumerate(placed):
            active = int((counts > number).sum())
            if active < len(trees.leaves(carry)[0]):
                finished.append(trees.rows(carry, slice(active, None)))
                carry = trees.rows(carry, slice(0, active))
            batches = tuple(site.batch(place.of(slice(0, active))) for place in draws) if site else ()
            carry = stepped(phase.step, False, given, carry, batches, torch.arange(active))
        return trees.concat([carry, *finished[::-1]]) if finished else carry

    def _corrected(self, state: State, changes: Tree, cohort: int, number: int) -> Tree:
        """The server's correction of every upload, on the same server batches for all."""
        correct = self.setting.method.correct
        if correct is None:
            return changes
        key = self.setting.keys("server", number, [0]).numpy()
        with telling(f"{self.setting.method.name}: server's correction", number, "the server"), _quiet():
            carry = self._each(correct.start, cohort)(state, changes)
            for place, phase in enumerate(correct.phases):
                folded = torch.from_numpy(keyed.fold(key, place))
                carry = self._together(phase, state, carry, folded, cohort)
            return self._each(correct.finish, cohort)(state, carry)

    def _together(self, phase: Phase, state: State, carry: Tree, key: Tensor, cohort: int) -> Tree:
        """A phase of the server's work on a stack of uploads, which all see the same batches."""
        site, server = self._server, np.array([0])
        if self._one_by_one and not self.compiled:
            return sequential.run_each(phase, state, carry, site, server.repeat(cohort), key.expand(cohort))
        if self._static:
            steps = (phase.plan.steps or 0) if site is None else int(step_counts(phase.plan, site.holders, server)[0])
            if not steps:
                return carry
            laid_out = partial(stretches, phase.plan, _holders(site), server, key, steps, full_width=True)
            counts = np.full(cohort, steps)
            return self._run(phase, site, state, carry, lambda _: laid_out(), counts, self._bind(), shared=True)
        for batches in batches_alone(phase.plan, site, server, key[0]):
            carry = stepped(phase.step, True, state, carry, batches, torch.arange(cohort))
        return carry

    def _run(
        self,
        phase: Phase,
        site: Site | None,
        given: Tree,
        carry: Tree,
        laid_out: Callable[[slice], Stretches],
        counts: np.ndarray,
        bind: Bind,
        shared: bool = False,
    ) -> Tree:
        """The carry after all steps, of the whole stack at a time, a part of it or one client."""
        worked, parts = trees.apply(_like, carry), self._parts(len(counts), trees.nbytes(carry) // len(counts))
        for part in parts:
            own, into = (trees.rows(tree, part) if len(parts) > 1 else tree for tree in (carry, worked))
            placed = laid_out(part)
            first = next(placed)
            program = self._program(phase, site, given, own, first[1], bind, shared)
            program.run(given, own, itertools.chain([first], placed), counts[part], bind, into)
        return worked

    def _program(
        self,
        phase: Phase,
        site: Site | None,
        given: Tree,
        carry: Tree,
        draws: tuple[Place, ...],
        bind: Bind,
        shared: bool,
    ) -> Program:
        """The program for such a phase and such shapes, which is made once."""
        leaves = trees.leaves((given, carry, *(place.rows[0] for place in draws)))
        name = (id(phase.step), shared, bind, *((leaf.shape, leaf.dtype) for leaf in leaves))
        if name not in self._programs:
            program = Program(phase.step, site, given, carry, draws, shared)
            self._programs[name] = phase, program  # the phase is kept, so that no other gets its name
        return self._programs[name][1]

    def _parts(self, count: int, each: int = 0) -> list[slice]:
        """What goes through its steps together: the whole stack, or less where large stacks are slow.

        On CPUs they are, for clients with large convolutions, and where carries, of so many bytes each, fill the cache.
        """
        if self.setting.device.type != "cpu":
            return [slice(0, count)]
        if convolves_much(self.setting.task.training):
            return [slice(at, at + 1) for at in range(count)]
        return parts_that_stay(count, each)

    def _bind(self, what: str = "server") -> Bind:
        """How the steps of such work become a program."""
        seldom = what in ("personalise", "score")
        return compiled if self.compiled is True or (self.compiled and not seldom) else as_it_is

    def _each(self, function: Callable[[Tree, Tree], Tree], count: int) -> Callable[[Tree, Tree], Tree]:
        """`start` or `finish` for a stack of `count` clients with one `given`."""
        whole = self._once(function, stacked=True)
        return lambda given, own: whole(given, own, torch.arange(count))

    def _once(self, function: Any, stacked: bool = False) -> Callable[..., Tree]:
        """A function, or that of a stack, followed through once and for all if steps are programs."""
        name = id(function), stacked
        if name in self._traced:
            return self._traced[name][1]
        whole = vmap(partial(_with_index, function), (None, 0, 0)) if stacked else function
        if not self._static:
            return whole
        self._traced[name] = function, Traced(whole)  # the function is kept, so that no other gets its name
        return self._traced[name][1]

    def _named(self, who: np.ndarray) -> str:
        ids = self.setting.data.ids[who]
        return f"client '{ids[0]}'" if len(ids) == 1 else f"one of {len(ids)} clients from '{ids[0]}' on"


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what torch says of its own speed: operations that vmap has no rule for are told once, as a note."""
    with warnings.catch_warnings():
        for said in ("There is a performance drop", "\\s*Online softmax is disabled", "TensorFloat32 tensor cores"):
            warnings.filterwarnings("ignore", said, UserWarning)
        yield


def _like(leaf: Tensor) -> Tensor:
    return torch.empty_like(leaf, memory_format=torch.contiguous_format)


def _with_index(function: Callable[[Tree, Tree], Tree], given: Tree, own: Tree, index: Tensor) -> Tree:
    return function(given, own)


def _through(work: Work, given: Tree, own: Tree) -> Tree:
    """A work without phases."""
    return work.finish(given, work.start(given, own))


def _holders(site: Site | None) -> Holders | None:
    return None if site is None else site.holders


def _as_row(leaf: Tensor) -> Tensor:
    return leaf[None]


def slices(who: np.ndarray, size: int) -> Iterator[np.ndarray]:
    """So many at a time."""
    return (who[begin : begin + size] for begin in range(0, len(who), size))
