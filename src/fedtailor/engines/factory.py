"""Engines: where and how the functions of a method run."""

import warnings
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedtailor.compat.torch_internals import (
    describe_tested_torch,
    is_torch_tested,
    record_vmap_fallbacks,
)
from fedtailor.compiler.inductor import CompileMode, bind_compiled
from fedtailor.data.batching import get_client_sizes
from fedtailor.engines.base import Engine, ScoreResult, TrainResult
from fedtailor.engines.chunking import PeakMemory, max_chunk_size
from fedtailor.engines.client_state import ClientStateStore
from fedtailor.engines.compile_policy import get_no_compile_reason, set_cache_dir
from fedtailor.engines.context import EngineContext, limit_to_one_step, resolve_device
from fedtailor.engines.distributed.engine import DistributedEngine, make_rank_context
from fedtailor.engines.distributed.process_group import get_launched_world_size, get_ranks
from fedtailor.engines.sequential import SequentialEngine
from fedtailor.engines.vectorized import VectorizedEngine
from fedtailor.errors import InputError, RoutineError, is_number, require, suggest_name
from fedtailor.ops import cpu

__all__ = [
    "ClientStateStore",
    "CompileMode",
    "DistributedEngine",
    "Engine",
    "EngineContext",
    "ScoreResult",
    "SequentialEngine",
    "TrainResult",
    "VectorizedEngine",
    "collect_client_states",
    "get_engine_options",
    "make_engine",
    "resolve_device",
]

NAMES = ("vectorized", "sequential")
"""Engines of one process; `distributed` has one of these in each of several."""


def make_engine(
    context: EngineContext,
    name: str = "vectorized",
    chunk: int | None = None,
    compile: CompileMode = False,
) -> Engine:
    """An engine by name. What cannot be vectorized or compiled runs the slower way, and `notes` says why."""
    validate_engine_options(name, chunk)
    known = isinstance(compile, bool) or compile == "training"
    require(known, f"Engine: compile must be True, False or 'training', got {compile!r}.")
    if name == "sequential":
        return SequentialEngine(context)
    if name == "distributed":
        return make_distributed_engine(context, chunk, compile)
    method_name, probe = context.method.name, probe_vmap(context)
    if probe.failure:
        return SequentialEngine(
            context,
            (
                f"{method_name} runs one client at a time, since vmap cannot run it: {probe.failure}",
            ),
        )
    notes = probe.notes
    if context.device.type == "cpu":
        cpu.tune_malloc()
    if compile and (no_compile_reason := get_no_compile_reason(context)):
        notes = (*notes, f"{method_name} runs uncompiled: {no_compile_reason}.")
        compile = False
    if compile and not is_torch_tested():
        notes = (*notes, f"{method_name} runs uncompiled: {describe_tested_torch()}")
        _warn_once(f"All runs uncompiled, with the same results: {describe_tested_torch()}")
        compile = False
    if compile:
        set_cache_dir()
    if compile and (reason := get_compile_error(context.device)):
        notes = (
            *notes,
            f"{method_name} runs uncompiled, since torch.compile does not work here: {reason}",
        )
        compile = False
    if (
        context.device.type == "cpu"
        and context.task.compute_dtype == torch.bfloat16
        and not cpu.has_native_bf16()
    ):
        notes = (
            *notes,
            f"{method_name} calculates in bf16, which this processor has to imitate: float32 is many times as fast",
        )
    chunk_size = chunk or max_chunk_size(probe.bytes_per_client, context.device)
    return VectorizedEngine(context, chunk_size, compile, notes)


def make_distributed_engine(
    context: EngineContext, chunk: int | None = None, compile: CompileMode = False
) -> DistributedEngine:
    """The engine of all ranks that have joined, this one's part of it."""
    together = get_ranks().world_size == get_launched_world_size()
    require(
        together,
        "Engine: several processes of engine=distributed are started by: torchrun ... -m fedtailor run ...",
    )
    return DistributedEngine(
        context, make_engine(make_rank_context(context), "vectorized", chunk, compile), get_ranks()
    )


def validate_engine_options(name: str, chunk: int | None) -> None:
    """Refuses a name or a chunk size that no engine has."""
    known = (*NAMES, "distributed")
    if name not in known:
        raise InputError(f"There is no engine '{name}'; {suggest_name(name, known)}")
    fits = chunk is None or (is_number(chunk, integer=True) and chunk >= 1)
    require(fits, f"Engine: chunk must be a whole number of at least 1 client, got {chunk!r}.")


def get_engine_options(engine: Engine) -> dict[str, Any]:
    """What an engine runs with, to make the same one again."""
    if isinstance(engine, DistributedEngine):
        return {
            **get_engine_options(engine.inner),
            "engine": "distributed",
            "ranks": engine.ranks.world_size,
        }
    if isinstance(engine, VectorizedEngine):
        return {"engine": "vectorized", "chunk": engine.chunk, "compile": engine.compile_mode}
    return {"engine": "sequential", "chunk": None, "compile": False}


def collect_client_states(engine: Engine) -> ClientStateStore:
    """Every client's memory in one place, to be written down."""
    return (
        engine.collect_client_states()
        if isinstance(engine, DistributedEngine)
        else engine.client_states
    )


class VmapProbe(NamedTuple):
    """What came of trying to vectorize."""

    failure: str  # "": it worked
    notes: tuple[str, ...]
    bytes_per_client: int  # that a client needs, at most


def probe_vmap(context: EngineContext) -> VmapProbe:
    """Tries one step of everything on the two largest clients, whatever the caller does with warnings."""
    train_ids = context.data.groups["train"]
    largest_ids = train_ids[
        np.argsort(
            -get_client_sizes(context.data.clients.splits["train"], train_ids), kind="stable"
        )[[0, min(1, len(train_ids) - 1)]]
    ]
    shortened = replace(
        context,
        method=limit_to_one_step(context.method),
        client_states=ClientStateStore(context.data.clients.count),
    )
    engine, state, peak = (
        VectorizedEngine(shortened, use_programs=False),
        context.init_server_state(),
        PeakMemory(),
    )
    with record_vmap_fallbacks() as slow_ops:
        try:
            with peak:
                engine.train(state, largest_ids, 0)
                engine.score(state, largest_ids)
        except RoutineError as problem:
            return VmapProbe(
                next(iter(str(problem.__cause__).splitlines()), type(problem.__cause__).__name__),
                (),
                0,
            )
    note = f"{context.method.name} is slower than it could be: vmap has no rule for {', '.join(sorted(slow_ops))}."
    return VmapProbe("", (note,) if slow_ops else (), -(-peak.peak_bytes // 2))


@cache
def _warn_once(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=3)


def get_compile_error(device: torch.device) -> str | None:
    """Compiles something trivial; the reason if that fails."""
    try:
        bind_compiled(_double, (torch.ones(2, device=device),))()
    except Exception as problem:
        return next(iter(str(problem).splitlines()), type(problem).__name__)
    return None


def _double(x: Tensor) -> None:
    x.mul_(2)
