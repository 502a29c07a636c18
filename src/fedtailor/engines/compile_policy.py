"""The decision whether the steps of a run are compiled, and the cache of the compiled code.

Compiling takes about half a minute on a CPU and saves about two fifths of the time of steps
(benchmarks/README.md). That time is estimated from the number of steps and from the operations of
one, never measured: the decision for a specification is the same on any machine.
"""

import os
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from fedtailor.core import autodiff
from fedtailor.core.types import Batch
from fedtailor.data.batching import BatchIndices
from fedtailor.engines import client_loop
from fedtailor.engines.context import EngineContext
from fedtailor.ops.cpp_build import INDUCTOR_CACHE_ENV, get_compile_cache_dir

CompileMode = bool | Literal["training"]
"""Steps that are compiled: all, none, or all but those of personalization and evaluation."""

STEP_SECONDS = 1e-3
"""Seconds that a step of a cohort takes whatever the size of its operations."""
FLOPS_PER_SECOND = {"cpu": 3e10, "cuda": 1e13}
"""Floating-point operations per second of uncompiled steps; other devices count as CPUs."""
MIN_STEP_SECONDS = {"cpu": 75.0, "cuda": 110.0}
"""Estimated seconds of all steps from which on compiling pays; other devices count as CPUs."""


class CompileDecision(NamedTuple):
    """Steps to compile, and the reason, as the end of a sentence."""

    compile: CompileMode
    reason: str


def decide_compile(context: EngineContext, cohort_size: int, rounds: int) -> CompileDecision:
    """Decide whether to compile training; scoring is too rare for compiling it to pay.

    Args:
        context: The run.
        cohort_size: Number of clients in a round.
        rounds: Number of rounds of the whole run.
    """
    reason = find_no_compile_reason(context)
    if reason:
        return CompileDecision(False, reason)
    device = context.device.type
    flops_per_second = FLOPS_PER_SECOND.get(device, FLOPS_PER_SECOND["cpu"])
    min_seconds = MIN_STEP_SECONDS.get(device, MIN_STEP_SECONDS["cpu"])
    num_steps = rounds * _estimate_round_steps(context, cohort_size)
    flops = cohort_size * _count_flops(context)
    seconds = num_steps * (STEP_SECONDS + flops / flops_per_second)
    size = f"{num_steps:,} steps of {flops / 1e6:,.0f} MFLOP"
    if seconds > min_seconds:
        return CompileDecision("training", f"{size} are enough for it to pay")
    return CompileDecision(False, f"{size} are too few for it to pay")


def find_no_compile_reason(context: EngineContext) -> str:
    """Return why steps of the model are never compiled on the device; empty if they may be."""
    if context.device.type == "cpu" and client_loop.is_recurrent(context.task.train_module):
        return (
            "on a CPU recurrent layers run one client after another, "
            "which compiled code would not make faster"
        )
    return ""


def set_cache_dir() -> None:
    """Have torch cache compiled code beside the data, unless the user has set another folder."""
    os.environ[INDUCTOR_CACHE_ENV] = str(get_compile_cache_dir())


def _estimate_round_steps(context: EngineContext, cohort_size: int) -> int:
    """Return the steps in a typical round of the client with the most steps in the cohort."""
    clients = context.data.groups["train"]
    if not len(clients):
        return 0
    # About the median of the maximum over a cohort of random clients.
    quantile = 1 - 0.5 / max(1, cohort_size)
    return int(np.quantile(context.count_steps(clients), quantile))


def _count_flops(context: EngineContext) -> float:
    """Count the operations of a client's step as one gradient for each batch that it draws."""
    batch_sizes = [
        spec.size or 1 for phase in context.method.client.phases for spec in phase.plan.specs
    ]
    batch = _make_example_batch(context)
    with FlopCounterMode(display=False) as counter:
        autodiff.gradient(context.task.loss, context.init_server_state().params, batch)
    return float(counter.get_total_flops() * sum(batch_sizes))


def _make_example_batch(context: EngineContext) -> Batch:
    """Return a batch of one example, the first in the clients' columns."""
    row = torch.zeros(1, dtype=torch.int64)
    mask = torch.ones(1, dtype=torch.bool)
    key = torch.zeros((), dtype=torch.int64)
    return context.make_client_dataset().load_batch(BatchIndices(row, mask, key))
