"""Both sides at work: this project's rounds, and a plain loop on the same cohorts and batches."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils import parameters_to_vector

from anchor.plain_loops import LOOPS, Cohort, FedAvg, Phases, Problem, Step
from anchor.settings import Case, make_hparams, make_loop_settings
from fedtailor import prng
from fedtailor.core.functionalize import seed_initialization
from fedtailor.core.types import Params, Routine
from fedtailor.data import FederatedDataset
from fedtailor.data.batching import count_steps, iter_batch_indices
from fedtailor.engines import factory
from fedtailor.engines.compile_policy import CompileMode
from fedtailor.engines.context import EngineContext
from fedtailor.engines.sequential import SequentialEngine
from fedtailor.prng.streams import Stream
from fedtailor.training.context import prepare_context
from fedtailor.training.loop import draw_cohort, run_rounds


class Way(NamedTuple):
    """How this project runs a method."""

    engine: str = "vectorized"
    compile: CompileMode = False
    device: str = "cpu"


def prepare(
    method: str, case: Case, data: FederatedDataset, cohort_size: int, seed: int, way: Way
) -> EngineContext:
    """Return this project's run of a method.

    Args:
        method: Its name.
        case: What is trained.
        data: The clients.
        cohort_size: Clients a round.
        seed: Seed of weights, cohorts and batches.
        way: The device is what matters here.
    """
    with seed_initialization(seed):
        model = case.make_net().to(case.dtype)
    return prepare_context(
        method,
        model,
        data,
        rounds=case.rounds,
        cohort=cohort_size,
        seed=seed,
        device=way.device,
        **make_hparams(method, case),
    )


def flatten(params: Params) -> Tensor:
    """Return the weights as one vector, in the model's order."""
    return parameters_to_vector(params.values())


class Ours:
    """This project's rounds of a method."""

    def __init__(self, context: EngineContext, cohort_size: int, way: Way) -> None:
        self._context = context
        self._engine = factory.make_engine(context, way.engine, compile=way.compile)
        self._state = context.init_server_state()
        self._rounds = run_rounds(context, self._engine, self._state, cohort_size)

    def train(self) -> None:
        """Train one round."""
        self._state = next(self._rounds).state

    def get_global(self) -> Tensor:
        """Return the server's model."""
        return flatten(self._state.params)

    def collect_predictors(self) -> dict[int, Tensor]:
        """Return the weights that predict for each client."""
        one_by_one = SequentialEngine(self._context)
        clients = range(self._context.data.clients.count)
        return {client: flatten(one_by_one.personalize(self._state, client)) for client in clients}

    def compute_accuracy(self) -> float:
        """Return the percentage of all test examples that the clients' models get right."""
        clients = np.arange(self._context.data.clients.count)
        sums = self._engine.score(self._state, clients).after["accuracy"].sum(0)
        return float(100 * sums[0] / sums[1])


class Handed:
    """What a plain loop is handed: cohorts and batches, worked out from a run of this project."""

    def __init__(self, context: EngineContext, cohort_size: int) -> None:
        self._context = context
        self._cohort_size = cohort_size

    def draw_round(self, round_idx: int) -> Cohort:
        """Return the cohort of a round, with the batches of each client."""
        cohort = draw_cohort(self._context, self._cohort_size, round_idx)
        routine = self._context.method.client
        return self._lay_out(routine, cohort, Stream.CLIENT, round_idx)

    def draw_personalization(self) -> Cohort:
        """Return the batches that clients personalize on."""
        all_clients = np.arange(self._context.data.clients.count)
        return self._lay_out(self._context.method.personalize, all_clients, Stream.PERSONALIZE, 0)

    def _lay_out(
        self, routine: Routine, clients: np.ndarray, stream: Stream, round_idx: int
    ) -> Cohort:
        keys = self._context.derive_keys(stream, round_idx, clients)
        work: dict[int, list[list[Step]]] = {int(client): [] for client in clients}
        for phase_idx, phase in enumerate(routine.phases):
            phase_keys = prng.fold(keys, phase_idx)
            examples = self._context.data.clients
            num_steps = count_steps(phase.plan, examples, clients)
            steps: list[list[Step]] = [[] for _ in clients]
            for step_idx, batches in enumerate(
                iter_batch_indices(
                    phase.plan, examples, clients, phase_keys, int(num_steps.max(initial=0))
                )
            ):
                for index in np.flatnonzero(num_steps > step_idx):
                    rows = tuple(batch.rows[index][batch.mask[index]] for batch in batches)
                    steps[index].append(tuple(each.to(self._context.device) for each in rows))
            for client, own in zip(clients, steps, strict=True):
                work[int(client)].append(own)
        return work


class Loop:
    """The plain loop of a method, on what it is handed.

    Args:
        method: The method's name.
        case: What is trained.
        context: This project's run of it, from which cohorts and batches are worked out.
        cohort_size: Clients a round.
        loop: The loop, if not that of `LOOPS`.
    """

    def __init__(
        self,
        method: str,
        case: Case,
        context: EngineContext,
        cohort_size: int,
        loop: type[FedAvg] | None = None,
    ) -> None:
        clients = context.data.clients
        device = context.device
        model = case.make_net().to(device, case.dtype)
        x = torch.from_numpy(clients.x).to(device)
        y = torch.from_numpy(clients.y).to(device)
        self._problem = Problem(model, x, y, case.scale)
        self._handed = Handed(context, cohort_size)
        self._round_idx = 0
        self._test_rows = {
            client: torch.from_numpy(clients.splits["test"].get_rows(client)).to(device)
            for client in range(clients.count)
        }
        make_loop = loop or LOOPS[method]
        self.loop = make_loop(
            problem=self._problem,
            w=flatten(context.task.params),
            shares=weigh_clients(context),
            settings=make_loop_settings(method, case),
        )

    def train(self) -> None:
        """Train one round."""
        self.loop.train(self._handed.draw_round(self._round_idx))
        self._round_idx += 1

    def get_global(self) -> Tensor:
        """Return the server's model."""
        return self.loop.w

    def collect_predictors(self) -> dict[int, Tensor]:
        """Return the weights that predict for each client."""
        return dict(self._iter_predictors())

    def compute_accuracy(self) -> float:
        """Return the percentage of all test examples that the clients' models get right."""
        hits = 0
        total = 0
        for client, weights in self._iter_predictors():
            rows = self._test_rows[client]
            hits += self._problem.count_hits(weights, rows)
            total += len(rows)
        return 100 * hits / total

    def _iter_predictors(self) -> Iterator[tuple[int, Tensor]]:
        work: Cohort = self._handed.draw_personalization()
        for client in self._test_rows:
            phases: Phases = work[client]
            yield client, self.loop.predictor(client, phases)


def weigh_clients(context: EngineContext) -> dict[int, float]:
    """Return the weight of each client in means: its train examples, or 1."""
    sizes = context.data.clients.splits["train"].compute_sizes()
    if context.method.weight_by is None:
        sizes = np.ones_like(sizes)
    return {client: float(size) for client, size in enumerate(sizes)}


def compute_gap(ours: Ours, loop: Loop) -> float:
    """Return the largest difference of a weight, of the server's model and of any client's."""
    gap = float((ours.get_global() - loop.get_global()).abs().max())
    own = ours.collect_predictors()
    for client, weights in loop.collect_predictors().items():
        gap = max(gap, float((own[client] - weights).abs().max()))
    return gap
