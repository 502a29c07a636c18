"""The decision whether the steps of a run are compiled, and the cache of the compiled code.

Compiling takes seconds for each kind of step and saves a part of the time of all steps
(benchmarks/README.md). Both are estimated from counts of steps, kinds of stacks and operations,
never measured: the decision for a specification is the same on any machine, whatever is cached.
"""

import os
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from fedtailor.compat.torch_internals import intercept_operations
from fedtailor.compiler.step_program import choose_stack_size
from fedtailor.core import autodiff, trees
from fedtailor.core.types import Batch, Routine
from fedtailor.data.batching import BatchIndices, count_steps
from fedtailor.engines import client_loop
from fedtailor.engines.chunking import compute_cache_sized_slices
from fedtailor.engines.context import EngineContext
from fedtailor.ops.conv2d import has_wide_convolutions
from fedtailor.ops.cpp_build import INDUCTOR_CACHE_ENV, get_compile_cache_dir

CompileMode = bool | Literal["training"]
"""Steps that are compiled: all, none, or all but those of personalization and evaluation."""

COUNTED_ROUNDS = 20
"""Rounds whose cohorts are counted, as a sample of all."""

STEP_SECONDS = 1e-3
"""Seconds that a step of a stack takes whatever the size of its operations."""
FLOPS_PER_SECOND = {"cpu": 3e10, "cuda": 1e13}
"""Floating-point operations per second of uncompiled steps; other devices count as CPUs."""

COMPILE_START_SECONDS = 10.0
"""Seconds until torch's compiler is ready, once in a process."""
COMPILE_OPERATION_SECONDS = {"cpu": 0.2, "cuda": 0.3}
"""Seconds of compiling per operation of a step; other devices count as CPUs."""
SAVED_SHARE = 0.4
"""Part of the time of steps that compiling saves."""
SAVED_SHARE_OF_CLIENT_LOOP = 0.2
"""The same where uncompiled clients take their steps one after another, on a CPU."""


class ProgramKind(NamedTuple):
    """A kind of steps that is compiled by itself, for fixed shapes."""

    owner: str  # "client", "server" or "correction"
    phase_idx: int
    stack_size: int  # members of the whole stack
    num_active: int  # members that still take steps, rounded up to a size that there is code for


class TrainingCounts(NamedTuple):
    """Counts of a run's training, which its choices follow from."""

    steps: int  # of stacks, in all rounds
    cohort_size: int
    step_flops: float  # floating-point operations of a client's step
    step_operations: int  # operations of torch in a client's step
    num_programs: int  # kinds of steps that would be compiled


class CompileDecision(NamedTuple):
    """Steps to compile, and the reason, as the end of a sentence."""

    compile: CompileMode
    reason: str


def count_training(
    context: EngineContext, cohorts: Sequence[np.ndarray], rounds: int
) -> TrainingCounts:
    """Return the counts of a run's training.

    Args:
        context: The run; nothing is trained.
        cohorts: The cohorts of its first rounds.
        rounds: Number of rounds of the whole run.
    """
    most_steps = [int(context.count_steps(cohort).max(initial=0)) for cohort in cohorts]
    mean_steps = sum(most_steps) / max(1, len(most_steps))
    flops, operations = _count_gradient(context)
    specs = [spec for phase in context.method.client.phases for spec in phase.plan.specs]
    num_phases = max(1, len(context.method.client.phases))
    kinds: set[ProgramKind] = set()
    for cohort in cohorts:
        kinds |= list_program_kinds(context, cohort)
    return TrainingCounts(
        steps=round(rounds * mean_steps),
        cohort_size=max(map(len, cohorts), default=0),
        step_flops=flops * sum(spec.size or 1 for spec in specs),
        step_operations=round(operations * max(1, len(specs)) / num_phases),
        num_programs=len(kinds),
    )


def decide_compile(context: EngineContext, counts: TrainingCounts) -> CompileDecision:
    """Decide whether to compile training; scoring is too rare for compiling it to pay.

    Args:
        context: The run.
        counts: The counts of its training.
    """
    reason = find_no_compile_reason(context)
    if reason:
        return CompileDecision(False, reason)
    seconds = _estimate_step_seconds(context, counts)
    compile_seconds = estimate_compile_seconds(context, counts)
    flops = counts.cohort_size * counts.step_flops
    size = f"{counts.steps:,} steps of {flops / 1e6:,.0f} MFLOP"
    kinds = f"{counts.num_programs} kind{'s' if counts.num_programs != 1 else ''} of steps"
    if _get_saved_share(context) * seconds > compile_seconds:
        return CompileDecision("training", f"{size} are enough for compiling {kinds} to pay")
    return CompileDecision(False, f"{size} are too few for compiling {kinds} to pay")


def estimate_compile_seconds(context: EngineContext, counts: TrainingCounts) -> float:
    """Return about how many seconds compiling takes where nothing is cached."""
    per_operation = COMPILE_OPERATION_SECONDS.get(
        context.device.type, COMPILE_OPERATION_SECONDS["cpu"]
    )
    return COMPILE_START_SECONDS + counts.num_programs * counts.step_operations * per_operation


def find_no_compile_reason(context: EngineContext) -> str:
    """Return why steps of the model are never compiled on the device; empty if they may be."""
    if context.device.type == "cpu" and client_loop.is_recurrent(context.task.train_module):
        return (
            "on a CPU recurrent layers run one client after another, "
            "which compiled code would not make faster"
        )
    return ""


def list_program_kinds(context: EngineContext, cohort: np.ndarray) -> set[ProgramKind]:
    """Return the kinds of steps that training a cohort would compile, the server's included."""
    kinds: set[ProgramKind] = set()
    for phase_idx, phase in enumerate(context.method.client.phases):
        if not phase.plan.specs:
            continue
        num_steps = np.sort(count_steps(phase.plan, context.data.clients, cohort))[::-1]
        num_steps = num_steps[num_steps > 0]
        for members in _split_stack(context, len(num_steps)):
            for active in _list_active(num_steps[members]):
                size = members.stop - members.start
                kind = ProgramKind("client", phase_idx, size, choose_stack_size(active, size))
                kinds.add(kind)
    kinds |= _list_server_kinds("server", context.method.server, 1)
    if context.method.correct_update is not None:
        kinds |= _list_server_kinds("correction", context.method.correct_update, len(cohort))
    return kinds


def select_covering_cohorts(
    context: EngineContext, cohorts: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """Return the first of the cohorts with which every kind of steps is met."""
    covering = []
    met: set[ProgramKind] = set()
    for cohort in cohorts:
        kinds = list_program_kinds(context, cohort)
        if kinds - met:
            covering.append(cohort)
            met |= kinds
    return covering


def set_cache_dir() -> None:
    """Have torch cache compiled code beside the data, unless the user has set another folder."""
    os.environ[INDUCTOR_CACHE_ENV] = str(get_compile_cache_dir())


def _split_stack(context: EngineContext, num_members: int) -> list[slice]:
    """Return the parts of a stack that run as one program each."""
    if not num_members:
        return []
    if context.device.type != "cpu":
        return [slice(0, num_members)]
    if has_wide_convolutions(context.task.train_module):
        return [slice(index, index + 1) for index in range(num_members)]
    return compute_cache_sized_slices(num_members, trees.nbytes(context.task.params))


def _list_active(num_steps: np.ndarray) -> list[int]:
    """Return the numbers of members that are active together in some step, from most to fewest."""
    ends = np.unique(num_steps)
    begins = [0, *ends[:-1].tolist()]
    return [int((num_steps > begin).sum()) for begin in begins]


def _list_server_kinds(owner: str, routine: Routine, stack_size: int) -> set[ProgramKind]:
    return {
        ProgramKind(owner, phase_idx, stack_size, stack_size)
        for phase_idx, phase in enumerate(routine.phases)
        if phase.plan.specs
    }


def _estimate_step_seconds(context: EngineContext, counts: TrainingCounts) -> float:
    """Return about how many seconds all uncompiled steps take."""
    per_second = FLOPS_PER_SECOND.get(context.device.type, FLOPS_PER_SECOND["cpu"])
    flops = counts.cohort_size * counts.step_flops
    return counts.steps * (STEP_SECONDS + flops / per_second)


def _get_saved_share(context: EngineContext) -> float:
    is_on_cpu = context.device.type == "cpu"
    if is_on_cpu and client_loop.is_faster_unstacked(context.task.train_module):
        return SAVED_SHARE_OF_CLIENT_LOOP
    return SAVED_SHARE


def _count_gradient(context: EngineContext) -> tuple[float, int]:
    """Return the floating-point operations of a gradient per example, and torch's operations."""
    num_operations = 0

    def count(function: object, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        nonlocal num_operations
        num_operations += 1
        return function(*args, **kwargs)  # type: ignore[operator]

    batch = _make_example_batch(context)
    params = context.init_server_state().params
    with FlopCounterMode(display=False) as counter:
        autodiff.gradient(context.task.loss, params, batch)
    with intercept_operations(count):
        autodiff.gradient(context.task.loss, params, batch)
    return float(counter.get_total_flops()), num_operations


def _make_example_batch(context: EngineContext) -> Batch:
    """Return a batch of one example, the first in the clients' columns."""
    row = torch.zeros(1, dtype=torch.int64)
    mask = torch.ones(1, dtype=torch.bool)
    key = torch.zeros((), dtype=torch.int64)
    return context.make_client_dataset().load_batch(BatchIndices(row, mask, key))
