"""Computation of clients and of the server, in floating-point operations and gradient evaluations.

One step of each phase runs by itself under `torch.utils.flop_counter`, on batches of two sizes. Its
operations are an affine function of the sizes of its batches, so the two counts give those of every
step of every client. The counter sees matrix products, convolutions and attention, but no
element-wise operations.

A *gradient evaluation* is the cost of one gradient of the plain loss on the last of a step's
batches, which is a step of FedAvg. Hessian-vector products, and gradients of a part of the model,
count as the multiple or the fraction of it that they cost.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch.func import grad
from torch.utils.flop_counter import FlopCounterMode

from fedtailor.core import trees
from fedtailor.core.types import (
    Batch,
    BatchPlan,
    BatchSpec,
    ClientResult,
    CohortUpdate,
    Routine,
    ServerState,
    Tree,
)
from fedtailor.data.batching import count_steps
from fedtailor.data.examples import ClientExamples
from fedtailor.engines.base import error_context
from fedtailor.engines.context import EngineContext
from fedtailor.ops.decode import decode_inputs, decode_targets

PROBE_BATCH_SIZES = (4, 8)
"""The two batch sizes on which the operations of a step are counted."""

StepFn = Callable[[Tree, Tree, tuple[Batch, ...]], Tree]


class WorkCost(NamedTuple):
    """Computation of each of some clients, or of the server."""

    gradients: np.ndarray  # [clients] gradient evaluations
    flops: np.ndarray  # [clients]


class RoundWork(NamedTuple):
    """Computation of a round: of all its clients together, and of the server."""

    gradients: float = 0.0
    flops: int = 0
    server_gradients: float = 0.0
    server_flops: int = 0


class StepCost(NamedTuple):
    """Floating-point operations of a step, as an affine function of the sizes of its batches."""

    fixed: float
    per_example: tuple[float, ...]  # one for each of the batches

    def compute_flops(self, sizes: np.ndarray) -> np.ndarray:
        """Return the operations of steps on batches of these sizes, [steps, batches] -> [steps]."""
        # The dtype matters where there are no batches.
        per_example = np.array(self.per_example, dtype=float)
        flops: np.ndarray = self.fixed + sizes @ per_example
        return flops


class RoutineCost(NamedTuple):
    """Computation of a routine by its parts."""

    fixed_flops: float  # of `init` and `finalize`
    phases: tuple[tuple[BatchPlan, StepCost], ...]


class CostMeter:
    """Computation of a method on a task, counted once on probes, for any clients.

    `bytes_per_client` is what a round sends to a client and back.
    """

    def __init__(self, context: EngineContext) -> None:
        self._context = context
        method = context.method
        data = context.data
        state = context.init_server_state()
        broadcast = method.broadcast(state)
        client_state = method.init_client_state(state)
        plain_gradient = partial(_compute_gradient, context)
        self._gradient_cost = _fit_step_cost(plain_gradient, context, data.clients, 1, state, None)
        result: ClientResult
        self._client_cost, result = _measure_routine(
            context, method.client, data.clients, broadcast, client_state
        )
        self._personalize_cost, _ = _measure_routine(
            context, method.personalize, data.clients, broadcast, client_state
        )
        update = result.update
        self._correct_cost: RoutineCost | None = None
        if method.correct_update is not None:
            self._correct_cost, update = _measure_routine(
                context, method.correct_update, data.server, state, update
            )
        one = context.make_scalar(1)
        cohort_update = CohortUpdate(_aggregate_single(context, update), one, one)
        self._server_cost, _ = _measure_routine(
            context, method.server, data.server, state, cohort_update
        )
        self.bytes_per_client = trees.nbytes(broadcast) + trees.nbytes(result.update)
        if method.num_offered_states:
            self.bytes_per_client += trees.nbytes(result.state)

    def compute_round_work(self, cohort: np.ndarray) -> RoundWork:
        """Return the computation of a round; gradients are rounded to tenths."""
        if not self._context.method.client.phases:
            return RoundWork()
        clients = self.compute_client_cost(cohort)
        server = self.compute_server_cost(len(cohort))
        return RoundWork(
            gradients=round(float(clients.gradients.sum()), 1),
            flops=round(float(clients.flops.sum())),
            server_gradients=round(float(server.gradients.sum()), 1),
            server_flops=round(float(server.flops.sum())),
        )

    def compute_client_cost(self, client_ids: np.ndarray) -> WorkCost:
        """Return the computation of each client in a round."""
        return self._compute_cost(self._client_cost, self._context.data.clients, client_ids)

    def compute_personalize_cost(self, client_ids: np.ndarray) -> WorkCost:
        """Return the computation of each client's personalization.

        An unseen client that other clients offer their states personalizes from each of them; the
        loss that it chooses by is not counted.
        """
        data = self._context.data
        cost = self._compute_cost(self._personalize_cost, data.clients, client_ids)
        training_ids = data.groups["train"]
        num_offered = min(self._context.method.num_offered_states, len(training_ids))
        num_starts = np.where(np.isin(client_ids, training_ids), 1, max(1, num_offered))
        return WorkCost(cost.gradients * num_starts, cost.flops * num_starts)

    def compute_server_cost(self, num_uploads: int) -> WorkCost:
        """Return the computation of the server in a round, corrections of uploads included."""
        examples = self._context.data.server
        server = np.array([0])
        cost = self._compute_cost(self._server_cost, examples, server)
        if self._correct_cost is None:
            return cost
        correction = self._compute_cost(self._correct_cost, examples, server)
        return WorkCost(
            cost.gradients + num_uploads * correction.gradients,
            cost.flops + num_uploads * correction.flops,
        )

    def _compute_cost(
        self, routine: RoutineCost, examples: ClientExamples | None, client_ids: np.ndarray
    ) -> WorkCost:
        num_clients = len(client_ids)
        gradients = np.zeros(num_clients)
        flops = np.full(num_clients, float(routine.fixed_flops))
        for plan, step_cost in routine.phases:
            if examples is None:
                num_steps = np.full(num_clients, plan.steps or 0)
            else:
                num_steps = count_steps(plan, examples, client_ids)
            sizes = _compute_batch_sizes(plan.specs, examples, client_ids)
            step_flops = step_cost.compute_flops(sizes)
            flops += num_steps * step_flops
            if plan.specs:
                gradient_flops = self._gradient_cost.compute_flops(sizes[:, -1:])
                # A model whose operations the counter does not see counts one gradient per step.
                step_gradients = np.ones(num_clients)
                np.divide(step_flops, gradient_flops, out=step_gradients, where=gradient_flops > 0)
                gradients += num_steps * step_gradients
        return WorkCost(gradients, flops)


def _compute_batch_sizes(
    batch_specs: tuple[BatchSpec, ...], examples: ClientExamples | None, client_ids: np.ndarray
) -> np.ndarray:
    """Return the number of examples in each client's batches, [clients, specs].

    The last batch of an epoch counts as a full one.
    """
    if examples is None or not batch_specs:
        return np.zeros((len(client_ids), 0))
    columns = []
    for batch_spec in batch_specs:
        sizes = examples.splits[batch_spec.split].compute_sizes()[client_ids]
        if batch_spec.size:
            sizes = np.minimum(sizes, batch_spec.size)
        columns.append(sizes)
    return np.stack(columns, axis=1)


def make_cost_meter(context: EngineContext) -> CostMeter:
    """Return the meter of a method; what the model raises at a probe is a `RoutineError`."""
    with error_context(f"{context.method.name}: counting operations", 0, "a batch of examples"):
        return CostMeter(context)


def _measure_routine(
    context: EngineContext,
    routine: Routine,
    examples: ClientExamples | None,
    shared_input: Tree,
    client_input: Tree,
) -> tuple[RoutineCost, Tree]:
    """Return the costs of a routine, and its result after one step of each phase."""
    with FlopCounterMode(display=False) as init_counter:
        carry = routine.init(shared_input, client_input)
    phases = []
    for phase in routine.phases:
        num_batches = len(phase.plan.specs) if examples is not None else 0
        step_cost = _fit_step_cost(phase.step, context, examples, num_batches, shared_input, carry)
        phases.append((phase.plan, step_cost))
        batches = _make_batches(context, examples, (PROBE_BATCH_SIZES[0],) * num_batches)
        carry = phase.step(shared_input, carry, batches)
    with FlopCounterMode(display=False) as finalize_counter:
        result = routine.finalize(shared_input, carry)
    fixed_flops = init_counter.get_total_flops() + finalize_counter.get_total_flops()
    return RoutineCost(fixed_flops, tuple(phases)), result


def _fit_step_cost(
    step: StepFn,
    context: EngineContext,
    examples: ClientExamples | None,
    num_batches: int,
    shared_input: Tree,
    carry: Tree,
) -> StepCost:
    """Return the cost of a step from a count on small batches, and one with each batch enlarged."""
    small, large = PROBE_BATCH_SIZES
    batches = _make_batches(context, examples, (small,) * num_batches)
    small_flops = _count_flops(step, shared_input, carry, batches)
    per_example = []
    for enlarged_idx in range(num_batches):
        sizes = [small] * num_batches
        sizes[enlarged_idx] = large
        batches = _make_batches(context, examples, tuple(sizes))
        large_flops = _count_flops(step, shared_input, carry, batches)
        per_example.append((large_flops - small_flops) / (large - small))
    return StepCost(small_flops - small * sum(per_example), tuple(per_example))


def _count_flops(step: StepFn, shared_input: Tree, carry: Tree, batches: tuple[Batch, ...]) -> int:
    with FlopCounterMode(display=False) as counter:
        step(shared_input, carry, batches)
    return int(counter.get_total_flops())


def _compute_gradient(
    context: EngineContext, state: ServerState, unused: None, batches: tuple[Batch, ...]
) -> Tree:
    """Return a gradient of the plain loss, as a step of FedAvg computes it."""
    return grad(context.task.loss)(state.params, batches[0])


def _make_batches(
    context: EngineContext, examples: ClientExamples | None, sizes: tuple[int, ...]
) -> tuple[Batch, ...]:
    """Return batches of these sizes from the first rows of the columns; none without examples."""
    if examples is None:
        return ()
    return tuple(_make_batch(context, examples, size) for size in sizes)


def _make_batch(context: EngineContext, examples: ClientExamples, size: int) -> Batch:
    """Return a batch of the first rows, which are repeated if there are fewer than `size`."""
    rows = np.arange(size) % len(examples.x)
    x = torch.from_numpy(np.ascontiguousarray(examples.x[rows])).to(context.device)
    y = torch.from_numpy(np.ascontiguousarray(examples.y[rows])).to(context.device)
    dtype = context.task.dtype
    return Batch(
        x=decode_inputs(x, context.data.example_spec, dtype),
        y=decode_targets(y, dtype),
        mask=torch.ones(size, dtype=dtype, device=context.device),
        key=torch.zeros((), dtype=torch.int64, device=context.device),
    )


def _aggregate_single(context: EngineContext, update: Tree) -> Tree:
    """Return the aggregated update of a cohort of one."""
    aggregate = context.method.aggregate
    if aggregate is None:
        return update
    return aggregate(trees.apply(lambda leaf: leaf[None], update), context.make_scalar(1)[None])
