"""The reference engine: one client after another, one step after another. Slow and obvious."""

import numpy as np
import torch
from torch import Tensor

from fedtailor import trees
from fedtailor.engines.base import Collector, Scored, Setting, Trained, alone, memory_of, scoring, telling
from fedtailor.types import Gathered, Params, Result, State, Tree, Work


class OneByOne:
    """Runs every client by itself. An error names the stage, the round and the client."""

    def __init__(self, setting: Setting, notes: tuple[str, ...] = ()) -> None:
        self.setting, self.notes, self.memory = setting, notes, setting.memory
        self._clients, self._server = setting.clients(), setting.server()
        self._scoring = scoring(setting.task)

    def train(self, state: State, cohort: np.ndarray, number: int) -> Trained:
        """Trains the clients of the cohort one by one."""
        method, collector, up = self.setting.method, Collector(self.setting.method), 0
        broadcast, fresh = method.broadcast(state), method.new_memory(state)
        for client, weight in zip(cohort, self.setting.weights(cohort), strict=True):
            own = trees.row(self.memory.gather(np.array([client]), fresh), 0)
            result: Result = self._client(method.client, broadcast, own, client, "client", number)
            self.memory.scatter(np.array([client]), trees.apply(lambda leaf: leaf[None], result.memory))
            up += trees.nbytes(result.change) + (trees.nbytes(result.memory) if method.tries else 0)
            change = self._corrected(state, result.change, number)
            collector.add(trees.apply(lambda leaf: leaf[None], change), weight[None])
        counts = (self.setting.count(len(cohort)), self.setting.count(len(self.setting.data.groups["train"])))
        down, steps = trees.nbytes(broadcast) * len(cohort), int(self.setting.steps(cohort).sum())
        return Trained(Gathered(collector.result(), *counts), down, up, steps)

    def serve(self, state: State, gathered: Gathered, number: int) -> State:
        """Does the server's work on what was gathered."""
        result: State = self._at_server(self.setting.method.server, state, gathered, number)
        return result

    def score(self, state: State, who: np.ndarray, personalise: Work | None = None) -> Scored:
        """Personalises and scores clients one by one."""
        method = self.setting.method
        tailor = personalise or method.personalise
        broadcast, fresh = method.broadcast(state), method.new_memory(state)
        before: list[dict[str, Tensor]] = []
        after: list[dict[str, Tensor]] = []
        for client in who:
            with telling(f"{method.name}: personalise work", 0, f"client '{self.setting.data.ids[client]}'"):
                own = memory_of(self.setting, self._clients, broadcast, fresh, int(client))
            for work, figures in ((tailor._replace(phases=()), before), (tailor, after)):
                params: Params = self._client(work, broadcast, own, client, "personalise", 0)
                figures.append(self._client(self._scoring, (), params, client, "score", 0))
        return Scored(_stacked(before), _stacked(after))

    def _client(self, work: Work, given: Tree, own: Tree, client: int, purpose: str, number: int) -> Tree:
        with telling(
            f"{self.setting.method.name}: {purpose} work", number, f"client '{self.setting.data.ids[client]}'"
        ):
            return alone(work, given, own, self._clients, int(client), self.setting.keys(purpose, number, [client])[0])

    def _at_server(self, work: Work, state: State, own: Tree, number: int) -> Tree:
        with telling(f"{self.setting.method.name}: server work", number, "the server"):
            return alone(work, state, own, self._server, 0, self.setting.keys("server", number, [0])[0])

    def _corrected(self, state: State, change: Tree, number: int) -> Tree:
        correct = self.setting.method.correct
        return change if correct is None else self._at_server(correct, state, change, number)


def _stacked(figures: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.stack([each[name] for each in figures]).cpu() for name in figures[0]} if figures else {}
