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

from fedtailor import trees
from fedtailor.data.batching import step_counts
from fedtailor.data.decoding import decoded, targets
from fedtailor.data.holders import Holders
from fedtailor.engines.base import Setting
from fedtailor.types import Batch, Draw, Gathered, Plan, Result, State, Tree, Work

NAMES = ("gradients", "flops", "server_gradients", "server_flops")
"""What a round's entry in a record says besides bytes, steps and seconds."""
SIZES = (4, 8)
"""Examples of the batches that steps are counted on."""


Step = Callable[[Tree, Tree, tuple[Batch, ...]], Tree]


class Counted(NamedTuple):
    """What somebody's work costs, a figure for each holder."""

    gradients: np.ndarray
    flops: np.ndarray


class Line(NamedTuple):
    """Floating-point operations of a step: `fixed` and so many for `each` example of each of its batches."""

    fixed: float
    each: tuple[float, ...]

    def at(self, sizes: np.ndarray) -> np.ndarray:
        """Of steps on batches of these sizes [steps, batches]."""
        found: np.ndarray = self.fixed + sizes @ np.array(self.each, dtype=float).reshape(len(self.each))
        return found


class Priced(NamedTuple):
    """A work and what its parts cost."""

    ends: float  # operations of its start and its finish
    phases: tuple[tuple[Plan, Line], ...]


class Meter:
    """Counts the work of a method on a task once, and says what it costs whoever does it."""

    def __init__(self, setting: Setting) -> None:
        self._setting, state = setting, setting.first_state()
        method, data = setting.method, setting.data
        sent, own = method.broadcast(state), method.new_memory(state)
        self._gradient = _line(partial(_gradient_of, setting), setting, data.clients, 1, state, None)
        result: Result
        self._client, result = _priced(setting, method.client, data.clients, sent, own)
        self._personalise, _ = _priced(setting, method.personalise, data.clients, sent, own)
        self._correct, change = None, result.change
        if method.correct is not None:
            self._correct, change = _priced(setting, method.correct, data.server, state, change)
        one = setting.count(1)
        self._server, _ = _priced(
            setting, method.server, data.server, state, Gathered(_combined(setting, change), one, one)
        )
        kept = trees.nbytes(result.memory) if method.tries else 0
        self.sent = trees.nbytes(sent) + trees.nbytes(result.change) + kept
        """Bytes down to a client and up again in a round."""

    def of_round(self, cohort: np.ndarray) -> dict[str, float]:
        """What a round with this cohort costs, under the names of a record."""
        if not self._setting.method.client.phases:  # nobody trains in rounds, so nobody has worked
            return dict.fromkeys(NAMES, 0)
        clients, server = self.of_clients(cohort), self.of_server(len(cohort))
        figures = (clients.gradients.sum(), clients.flops.sum(), server.gradients.sum(), server.flops.sum())
        return {name: _plain(name, value) for name, value in zip(NAMES, figures, strict=True)}

    def of_clients(self, who: np.ndarray) -> Counted:
        """What training costs each of these clients in a round."""
        return self._cost(self._client, self._setting.data.clients, who)

    def of_personalising(self, who: np.ndarray) -> Counted:
        """What personalising costs each of these clients."""
        return self._cost(self._personalise, self._setting.data.clients, who)

    def of_server(self, uploads: int) -> Counted:
        """What the server's work in a round costs: its update, and its correction of so many uploads."""
        found, server = self._cost(self._server, self._setting.data.server, np.array([0])), self._setting.data.server
        if self._correct is None:
            return found
        each = self._cost(self._correct, server, np.array([0]))
        return Counted(found.gradients + uploads * each.gradients, found.flops + uploads * each.flops)

    def _cost(self, work: Priced, holders: Holders | None, who: np.ndarray) -> Counted:
        gradients, flops = np.zeros(len(who)), np.full(len(who), float(work.ends))
        for plan, line in work.phases:
            steps = step_counts(plan, holders, who) if holders else np.full(len(who), plan.steps or 0)
            sizes = _sizes(plan.draws, holders, who)
            flops += steps * line.at(sizes)
            if plan.draws:
                unit = self._gradient.at(sizes[:, -1:])
                gradients += steps * np.divide(line.at(sizes), unit, out=np.ones(len(who)), where=unit > 0)
        return Counted(gradients, flops)


def _sizes(draws: tuple[Draw, ...], holders: Holders | None, who: np.ndarray) -> np.ndarray:
    """How many examples the batches of each holder have: as many as the draw says, or as there are."""
    if holders is None or not draws:
        return np.zeros((len(who), 0))
    columns = []
    for draw in draws:
        has = holders.splits[draw.split].sizes()[who]
        columns.append(np.minimum(has, draw.size) if draw.size else has)
    return np.stack(columns, axis=1)


def _plain(name: str, value: float) -> float:
    """A figure as JSON has it: operations are whole, gradients have a tenth as `fedtailor methods` does."""
    return round(float(value), 1) if "gradients" in name else round(float(value))


def _priced(setting: Setting, work: Work, holders: Holders | None, given: Tree, own: Tree) -> tuple[Priced, Tree]:
    """A work's costs, and what it ends with after one step of each of its phases."""
    with FlopCounterMode(display=False) as counter:
        carry = work.start(given, own)
    ends, phases = counter.get_total_flops(), []
    for phase in work.phases:
        draws = len(phase.plan.draws) if holders else 0
        phases.append((phase.plan, _line(phase.step, setting, holders, draws, given, carry)))
        carry = phase.step(given, carry, _batches(setting, holders, (SIZES[0],) * draws))
    with FlopCounterMode(display=False) as counter:
        result = work.finish(given, carry)
    return Priced(ends + counter.get_total_flops(), tuple(phases)), result


def _line(
    step: Step,
    setting: Setting,
    holders: Holders | None,
    draws: int,
    given: Tree,
    carry: Tree,
) -> Line:
    """What a step costs, from one count with small batches and one more with each of them larger."""
    small, large = SIZES
    plain = _count(step, given, carry, _batches(setting, holders, (small,) * draws))
    each = []
    for place in range(draws):
        sizes = tuple(large if number == place else small for number in range(draws))
        more = _count(step, given, carry, _batches(setting, holders, sizes))
        each.append((more - plain) / (large - small))
    return Line(plain - small * sum(each), tuple(each))


def _count(step: Step, given: Tree, carry: Tree, batches: tuple[Batch, ...]) -> int:
    with FlopCounterMode(display=False) as counter:
        step(given, carry, batches)
    return int(counter.get_total_flops())


def _gradient_of(setting: Setting, state: State, nothing: None, batches: tuple[Batch, ...]) -> Tree:
    """One gradient of the plain loss."""
    return grad(setting.task.loss)(state.params, batches[0])


def _batches(setting: Setting, holders: Holders | None, sizes: tuple[int, ...]) -> tuple[Batch, ...]:
    """Batches of so many examples, the first that there are."""
    if holders is None:
        return ()
    return tuple(_batch(setting, holders, size) for size in sizes)


def _batch(setting: Setting, holders: Holders, size: int) -> Batch:
    rows = np.arange(size) % len(holders.x)
    x, y = (
        torch.from_numpy(np.ascontiguousarray(column[rows])).to(setting.device) for column in (holders.x, holders.y)
    )
    dtype = setting.task.dtype
    zero = torch.zeros((), dtype=torch.int64, device=setting.device)
    mask = torch.ones(size, dtype=dtype, device=setting.device)
    return Batch(decoded(x, setting.data.units, dtype), targets(y, dtype), mask, zero)


def _combined(setting: Setting, change: Tree) -> Tree:
    """What the server gets of a cohort of one."""
    combine = setting.method.combine
    if combine is None:
        return change
    return combine(trees.apply(lambda leaf: leaf[None], change), setting.count(1)[None])
