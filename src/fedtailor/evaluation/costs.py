"""What work costs: floating-point operations and gradient evaluations, of clients and of the server.

One step of every phase is run by itself under `torch.utils.flop_counter` on batches of two sizes; what it costs is
a straight line in the sizes of its batches, so this gives every step of every client. The counter sees matrix products,
convolutions and attention, not element-wise work. A *gradient evaluation* is what one gradient of the plain loss costs
on the last of the step's batches, which is FedAvg's step; Hessian-vector products and gradients of a part of the model
count as the multiple or the share of it that they cost.
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
from fedtailor.engines.context import EngineContext
from fedtailor.ops.decode import decode_inputs, decode_targets

WORK_KEYS = ("gradients", "flops", "server_gradients", "server_flops")
"""What a round's entry in a record says besides bytes, steps and seconds."""
PROBE_BATCH_SIZES = (4, 8)
"""Examples of the batches that steps are counted on."""


StepFn = Callable[[Tree, Tree, tuple[Batch, ...]], Tree]


class WorkCost(NamedTuple):
    """What somebody's work costs, a figure for each holder."""

    gradients: np.ndarray
    flops: np.ndarray


class StepCost(NamedTuple):
    """Floating-point operations of a step: `fixed` and so many for `each` example of each of its batches."""

    fixed: float
    per_example: tuple[float, ...]

    def compute_flops(self, sizes: np.ndarray) -> np.ndarray:
        """Of steps on batches of these sizes [steps, batches]."""
        flops: np.ndarray = self.fixed + sizes @ np.array(self.per_example, dtype=float).reshape(
            len(self.per_example)
        )
        return flops


class RoutineCost(NamedTuple):
    """A work and what its parts cost."""

    fixed_flops: float  # operations of its start and its finish
    phases: tuple[tuple[BatchPlan, StepCost], ...]


class CostMeter:
    """Counts the work of a method on a task once, and says what it costs whoever does it."""

    def __init__(self, context: EngineContext) -> None:
        self._context, state = context, context.init_server_state()
        method, data = context.method, context.data
        shared_input, client_input = method.broadcast(state), method.init_client_state(state)
        self._gradient_cost = _fit_step_cost(
            partial(_compute_gradient, context), context, data.clients, 1, state, None
        )
        result: ClientResult
        self._client_cost, result = _measure_routine(
            context, method.client, data.clients, shared_input, client_input
        )
        self._personalize_cost, _ = _measure_routine(
            context, method.personalize, data.clients, shared_input, client_input
        )
        self._correct_cost, update = None, result.update
        if method.correct_update is not None:
            self._correct_cost, update = _measure_routine(
                context, method.correct_update, data.server, state, update
            )
        one = context.make_scalar(1)
        self._server_cost, _ = _measure_routine(
            context,
            method.server,
            data.server,
            state,
            CohortUpdate(_aggregate_single(context, update), one, one),
        )
        offered_bytes = trees.nbytes(result.state) if method.num_offered_states else 0
        self.bytes_per_client = (
            trees.nbytes(shared_input) + trees.nbytes(result.update) + offered_bytes
        )
        """Bytes down to a client and up again in a round."""

    def compute_round_cost(self, cohort: np.ndarray) -> dict[str, float]:
        """What a round with this cohort costs, under the names of a record."""
        if not self._context.method.client.phases:  # nobody trains in rounds, so nobody has worked
            return dict.fromkeys(WORK_KEYS, 0)
        clients, server = self.compute_client_cost(cohort), self.compute_server_cost(len(cohort))
        figures = (
            clients.gradients.sum(),
            clients.flops.sum(),
            server.gradients.sum(),
            server.flops.sum(),
        )
        return {
            name: _round_figure(name, value) for name, value in zip(WORK_KEYS, figures, strict=True)
        }

    def compute_client_cost(self, client_ids: np.ndarray) -> WorkCost:
        """What training costs each of these clients in a round."""
        return self._compute_cost(self._client_cost, self._context.data.clients, client_ids)

    def compute_personalize_cost(self, client_ids: np.ndarray) -> WorkCost:
        """What personalizing costs each of these clients."""
        return self._compute_cost(self._personalize_cost, self._context.data.clients, client_ids)

    def compute_server_cost(self, num_uploads: int) -> WorkCost:
        """What the server's work in a round costs: its update, and its correction of so many uploads."""
        cost, server = (
            self._compute_cost(self._server_cost, self._context.data.server, np.array([0])),
            self._context.data.server,
        )
        if self._correct_cost is None:
            return cost
        correction = self._compute_cost(self._correct_cost, server, np.array([0]))
        return WorkCost(
            cost.gradients + num_uploads * correction.gradients,
            cost.flops + num_uploads * correction.flops,
        )

    def _compute_cost(
        self, routine: RoutineCost, examples: ClientExamples | None, client_ids: np.ndarray
    ) -> WorkCost:
        gradients, flops = (
            np.zeros(len(client_ids)),
            np.full(len(client_ids), float(routine.fixed_flops)),
        )
        for plan, step_cost in routine.phases:
            steps = (
                count_steps(plan, examples, client_ids)
                if examples
                else np.full(len(client_ids), plan.steps or 0)
            )
            sizes = _compute_batch_sizes(plan.specs, examples, client_ids)
            flops += steps * step_cost.compute_flops(sizes)
            if plan.specs:
                gradient_flops = self._gradient_cost.compute_flops(sizes[:, -1:])
                gradients += steps * np.divide(
                    step_cost.compute_flops(sizes),
                    gradient_flops,
                    out=np.ones(len(client_ids)),
                    where=gradient_flops > 0,
                )
        return WorkCost(gradients, flops)


def _compute_batch_sizes(
    batch_specs: tuple[BatchSpec, ...], examples: ClientExamples | None, client_ids: np.ndarray
) -> np.ndarray:
    """How many examples the batches of each holder have: as many as the draw says, or as there are."""
    if examples is None or not batch_specs:
        return np.zeros((len(client_ids), 0))
    columns = []
    for batch_spec in batch_specs:
        num_examples = examples.splits[batch_spec.split].sizes()[client_ids]
        columns.append(
            np.minimum(num_examples, batch_spec.size) if batch_spec.size else num_examples
        )
    return np.stack(columns, axis=1)


def _round_figure(name: str, value: float) -> float:
    """A figure as JSON has it: operations are whole, gradients have a tenth as `fedtailor methods` does."""
    return round(float(value), 1) if "gradients" in name else round(float(value))


def _measure_routine(
    context: EngineContext,
    routine: Routine,
    examples: ClientExamples | None,
    shared_input: Tree,
    client_input: Tree,
) -> tuple[RoutineCost, Tree]:
    """A work's costs, and what it ends with after one step of each of its phases."""
    with FlopCounterMode(display=False) as counter:
        carry = routine.init(shared_input, client_input)
    fixed_flops, phases = counter.get_total_flops(), []
    for phase in routine.phases:
        num_batches = len(phase.plan.specs) if examples else 0
        phases.append(
            (
                phase.plan,
                _fit_step_cost(phase.step, context, examples, num_batches, shared_input, carry),
            )
        )
        carry = phase.step(
            shared_input,
            carry,
            _make_batches(context, examples, (PROBE_BATCH_SIZES[0],) * num_batches),
        )
    with FlopCounterMode(display=False) as counter:
        result = routine.finalize(shared_input, carry)
    return RoutineCost(fixed_flops + counter.get_total_flops(), tuple(phases)), result


def _fit_step_cost(
    step: StepFn,
    context: EngineContext,
    examples: ClientExamples | None,
    num_batches: int,
    shared_input: Tree,
    carry: Tree,
) -> StepCost:
    """What a step costs, from one count with small batches and one more with each of them larger."""
    small, large = PROBE_BATCH_SIZES
    small_flops = _count_flops(
        step, shared_input, carry, _make_batches(context, examples, (small,) * num_batches)
    )
    per_example = []
    for enlarged_idx in range(num_batches):
        sizes = tuple(
            large if batch_idx == enlarged_idx else small for batch_idx in range(num_batches)
        )
        large_flops = _count_flops(
            step, shared_input, carry, _make_batches(context, examples, sizes)
        )
        per_example.append((large_flops - small_flops) / (large - small))
    return StepCost(small_flops - small * sum(per_example), tuple(per_example))


def _count_flops(step: StepFn, shared_input: Tree, carry: Tree, batches: tuple[Batch, ...]) -> int:
    with FlopCounterMode(display=False) as counter:
        step(shared_input, carry, batches)
    return int(counter.get_total_flops())


def _compute_gradient(
    context: EngineContext, state: ServerState, unused: None, batches: tuple[Batch, ...]
) -> Tree:
    """One gradient of the plain loss."""
    return grad(context.task.loss)(state.params, batches[0])


def _make_batches(
    context: EngineContext, examples: ClientExamples | None, sizes: tuple[int, ...]
) -> tuple[Batch, ...]:
    """Batches of so many examples, the first that there are."""
    if examples is None:
        return ()
    return tuple(_make_batch(context, examples, size) for size in sizes)


def _make_batch(context: EngineContext, examples: ClientExamples, size: int) -> Batch:
    rows = np.arange(size) % len(examples.x)
    x, y = (
        torch.from_numpy(np.ascontiguousarray(column[rows])).to(context.device)
        for column in (examples.x, examples.y)
    )
    dtype = context.task.dtype
    zero = torch.zeros((), dtype=torch.int64, device=context.device)
    mask = torch.ones(size, dtype=dtype, device=context.device)
    return Batch(
        decode_inputs(x, context.data.example_spec, dtype), decode_targets(y, dtype), mask, zero
    )


def _aggregate_single(context: EngineContext, update: Tree) -> Tree:
    """What the server gets of a cohort of one."""
    aggregate = context.method.aggregate
    if aggregate is None:
        return update
    return aggregate(trees.apply(lambda leaf: leaf[None], update), context.make_scalar(1)[None])
