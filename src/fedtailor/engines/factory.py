"""Make an engine by its name, and say why it does not run in the fastest way if it does not."""

import warnings
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedtailor.compat.torch_internals import (
    describe_tested_torch,
    is_torch_tested,
    record_vmap_fallbacks,
)
from fedtailor.compiler.inductor import bind_compiled
from fedtailor.core import trees
from fedtailor.data.batching import get_client_sizes
from fedtailor.engines.base import Engine
from fedtailor.engines.chunking import (
    PeakMemory,
    compute_loop_chunk_size,
    compute_max_chunk_size,
)
from fedtailor.engines.client_loop import is_faster_unstacked
from fedtailor.engines.client_state import ClientStateStore
from fedtailor.engines.compile_policy import CompileMode, find_no_compile_reason, set_cache_dir
from fedtailor.engines.context import EngineContext, limit_to_one_step
from fedtailor.engines.distributed.engine import DistributedEngine, make_rank_context
from fedtailor.engines.distributed.process_group import get_launched_world_size, get_ranks
from fedtailor.engines.sequential import SequentialEngine
from fedtailor.engines.vectorized import VectorizedEngine
from fedtailor.errors import InputError, RoutineError, is_number, require, suggest_name
from fedtailor.ops import cpu
from fedtailor.ops.conv2d import has_wide_convolutions

NAMES = ("vectorized", "sequential")
"""Engines of one process; `distributed` has one of them in each of several processes."""


class EngineOptions(NamedTuple):
    """Arguments of `make_engine` that make the same engine again."""

    engine: str
    chunk: int | None
    compile: CompileMode
    ranks: int | None = None  # number of processes of a distributed engine


class VmapProbe(NamedTuple):
    """Result of running a method once on a stack of two clients."""

    failure: str  # first line of the error; empty if there was none
    slow_operations: tuple[str, ...] = ()  # those that vmap has no rule for
    bytes_per_client: int = 0  # peak memory


def make_engine(
    context: EngineContext,
    name: str = "vectorized",
    chunk: int | None = None,
    compile: CompileMode = False,
) -> Engine:
    """Return an engine; its `notes` say why it is slower than what was asked for, if it is.

    Args:
        context: The run.
        name: "vectorized", "sequential" or "distributed". What vmap cannot run gets a sequential
            engine in any case.
        chunk: Maximum number of stacked clients; None fits it to the memory.
        compile: Steps to compile. What cannot be compiled runs uncompiled.
    """
    validate_engine_options(name, chunk)
    _validate_compile_mode(compile)
    if name == "sequential":
        return SequentialEngine(context)
    if name == "distributed":
        return make_distributed_engine(context, chunk, compile)
    probe = probe_vmap(context)
    if probe.failure:
        return SequentialEngine(context, (_note_vmap_failure(context, probe),))
    if context.device.type == "cpu":
        cpu.tune_malloc()
    uncompiled_note = _note_uncompiled(context) if compile else None
    if uncompiled_note:
        compile = False
    notes = (_note_slow_operations(context, probe), uncompiled_note, _note_emulated_bf16(context))
    return VectorizedEngine(
        context,
        chunk=chunk or _choose_chunk(context, probe, compile),
        compile=compile,
        notes=tuple(note for note in notes if note is not None),
    )


def _choose_chunk(context: EngineContext, probe: VmapProbe, compile: CompileMode) -> int:
    """Return the maximum number of stacked clients: as many as fit, or as gain from a stack."""
    chunk = compute_max_chunk_size(probe.bytes_per_client, context.device)
    model = context.task.train_module
    is_loop = context.device.type == "cpu" and is_faster_unstacked(model)
    if is_loop and (not compile or has_wide_convolutions(model)):
        return min(chunk, compute_loop_chunk_size(trees.nbytes(context.task.params)))
    return chunk


def make_distributed_engine(
    context: EngineContext, chunk: int | None = None, compile: CompileMode = False
) -> DistributedEngine:
    """Return this rank's part of an engine of all ranks.

    Args:
        context: The run, the same on all ranks.
        chunk: Maximum number of clients that a rank stacks; None fits it to the memory.
        compile: Steps to compile.
    """
    ranks = get_ranks()
    require(
        ranks.world_size == get_launched_world_size(),
        "Engine: several processes of engine=distributed are started by: "
        "torchrun ... -m fedtailor run ...",
    )
    inner = make_engine(make_rank_context(context), "vectorized", chunk, compile)
    return DistributedEngine(context, inner, ranks)


def validate_engine_options(name: str, chunk: int | None) -> None:
    """Raise an InputError if there is no such engine or chunk size."""
    names = (*NAMES, "distributed")
    if name not in names:
        raise InputError(f"There is no engine '{name}'; {suggest_name(name, names)}")
    is_valid = chunk is None or (is_number(chunk, integer=True) and chunk >= 1)
    require(is_valid, f"Engine: chunk must be a whole number of at least 1 client, got {chunk!r}.")


def _validate_compile_mode(compile: CompileMode) -> None:
    is_valid = isinstance(compile, bool) or compile == "training"
    require(is_valid, f"Engine: compile must be True, False or 'training', got {compile!r}.")


def get_engine_options(engine: Engine) -> EngineOptions:
    """Return the options that an engine runs with."""
    if isinstance(engine, DistributedEngine):
        inner = get_engine_options(engine.inner)
        return inner._replace(engine="distributed", ranks=engine.ranks.world_size)
    if isinstance(engine, VectorizedEngine):
        return EngineOptions("vectorized", engine.chunk, engine.compile_mode)
    return EngineOptions("sequential", None, False)


def collect_client_states(engine: Engine) -> ClientStateStore:
    """Return the store of all client states, after collecting them from all ranks."""
    if isinstance(engine, DistributedEngine):
        return engine.collect_client_states()
    return engine.client_states


def probe_vmap(context: EngineContext) -> VmapProbe:
    """Train and score a stack of the two largest clients with one step per phase.

    The client states of the run stay as they are.
    """
    short_context = replace(
        context,
        method=limit_to_one_step(context.method),
        client_states=ClientStateStore(context.data.clients.count),
    )
    engine = VectorizedEngine(short_context, use_programs=False)
    client_ids = _find_largest_clients(context)
    state = context.init_server_state()
    peak = PeakMemory()
    with record_vmap_fallbacks() as slow_operations:
        try:
            with peak:
                engine.train(state, client_ids, 0)
                engine.score(state, client_ids)
        except RoutineError as problem:
            return VmapProbe(_get_first_line(problem.__cause__))
    bytes_per_client = -(-peak.peak_bytes // len(client_ids))
    return VmapProbe("", tuple(sorted(slow_operations)), bytes_per_client)


def get_compile_error(device: torch.device) -> str | None:
    """Compile a trivial function; return the first line of the error if that fails, else None."""
    try:
        bind_compiled(_double, (torch.ones(2, device=device),))()
    except Exception as problem:
        return _get_first_line(problem)
    return None


def _find_largest_clients(context: EngineContext) -> np.ndarray:
    """Return the two training clients with the most examples; an only client appears twice."""
    client_ids = context.data.groups["train"]
    sizes = get_client_sizes(context.data.clients.splits["train"], client_ids)
    order = np.argsort(-sizes, kind="stable")
    largest_ids: np.ndarray = client_ids[order[[0, min(1, len(client_ids) - 1)]]]
    return largest_ids


def _note_vmap_failure(context: EngineContext, probe: VmapProbe) -> str:
    return (
        f"{context.method.name} runs one client at a time, since vmap cannot run it: "
        f"{probe.failure}"
    )


def _note_slow_operations(context: EngineContext, probe: VmapProbe) -> str | None:
    """Return a note on operations that vmap has no rule for, or None."""
    if not probe.slow_operations:
        return None
    operations = ", ".join(probe.slow_operations)
    return f"{context.method.name} is slower than it could be: vmap has no rule for {operations}."


def _note_uncompiled(context: EngineContext) -> str | None:
    """Return a note on why steps cannot be compiled here, or None if they can."""
    prefix = f"{context.method.name} runs uncompiled"
    reason = find_no_compile_reason(context)
    if reason:
        return f"{prefix}: {reason}."
    if not is_torch_tested():
        _warn_once(f"All runs uncompiled, with the same results: {describe_tested_torch()}")
        return f"{prefix}: {describe_tested_torch()}"
    set_cache_dir()
    error = get_compile_error(context.device)
    if error:
        return f"{prefix}, since torch.compile does not work here: {error}"
    return None


def _note_emulated_bf16(context: EngineContext) -> str | None:
    """Return a note if the model computes in bf16 on a CPU that only emulates it, or None."""
    if context.device.type != "cpu" or context.task.compute_dtype != torch.bfloat16:
        return None
    if cpu.has_native_bf16():
        return None
    return (
        f"{context.method.name} computes in bf16, which this CPU only emulates: "
        "float32 is many times as fast"
    )


@cache
def _warn_once(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=4)  # the caller of `make_engine`


def _get_first_line(problem: BaseException | None) -> str:
    """Return the first line of an error's message, or its type if it has none."""
    return next(iter(str(problem).splitlines()), type(problem).__name__)


def _double(x: Tensor) -> None:
    x.mul_(2)
