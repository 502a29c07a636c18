"""The engine of a run, and the choices that are made for it once and kept when it is resumed.

Choices follow from counts of the run's training alone, never from a clock or a cache. The runs of a
method in a comparison share those of its first seed (`ComputeChoice`).
"""

from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch

from fedtailor.core.types import ServerState
from fedtailor.engines import client_loop, factory
from fedtailor.engines.base import Engine
from fedtailor.engines.compile_policy import (
    COUNTED_ROUNDS,
    CompileDecision,
    CompileMode,
    TrainingCounts,
    count_training,
    decide_compile,
    estimate_compile_seconds,
    select_covering_cohorts,
)
from fedtailor.engines.context import EngineContext
from fedtailor.engines.factory import EngineOptions
from fedtailor.engines.vectorized import VectorizedEngine
from fedtailor.errors import require
from fedtailor.ops.conv2d import has_wide_convolutions
from fedtailor.training import distributed_launch, from_config
from fedtailor.training.config import RunConfig
from fedtailor.training.context import get_cohort_size
from fedtailor.training.loop import draw_cohort
from fedtailor.training.record.schema import Choices
from fedtailor.training.resources import (
    check_threads,
    choose_threads,
    get_max_threads,
    set_threads,
)

MIN_COMPILE_TIMEOUT = 600.0
"""Seconds of compiling before the first round after which a run goes on uncompiled, at least."""
TIMEOUT_PER_ESTIMATE = 20.0
"""The same as a multiple of the estimate, as other work may keep the machine busy."""

_COMPILES = "compiles"
"""The word that marks the note on what is compiled."""


class ComputeRequest(NamedTuple):
    """How a run is asked to compute, and its size."""

    engine: str
    compile: CompileMode | Literal["auto"]
    threads: int | None
    rounds: int
    cohort: int


class ComputeChoice(NamedTuple):
    """How all seeds of a method compute in a comparison; reasons are ends of sentences."""

    compile: CompileMode
    compile_reason: str
    threads: int
    threads_reason: str
    compile_note: str = ""  # a line on what is compiled before the first round


def choose_compute(request: ComputeRequest, context: EngineContext) -> ComputeChoice:
    """Return whether a run compiles its steps, and its threads: as asked for, or from counts.

    Args:
        request: What is asked for.
        context: The run.
    """
    needs_counts = request.compile == "auto" or request.threads is None or bool(request.compile)
    has_steps = bool(context.method.client.phases)
    counts = None
    if needs_counts and has_steps:
        cohorts = list_first_cohorts(context, request.cohort, request.rounds)
        counts = count_training(context, cohorts, request.rounds)
    decision = _choose_compile(request, context, counts)
    threads, threads_reason = _choose_threads(request, context, counts, decision.compile)
    note = ""
    if decision.compile and counts is not None:
        note = _describe_compiling(context, counts, decision.reason)
    return ComputeChoice(decision.compile, decision.reason, threads, threads_reason, note)


def choose_for_config(config: RunConfig) -> ComputeChoice:
    """Return the choice for a specification, whose data are loaded for it."""
    data = from_config.load_dataset(config)
    context = from_config.build_context(config, data)
    return choose_compute(_make_request(config), context)


def recall_choice(choices: Choices) -> ComputeChoice:
    """Return the choice that a run has been made with."""
    notes = [note for note in choices.notes if _COMPILES in note]
    return ComputeChoice(
        compile=choices.compile,
        compile_reason=choices.compile_reason,
        threads=choices.threads,
        threads_reason=choices.threads_reason,
        compile_note=notes[0] if notes else "",
    )


def list_first_cohorts(context: EngineContext, cohort: int, rounds: int) -> list[np.ndarray]:
    """Return the cohorts of the rounds that choices are made from.

    Args:
        context: The run.
        cohort: Clients a round.
        rounds: Number of rounds of the whole run.
    """
    cohort_size = get_cohort_size(context, cohort)
    num_rounds = min(COUNTED_ROUNDS, max(1, rounds))
    return [draw_cohort(context, cohort_size, round_idx) for round_idx in range(num_rounds)]


def make_new_engine(
    config: RunConfig,
    context: EngineContext,
    run_path: Path,
    shared_choice: ComputeChoice | None = None,
) -> tuple[Engine, Choices]:
    """Return the engine of a new run, and the choices that were made for it.

    Args:
        config: The specification.
        context: The run.
        run_path: Its folder.
        shared_choice: The choice of another seed in the same comparison; None makes one.
    """
    check_threads(config.threads)
    choice = shared_choice or choose_compute(_make_request(config), context)
    if config.threads is None:
        choice = choice._replace(threads=min(choice.threads, get_max_threads()))
    torch.set_num_threads(choice.threads)
    requested = EngineOptions(config.engine, config.chunk, choice.compile)
    engine = _make_engine(config, context, run_path, requested)
    options = factory.get_engine_options(engine)
    notes = [*engine.notes]
    if options.compile and choice.compile_note:
        notes.append(choice.compile_note)
    return engine, Choices(
        **options._asdict(),
        compile_reason=choice.compile_reason,
        precision=config.precision,
        threads=torch.get_num_threads(),
        threads_reason=choice.threads_reason,
        notes=tuple(notes),
    )


def remake_engine(
    config: RunConfig, context: EngineContext, run_path: Path, choices: Choices
) -> tuple[Engine, Choices]:
    """Return the engine of a resumed run by the choices of its start, and these with further notes.

    Raises:
        InputError: This machine cannot have an engine like the first one.
    """
    set_threads(choices.threads)
    requested = EngineOptions(choices.engine, choices.chunk, choices.compile)
    engine = _make_engine(config, context, run_path, requested)
    options = factory.get_engine_options(engine)
    for name, value in requested._replace(ranks=options.ranks)._asdict().items():
        require(
            value == getattr(options, name),
            f"The run began with {name}={value}, which is not possible here "
            f"({'; '.join(engine.notes)}); resume it on a machine like the first one.",
        )
    notes = list(choices.notes)
    if options.ranks != choices.ranks:
        notes.append(
            f"resumed with {options.ranks} ranks for {choices.ranks}: the last digits may differ"
        )
    return engine, choices.model_copy(update={"notes": tuple(notes)})


def compile_ahead(
    engine: Engine, state: ServerState, request: ComputeRequest
) -> tuple[Engine, str]:
    """Compile what training needs before its first round, or else give up compiling.

    Args:
        engine: The engine of the run. Of several ranks each compiles in the first round.
        state: The server's state before the first round, which is left as it is.
        request: What was asked for.

    Returns:
        The engine to train with, and why that is an uncompiled one after all; "" if it is not.
    """
    if not isinstance(engine, VectorizedEngine) or not engine.compile_mode:
        return engine, ""
    context = engine.context
    cohorts = list_first_cohorts(context, request.cohort, request.rounds)
    counts = count_training(context, cohorts, request.rounds)
    estimate = estimate_compile_seconds(context, counts)
    timeout = max(MIN_COMPILE_TIMEOUT, TIMEOUT_PER_ESTIMATE * estimate)
    failure = engine.compile_ahead(state, select_covering_cohorts(context, cohorts), timeout)
    if not failure:
        return engine, ""
    return factory.make_engine(context, "vectorized", engine.chunk, compile=False), failure


def compile_ahead_of_run(
    config: RunConfig, engine: Engine, state: ServerState, choices: Choices
) -> tuple[Engine, Choices]:
    """Return the engine and the choices of a run after `compile_ahead`.

    Args:
        config: The specification.
        engine: The engine of the run.
        state: The server's state before the first round.
        choices: The choices so far.
    """
    engine, failure = compile_ahead(engine, state, _make_request(config))
    if not failure:
        return engine, choices
    reason = f"steps could not be compiled: {failure}"
    notes = (*choices.notes, f"runs uncompiled after all, since {reason}")
    changes = {"compile": False, "compile_reason": reason, "notes": notes}
    return engine, choices.model_copy(update=changes)


def describe_other_compile_choice(
    config: RunConfig, context: EngineContext, choices: Choices
) -> str:
    """Return how a new run of this specification would be compiled, "" if as by these choices."""
    choice = choose_compute(_make_request(config), context)
    if choice.compile == choices.compile:
        return ""
    return "would be compiled" if choice.compile else "would not be compiled"


def _make_request(config: RunConfig) -> ComputeRequest:
    return ComputeRequest(
        config.engine, config.compile, config.threads, config.rounds, config.cohort
    )


def _make_engine(
    config: RunConfig, context: EngineContext, run_path: Path, options: EngineOptions
) -> Engine:
    distributed_launch.start_workers(config, run_path, options, context.data)
    return factory.make_engine(context, options.engine, options.chunk, options.compile)


def _choose_compile(
    request: ComputeRequest, context: EngineContext, counts: TrainingCounts | None
) -> CompileDecision:
    """Return whether to compile: as asked for, or if that pays."""
    if request.compile != "auto":
        return CompileDecision(request.compile, "asked for")
    if request.engine == "sequential" or counts is None:
        return CompileDecision(False, "there is nothing to compile")
    return decide_compile(context, counts)


def _choose_threads(
    request: ComputeRequest,
    context: EngineContext,
    counts: TrainingCounts | None,
    compile: CompileMode,
) -> tuple[int, str]:
    """Return the threads: as asked for, or as many as a step has work for."""
    if request.threads is not None:
        return request.threads, "asked for"
    if context.device.type != "cpu":
        return get_max_threads(), "the device computes"
    if counts is None:
        return get_max_threads(), "there is nothing to train"
    model = context.task.train_module
    has_stacks = not client_loop.is_faster_unstacked(model)
    if compile and not has_wide_convolutions(model):
        has_stacks = True
    if request.engine == "sequential":
        has_stacks = False
    return choose_threads(counts, has_stacks)


def _describe_compiling(context: EngineContext, counts: TrainingCounts, reason: str) -> str:
    """Return a line on what is compiled before the first round, and about how long that takes."""
    kinds = f"{counts.num_programs} kind{'s' if counts.num_programs != 1 else ''} of steps"
    seconds = round(estimate_compile_seconds(context, counts))
    return (
        f"{context.method.name} {_COMPILES} {kinds} before its first round, which takes about "
        f"{seconds} s, or a few where they are cached: {reason}"
    )
