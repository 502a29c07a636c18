"""Whether compiling pays, decided from counts alone, and where torch keeps what it has compiled.

Compiling takes about half a minute on a CPU and saves about two fifths of the time of steps (benchmarks/README.md). How
long steps would take is estimated from how many there are and from the operations of one: equal specifications are
decided alike on any machine.
"""

import os
from typing import NamedTuple

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from fedtailor.compiler.inductor import CompileMode
from fedtailor.core import autodiff
from fedtailor.core.types import Batch
from fedtailor.data.batching import BatchIndices
from fedtailor.engines import client_loop
from fedtailor.engines.context import EngineContext
from fedtailor.ops.cpp_build import INDUCTOR_CACHE_ENV, compile_cache_dir

STEP_SECONDS = 1e-3
"""Seconds of a cohort's step whatever its size."""
FLOPS_PER_SECOND = {"cpu": 3e10, "cuda": 1e13}
"""Operations a second."""
MIN_STEP_SECONDS = {"cpu": 75.0, "cuda": 110.0}
"""Seconds of steps from which on compiling pays."""


class CompileDecision(NamedTuple):
    """Whether to compile, and why."""

    compile: CompileMode
    reason: str


def decide_compile(context: EngineContext, cohort_size: int, rounds: int) -> CompileDecision:
    """Decide whether compiling pays for this many rounds of training; clients are scored too seldom for it."""
    if reason := get_no_compile_reason(context):
        return CompileDecision(False, reason)
    device = context.device.type
    clients = context.data.groups["train"]
    quantile = 1 - 0.5 / max(1, cohort_size)
    steps = rounds * int(np.quantile(context.count_steps(clients), quantile)) if len(clients) else 0
    operations = cohort_size * _count_flops(context)
    seconds = steps * (
        STEP_SECONDS + operations / FLOPS_PER_SECOND.get(device, FLOPS_PER_SECOND["cpu"])
    )
    pays = seconds > MIN_STEP_SECONDS.get(device, MIN_STEP_SECONDS["cpu"])
    size = f"{steps:,} steps of {operations / 1e6:,.0f} MFLOP"
    return CompileDecision(
        "training" if pays else False, f"{size} are {'enough' if pays else 'too few'} for it to pay"
    )


def get_no_compile_reason(context: EngineContext) -> str:
    """Return why steps of a model are never compiled on a device; an empty string if they may be."""
    if context.device.type == "cpu" and client_loop.is_recurrent(context.task.train_module):
        return "on a CPU recurrent layers run one client after another, which compiled code would not make faster"
    return ""


def set_cache_dir() -> None:
    """Has torch keep compiled code beside the data, unless the user has said where."""
    os.environ[INDUCTOR_CACHE_ENV] = str(compile_cache_dir())


def _count_flops(context: EngineContext) -> float:
    """Count the operations of a client's step: of one gradient for each batch that it draws."""
    phases = [phase for phase in context.method.client.phases if phase.plan.specs]
    sizes = [spec.size or 1 for phase in phases for spec in phase.plan.specs]
    batch = _make_example_batch(context)
    with FlopCounterMode(display=False) as counter:
        autodiff.gradient(context.task.loss, context.init_server_state().params, batch)
    return float(counter.get_total_flops() * sum(sizes))


def _make_example_batch(context: EngineContext) -> Batch:
    """Return the first example of the clients as a batch."""
    row = torch.zeros(1, dtype=torch.int64)
    mask = torch.ones(1, dtype=torch.bool)
    key = torch.zeros((), dtype=torch.int64)
    return context.make_client_dataset().load_batch(BatchIndices(row, mask, key))
