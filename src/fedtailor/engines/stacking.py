"""Several runs of one method in the same program: seeds, and trials that differ in floating numbers alone.

Each run goes its own way in a thread of its own, with an engine that looks like any other. Only one thread is ever at
work: where a run wants clients trained or scored it waits until all the others want something too, and then everything
that is wanted is done together, the clients of all runs in one stack. What a run gets is what it would get alone.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from threading import Condition
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedtailor import trees
from fedtailor.engines.base import Collector, Engine, Scored, Setting, Trained, one_step_each, sent
from fedtailor.engines.lifting import Build, CannotLiftError, lifting
from fedtailor.engines.memory import Memory
from fedtailor.engines.tracing import Compile
from fedtailor.engines.vectorised import Vectorised, slices
from fedtailor.errors import WorkError
from fedtailor.types import Batch, Gathered, Phase, Plan, State, Tree, Work


class Training(NamedTuple):
    """A cohort that a run wants trained."""

    state: State
    cohort: np.ndarray
    number: int


class Scoring(NamedTuple):
    """Clients that a run wants scored."""

    state: State
    who: np.ndarray
    personalise: Work | None


class Meeting:
    """Where runs wait for each other. Whoever holds `turn` is at work, and nobody else."""

    def __init__(self, runs: int) -> None:
        self.turn = Condition()
        self.there, self._asked, self._answers = runs, dict[int, Any](), dict[int, Any]()
        self.answer: Callable[[dict[int, Any]], dict[int, Any]] = _nothing

    def ask(self, run: int, request: Any) -> Any:
        """What came of a request, once every run has made one."""
        self._asked[run] = request
        self._answer_if_all_asked()
        while run not in self._answers:
            self.turn.wait()
        found = self._answers.pop(run)
        if isinstance(found, BaseException):
            raise found
        return found

    def leave(self) -> None:
        """Nobody waits for this run any more."""
        self.there -= 1
        self._answer_if_all_asked()

    def _answer_if_all_asked(self) -> None:
        if self._asked and len(self._asked) == self.there:
            asked, self._asked = self._asked, {}
            try:
                self._answers |= self.answer(asked)
            except Exception as problem:
                self._answers |= dict.fromkeys(asked, problem)
            self.turn.notify_all()


class Member:
    """One run's engine among several: what it is asked for waits until the others ask too."""

    def __init__(self, run: int, meeting: Meeting, alone: Vectorised) -> None:
        self.run, self.meeting, self.alone = run, meeting, alone
        self.setting, self.memory, self.notes = alone.setting, alone.memory, alone.notes

    @property
    def abreast(self) -> int:
        """How many runs are still there."""
        return self.meeting.there

    def train(self, state: State, cohort: np.ndarray, number: int) -> Trained:
        """Trains a cohort, together with those of the other runs."""
        result: Trained = self.meeting.ask(self.run, Training(state, cohort, number))
        return result

    def serve(self, state: State, gathered: Gathered, number: int) -> State:
        """Does the server's work by itself."""
        return self.alone.serve(state, gathered, number)

    def score(self, state: State, who: np.ndarray, personalise: Work | None = None) -> Scored:
        """Personalises and scores clients, together with those of the other runs."""
        result: Scored = self.meeting.ask(self.run, Scoring(state, who, personalise))
        return result


class Joining(NamedTuple):
    """A run that wants an engine."""

    setting: Setting
    chunk: int | None
    compile: Compile


class Party:
    """Runs of one method that want to work together; those that cannot get an engine each, and go one after another."""

    def __init__(self, runs: int, make: Callable[..., Engine]) -> None:
        self.meeting, self._make = Meeting(runs), make
        self.meeting.answer = self._assembled

    def engine(self, setting: Setting, chunk: int | None, compile: Compile) -> Engine:
        """The engine of one of the runs, once all of them have asked."""
        found: Engine = self.meeting.ask(id(setting), Joining(setting, chunk, compile))
        return found

    def _assembled(self, asked: dict[int, Any]) -> dict[int, Any]:
        settings, hows = ([each.setting for each in asked.values()], [each[1:] for each in asked.values()])
        first = self._make(settings[0], "vectorised", *hows[0])
        alike = len(settings) > 1 and len(set(hows)) == 1  # a run that is gone on with keeps to what was chosen for it
        if alike and isinstance(first, Vectorised) and (stack := _stack(settings, first)):
            self.meeting.answer = stack.answer
            members = [Member(run, self.meeting, first.sibling(each)) for run, each in enumerate(settings)]
            return dict(zip(asked, members, strict=True))
        others = (self._make(each, "vectorised", *how) for each, how in zip(settings[1:], hows[1:], strict=True))
        return dict(zip(asked, [first, *others], strict=True))


class Stack:
    """The runs' clients, trained and scored together by one engine."""

    def __init__(self, settings: Sequence[Setting], engine: Vectorised) -> None:
        methods = [setting.method for setting in settings]
        self._settings, self._engine = settings, engine
        self._client = LiftedWork([method.client for method in methods])
        self._personalise = LiftedWork([method.personalise for method in methods])
        corrections = [method.correct for method in methods]
        self._correct = LiftedWork([work for work in corrections if work]) if corrections[0] else None
        if any((work is None) != (corrections[0] is None) for work in corrections) or methods[0].tries:
            raise CannotLiftError("their servers do different things")

    def answer(self, requests: dict[int, Any]) -> dict[int, Any]:
        """What all runs asked for."""
        answers: dict[int, Any] = {}
        in_order = sorted(requests.items())  # rows of a run are found by its number
        training = {run: each for run, each in in_order if isinstance(each, Training)}
        scoring = {run: each for run, each in in_order if isinstance(each, Scoring)}
        if training:
            answers |= self._trained(training)
        for plans in dict.fromkeys(map(_plans, scoring.values())):
            answers |= self._scored({run: each for run, each in scoring.items() if _plans(each) == plans})
        return answers

    def _trained(self, asked: dict[int, Training]) -> dict[int, Trained]:
        runs, who = _rows({run: each.cohort for run, each in asked.items()})
        order = np.argsort(-self._engine.setting.steps(who), kind="stable")
        collectors = {run: Collector(self._settings[run].method) for run in asked}
        up = dict.fromkeys(asked, 0)
        for some in slices(order, self._engine.chunk):
            some = some[np.argsort(runs[some], kind="stable")]  # rows of a run beside each other
            for run, result, clients in self._clients_work(asked, runs[some], who[some]):
                setting = self._settings[run]
                setting.memory.scatter(clients, result.memory)
                up[run] += trees.nbytes(result.change)
                collectors[run].add(result.change, setting.weights(clients))
        return {run: self._told(run, each, collectors[run], up[run]) for run, each in asked.items()}

    def _told(self, run: int, asked: Training, collector: Collector, up: int) -> Trained:
        setting, cohort = self._settings[run], asked.cohort
        counts = (setting.count(len(cohort)), setting.count(len(setting.data.groups["train"])))
        down = trees.nbytes(setting.method.broadcast(asked.state)) * len(cohort)
        return Trained(Gathered(collector.result(), *counts), down, up, int(setting.steps(cohort).sum()))

    def _clients_work(
        self, asked: dict[int, Training], runs: np.ndarray, who: np.ndarray
    ) -> list[tuple[int, Any, Any]]:
        """What a chunk of clients made, corrected at the server: for each run the results, and whose they are."""
        parts = [(int(run), who[runs == run]) for run in np.unique(runs)]
        broadcasts = self._spread([self._settings[run].method.broadcast(asked[run].state) for run, _ in parts], runs)
        own = trees.concat([self._remembered(run, asked[run].state, some) for run, some in parts])
        keys = torch.cat([self._settings[run].keys("client", asked[run].number, some) for run, some in parts])
        result = self._work(self._client, runs, broadcasts, own, who, keys, "client", asked[parts[0][0]].number)
        if self._correct is not None:
            states = self._spread([asked[run].state for run, _ in parts], runs)
            result = result._replace(change=self._corrected(asked, runs, states, result.change))
        return [(run, self._part(result, runs, run), some) for run, some in parts]

    def _corrected(self, asked: dict[int, Training], runs: np.ndarray, states: Tree, changes: Tree) -> Tree:
        """The server's corrections of uploads, each on the batches that all uploads of its run see."""
        assert self._correct is not None
        keys = torch.cat([self._settings[run].keys("server", asked[run].number, [0]) for run in runs])
        server, number = np.zeros(len(runs), dtype=np.int64), asked[int(runs[0])].number
        return self._work(self._correct, runs, states, changes, server, keys, "server", number, at_server=True)

    def _scored(self, asked: dict[int, Scoring]) -> dict[int, Scored]:
        runs, who = _rows({run: each.who for run, each in asked.items()})
        work, (first, *_) = self._personalise, asked.values()
        if first.personalise is not None:  # then all of these are other ones, with the same plans
            others = {run: each.personalise or first.personalise for run, each in asked.items()}
            work = LiftedWork([others.get(run, first.personalise) for run in range(self._count)])
        found = [
            self._chunk_scored(asked, work, runs[some], who[some])
            for some in slices(np.arange(len(who)), self._engine.chunk)
        ]
        whole = trees.concat([tuple(each) for each in found]) if found else ({}, {})
        return {run: Scored(*trees.apply(lambda leaf: leaf.cpu(), self._part(whole, runs, run))) for run in asked}

    def _chunk_scored(self, asked: dict[int, Scoring], work: "LiftedWork", runs: np.ndarray, who: np.ndarray) -> Scored:
        parts = [(int(run), who[runs == run]) for run in np.unique(runs)]
        broadcasts = self._spread([self._settings[run].method.broadcast(asked[run].state) for run, _ in parts], runs)
        own = trees.concat([self._remembered(run, asked[run].state, some) for run, some in parts])
        keys, scores = (
            torch.cat([self._settings[run].keys(purpose, 0, some) for run, some in parts])
            for purpose in ("personalise", "score")
        )
        models = [
            self._work(each, runs, broadcasts, own, who, keys, "personalise", 0)
            for each in (work.without_steps(), work)
        ]
        return Scored(
            *(self._engine.work(self._engine.scoring, (), model, who, scores, "score", 0) for model in models)
        )

    @property
    def _count(self) -> int:
        return len(self._settings)

    def _remembered(self, run: int, state: State, who: np.ndarray) -> Tree:
        setting = self._settings[run]
        return setting.memory.gather(who, setting.method.new_memory(state))

    def _spread(self, given: list[Tree], runs: np.ndarray) -> Tree:
        """What each run gives, for each of its clients; clients of a run are beside each other."""
        _, counts = np.unique(runs, return_counts=True)
        each = [trees.apply(partial(_repeated, int(count)), tree) for tree, count in zip(given, counts, strict=True)]
        return trees.concat(each)

    def _part(self, stacked: Tree, runs: np.ndarray, run: int) -> Tree:
        rows = np.flatnonzero(runs == run)
        return trees.rows(stacked, slice(int(rows[0]), int(rows[-1]) + 1) if len(rows) else slice(0, 0))

    def _work(
        self,
        work: "LiftedWork",
        runs: np.ndarray,
        given: Tree,
        own: Tree,
        who: np.ndarray,
        keys: Tensor,
        what: str,
        number: int,
        at_server: bool = False,
    ) -> Any:
        setting = self._engine.setting
        rows = torch.tensor(work.rows, dtype=setting.task.dtype).reshape(len(work.rows), self._count)
        numbers = tuple(sent(rows[:, torch.from_numpy(runs)], setting.device).unbind())
        return self._engine.work(work.work, (), (numbers, given, own), who, keys, what, number, at_server)


def _stack(settings: Sequence[Setting], engine: Vectorised) -> Stack | None:
    """What runs them together, after one step of everything has been tried; none if that cannot be."""
    short = [
        replace(each, method=one_step_each(each.method), memory=Memory(each.data.clients.count)) for each in settings
    ]
    who = settings[0].data.groups["train"][:2]
    try:
        trial = Stack(short, Vectorised(short[0], static=False))
        trial.answer({run: Training(each.first_state(), who, 0) for run, each in enumerate(short)})
        trial.answer({run: Scoring(each.first_state(), who, None) for run, each in enumerate(short)})
        return Stack(settings, engine)
    except (CannotLiftError, WorkError):
        return None


class LiftedWork:
    """The works of several runs as one, whose holders bring their run's numbers and what it gives them along."""

    def __init__(self, works: Sequence[Work]) -> None:
        plans = [[phase.plan for phase in work.phases] for work in works]
        if any(each != plans[0] for each in plans):
            raise CannotLiftError("their steps are other ones")
        self.rows: list[list[float]] = []
        start, finish = (lifting(each, self.rows) for each in ([w.start for w in works], [w.finish for w in works]))
        steps = [lifting(each, self.rows) for each in zip(*([p.step for p in w.phases] for w in works), strict=True)]
        phases = tuple(Phase(partial(_step, step), plan) for step, plan in zip(steps, plans[0], strict=True))
        self.work = Work(partial(_start, start), phases, partial(_finish, finish))

    def without_steps(self) -> "LiftedWork":
        """The same, but that nothing is learned."""
        made = copy.copy(self)
        made.work = self.work._replace(phases=())
        return made


def _plans(asked: Scoring) -> tuple[Plan, ...] | None:
    """By what steps clients personalise, if not as the method does: only equal ones can be taken together."""
    return None if asked.personalise is None else tuple(phase.plan for phase in asked.personalise.phases)


def _start(build: Build, given: Tree, own: tuple[Any, Tree, Tree]) -> Tree:
    numbers, broadcast, memory = own
    return numbers, broadcast, build(numbers)(broadcast, memory)


def _step(build: Build, given: Tree, carry: tuple[Any, Tree, Tree], batches: tuple[Batch, ...]) -> Tree:
    numbers, broadcast, inner = carry
    return numbers, broadcast, build(numbers)(broadcast, inner, batches)


def _finish(build: Build, given: Tree, carry: tuple[Any, Tree, Tree]) -> Any:
    numbers, broadcast, inner = carry
    return build(numbers)(broadcast, inner)


def _rows(of: dict[int, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """For each row whose run and which client it is."""
    runs = np.concatenate([np.full(len(who), run) for run, who in of.items()])
    return runs, np.concatenate(list(of.values()))


def _repeated(count: int, leaf: Tensor) -> Tensor:
    return leaf.expand(count, *leaf.shape)


def _nothing(requests: dict[int, Any]) -> dict[int, Any]:
    raise AssertionError("nobody is there to answer")
