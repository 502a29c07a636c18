"""The engine of a run: chosen once with its options, which a resumed run keeps."""

from pathlib import Path

import torch

from fedtailor.engines import factory
from fedtailor.engines.base import Engine
from fedtailor.engines.compile_policy import CompileDecision, decide_compile
from fedtailor.engines.context import EngineContext
from fedtailor.engines.factory import EngineOptions
from fedtailor.errors import require
from fedtailor.training import distributed_launch
from fedtailor.training.config import RunConfig
from fedtailor.training.context import get_cohort_size
from fedtailor.training.record.schema import Choices
from fedtailor.training.resources import check_threads, set_threads


def make_new_engine(
    config: RunConfig, context: EngineContext, run_path: Path
) -> tuple[Engine, Choices]:
    """Return the engine of a new run, and the choices that were made for it."""
    check_threads(config.threads)
    if config.threads:
        torch.set_num_threads(config.threads)
    decision = _decide_compile(config, context)
    requested = EngineOptions(config.engine, config.chunk, decision.compile)
    engine = _make_engine(config, context, run_path, requested)
    options = factory.get_engine_options(engine)
    notes = [*engine.notes]
    if options.compile and config.compile == "auto":
        notes.append(f"compiled: {decision.reason}")
    return engine, Choices(
        **options._asdict(),
        compile_reason=decision.reason,
        precision=config.precision,
        threads=torch.get_num_threads(),
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


def describe_other_compile_choice(
    config: RunConfig, context: EngineContext, choices: Choices
) -> str:
    """Return how a new run of this specification would be compiled, "" if as by these choices."""
    decision = _decide_compile(config, context)
    if decision.compile == choices.compile:
        return ""
    return "would be compiled" if decision.compile else "would not be compiled"


def _make_engine(
    config: RunConfig, context: EngineContext, run_path: Path, options: EngineOptions
) -> Engine:
    distributed_launch.start_workers(config, run_path, options, context.data)
    return factory.make_engine(context, options.engine, options.chunk, options.compile)


def _decide_compile(config: RunConfig, context: EngineContext) -> CompileDecision:
    """Return whether to compile: as asked for, or if that pays."""
    if config.compile != "auto":
        return CompileDecision(config.compile, "asked for")
    if config.engine == "sequential" or not context.method.client.phases:
        return CompileDecision(False, "there is nothing to compile")
    return decide_compile(context, get_cohort_size(context, config.cohort), config.rounds)
