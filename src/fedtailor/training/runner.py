"""A run from a specification: recorded, checkpointed, interruptible, resumable.

What is asked for is written down before anything slow begins; automatic choices are made once, written down before the
first round, and reused when the run is resumed. A run killed at any moment and resumed ends with the same bytes.
"""

import shutil
import time
from collections.abc import Callable, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch

from fedtailor.core.types import Params, ServerState
from fedtailor.data.dataset import FederatedDataset
from fedtailor.engines import factory
from fedtailor.engines.base import Engine
from fedtailor.engines.compile_policy import CompileDecision, decide_compile
from fedtailor.engines.context import EngineContext
from fedtailor.errors import require
from fedtailor.evaluation.costs import CostMeter
from fedtailor.evaluation.evaluate import TEST_GROUPS, evaluate, evaluate_final, sample_group
from fedtailor.evaluation.summary import compute_convergence, compute_final_window, summarize_group
from fedtailor.storage.atomic import explain_disk_errors
from fedtailor.storage.files import write_tensors
from fedtailor.training import build, distributed_launch
from fedtailor.training.checkpoint import CheckpointManager
from fedtailor.training.command_lines import format_resume_command, format_run_command
from fedtailor.training.config import RunConfig
from fedtailor.training.dataset_summary import require_same_data
from fedtailor.training.loggers import make_loggers
from fedtailor.training.loop import Round, run_rounds
from fedtailor.training.prepare import get_cohort_size
from fedtailor.training.pretraining import run_pretraining
from fedtailor.training.provenance import describe_version_changes
from fedtailor.training.record import (
    COST_KEYS,
    compute_checksums,
    compute_means,
    make_initial_record,
    scores_to_json,
)
from fedtailor.training.run_dir import RunDir

EVAL_GROUPS = ("validation", *TEST_GROUPS)


class Listener(Protocol):
    """Somebody who hears how a run goes."""

    def on_run_start(self, record: Mapping[str, Any], rounds_done: int) -> None:
        """The run begins, or goes on after some rounds that are done."""

    def on_round_end(self, entry: Mapping[str, Any]) -> None:
        """A round has ended."""

    def on_run_end(self, record: Mapping[str, Any]) -> None:
        """The run has come to its end."""


class RunOutcome(NamedTuple):
    """How a run stopped."""

    record: dict[str, Any]
    is_finished: bool  # False: it was asked to stop, and has saved where it is


InitialParams = dict[int, Params]
"""Pre-trained first models by seed, shared by the runs of a comparison."""


def start_run(
    config: RunConfig,
    out: str | Path,
    listeners: tuple[Listener, ...] = (),
    should_stop: Callable[[], bool] = bool,
    initial_params: InitialParams | None = None,
) -> RunOutcome:
    """Starts a run in a new folder. `stop` is asked after every round."""
    run_dir = RunDir(out)
    data = build.load_dataset(config)
    build.build_context(config, data)
    all_listeners = (*make_loggers(config.log, run_dir.path), *listeners)
    with explain_disk_errors(run_dir.path, "nothing was begun, so mend that and run it again."):
        run_dir.create(config)
    return _run_locked(config, data, run_dir, all_listeners, should_stop, initial_params)


def resume_run(
    out: str | Path,
    listeners: tuple[Listener, ...] = (),
    should_stop: Callable[[], bool] = bool,
    initial_params: InitialParams | None = None,
) -> RunOutcome:
    """Goes on with a run from its last whole checkpoint; a finished run is left as it is."""
    run_dir = RunDir(out)
    config = run_dir.read_config()
    if run_dir.has_record() and (record := run_dir.read_record())["status"] == "finished":
        return RunOutcome(record, True)
    return _run_locked(
        config,
        build.load_dataset(config),
        run_dir,
        (*make_loggers(config.log, run_dir.path), *listeners),
        should_stop,
        initial_params,
    )


def _run_locked(
    config: RunConfig,
    data: FederatedDataset,
    run_dir: RunDir,
    listeners: tuple[Listener, ...],
    should_stop: Callable[[], bool],
    initial_params: InitialParams | None,
) -> RunOutcome:
    resume_hint = f"what was saved before is whole, so mend that and go on with: {format_resume_command(run_dir.path)}"
    scratch_dir = run_dir.path / "scratch"
    with explain_disk_errors(run_dir.path, resume_hint), run_dir.lock():
        shutil.rmtree(scratch_dir, ignore_errors=True)
        try:
            context = build.build_context(
                config, data, run_dir.path, scratch_dir if config.client_state == "files" else None
            )
            return _run(
                config,
                data,
                context,
                run_dir,
                listeners,
                should_stop,
                {} if initial_params is None else initial_params,
            )
        finally:
            shutil.rmtree(scratch_dir, ignore_errors=True)


def _run(
    config: RunConfig,
    data: FederatedDataset,
    context: EngineContext,
    run_dir: RunDir,
    listeners: tuple[Listener, ...],
    should_stop: Callable[[], bool],
    initial_params: InitialParams,
) -> RunOutcome:
    """From the last checkpoint, or from the first round, to the end or until asked to stop."""
    previous_record = run_dir.read_record() if run_dir.has_record() else None
    if previous_record:
        require_same_data(previous_record, context.data)
    engine, choices = _make_engine(
        config, context, run_dir.path, previous_record["choices"] if previous_record else None
    )
    checkpoints, state = CheckpointManager(run_dir.path), context.init_server_state()
    restored = checkpoints.restore_latest(
        state, context.client_states, context.method.init_client_state(state)
    )
    if restored is None and config.seed not in initial_params:
        initial_params[config.seed] = run_pretraining(context, build.get_pretraining_config(config))
    state, rounds_done = (
        (restored.state, restored.rounds_done)
        if restored
        else (context.init_server_state(initial_params[config.seed]), 0)
    )
    record = previous_record or make_initial_record(
        config,
        build.resolve_hparams(config, data),
        context,
        compute_checksums(data, state.params),
        choices,
        format_run_command(config, run_dir.path),
    )
    new_notes = [*(restored.skipped if restored else ()), *describe_version_changes(record)]
    notes = list(dict.fromkeys([*choices["notes"], *new_notes]))
    record = record | {
        "status": "running",
        "rounds": [],
        "cost": None,
        "choices": choices | {"notes": notes},
    }
    run_dir.truncate_rounds(rounds_done)
    run_dir.write_record(record)
    for listener in listeners:
        listener.on_run_start(record, rounds_done)
    meter = CostMeter(context)
    state, is_complete = _train_rounds(
        config, context, engine, meter, run_dir, checkpoints, state, listeners, should_stop
    )
    if not is_complete:
        record = record | {
            "status": "interrupted",
            "rounds": run_dir.read_rounds(),
            "cost": sum_costs(run_dir),
        }
        run_dir.write_record(record)
        return RunOutcome(record, False)
    record = _finish_run(config, context, engine, meter, run_dir, record, state)
    for listener in listeners:
        listener.on_run_end(record)
    return RunOutcome(record, True)


def _train_rounds(
    config: RunConfig,
    context: EngineContext,
    engine: Engine,
    meter: CostMeter,
    run_dir: RunDir,
    checkpoints: CheckpointManager,
    state: ServerState,
    listeners: tuple[Listener, ...],
    should_stop: Callable[[], bool],
) -> tuple[ServerState, bool]:
    """Rounds up to the last one, or until asked to stop; the bool says which."""
    num_left, should_sync = config.rounds - int(state.round), partial(_should_sync, config)
    for finished_round in islice(
        run_rounds(context, engine, state, get_cohort_size(context, config.cohort), should_sync),
        num_left,
    ):
        state, is_last = finished_round.state, finished_round.rounds_done == config.rounds
        entry = _make_round_entry(config, context, engine, finished_round, meter)
        is_stopping = should_stop()
        should_save = (
            is_stopping or is_last or finished_round.rounds_done % config.checkpoint_every == 0
        )
        run_dir.append_round(entry, should_sync=should_save)
        for listener in listeners:
            listener.on_round_end(entry)
        if should_save:
            checkpoints.save(
                finished_round.rounds_done, state, factory.collect_client_states(engine)
            )
        if is_stopping and not is_last:
            return state, False
    return state, True


def _should_sync(config: RunConfig, rounds_done: int) -> bool:
    """Whether the state after a round is scored or saved."""
    return rounds_done == config.rounds or not all(
        rounds_done % every for every in (config.evaluate_every or 1, config.checkpoint_every)
    )


def _make_round_entry(
    config: RunConfig,
    context: EngineContext,
    engine: Engine,
    finished_round: Round,
    meter: CostMeter,
) -> dict[str, Any]:
    scores = None
    is_due = (
        context.method.client.phases
        and finished_round.rounds_done % (config.evaluate_every or 1) == 0
    )
    if (
        is_due or finished_round.rounds_done == config.rounds
    ):  # where nobody trains in rounds, nothing changes before the end
        scores_by_group = evaluate(
            context,
            engine,
            finished_round.state,
            _select_groups(config, EVAL_GROUPS),
            config.eval_clients,
        )
        headline = context.task.metrics[0].name
        scores = {group: compute_means(found, headline) for group, found in scores_by_group.items()}
    return {
        "round": finished_round.rounds_done,
        **finished_round.cost._asdict(),
        **meter.compute_round_cost(finished_round.cohort),
        "scores": scores,
    }


def _select_groups(config: RunConfig, groups: tuple[str, ...]) -> tuple[str, ...]:
    """Of these groups those that may be scored: where something is being chosen, validation clients alone."""
    return ("validation",) if config.eval_groups == "validation" else groups


def _finish_run(
    config: RunConfig,
    context: EngineContext,
    engine: Engine,
    meter: CostMeter,
    run_dir: RunDir,
    record: dict[str, Any],
    state: ServerState,
) -> dict[str, Any]:
    started_at, rounds = time.perf_counter(), run_dir.read_rounds()
    groups = _select_groups(config, TEST_GROUPS)
    final_scores = evaluate_final(context, engine, state, groups, config.final_eval_clients)
    module = context.task.to_module(state.params)
    write_tensors(run_dir.path / "model.safetensors", dict(module.state_dict()))
    total = (
        sum_costs(run_dir)
        | _compute_personalize_cost(config, context, meter, groups)
        | {"scoring_seconds": time.perf_counter() - started_at}
    )
    record = record | {
        "status": "finished",
        "rounds": rounds,
        "scores": {group: scores_to_json(found) for group, found in final_scores.items()},
        "summary": {
            group: summarize_group(found, record["metric"]) for group, found in final_scores.items()
        },
        "final_window": compute_final_window(rounds, config.rounds),
        "convergence": compute_convergence(rounds, record),
        "cost": total,
    }
    run_dir.write_record(record)
    return record


def _compute_personalize_cost(
    config: RunConfig, context: EngineContext, meter: CostMeter, groups: tuple[str, ...]
) -> dict[str, float]:
    """What personalizing costs a client of the first group that there is, on average."""
    client_ids = next(
        found
        for group in groups
        if len(found := sample_group(context, group, config.final_eval_clients))
    )
    cost_per_client = meter.compute_personalize_cost(client_ids)
    return {
        "personalize_gradients": round(cost_per_client.gradients.mean(), 1),
        "personalize_flops": round(cost_per_client.flops.mean()),
    }


def sum_costs(run_dir: RunDir) -> dict[str, float]:
    """What all rounds so far cost together."""
    rounds = run_dir.read_rounds()
    return {name: sum(entry.get(name, 0) for entry in rounds) for name in COST_KEYS}


def _decide_compile(
    config: RunConfig, context: EngineContext, previous_choices: Mapping[str, Any] | None
) -> CompileDecision:
    """Whether to compile: as was asked for, as was decided before, or as measured now."""
    if previous_choices:
        return CompileDecision(
            previous_choices["compile"], previous_choices.get("compile_reason", "")
        )
    if config.compile != "auto":
        return CompileDecision(config.compile, "asked for")
    if config.engine == "sequential" or not context.method.client.phases:
        return CompileDecision(False, "there is nothing to compile")
    return decide_compile(context, get_cohort_size(context, config.cohort), config.rounds)


def _make_engine(
    config: RunConfig,
    context: EngineContext,
    run_path: Path,
    previous_choices: Mapping[str, Any] | None,
) -> tuple[Engine, dict[str, Any]]:
    """The engine, with choices made now or, if the run is resumed, made before and only honoured now."""
    threads = previous_choices["threads"] if previous_choices else config.threads
    if threads:
        torch.set_num_threads(threads)
    decision = _decide_compile(config, context, previous_choices)
    requested = previous_choices or {
        "engine": config.engine,
        "chunk": config.chunk,
        "compile": decision.compile,
    }
    options = (requested["engine"], requested["chunk"], requested["compile"])
    distributed_launch.start_workers(config, run_path, options, context.data)
    engine = factory.make_engine(context, *options)
    current = factory.get_engine_options(engine)
    if previous_choices is None:
        compile_notes = (
            [f"compiled: {decision.reason}"]
            if current["compile"] and config.compile == "auto"
            else []
        )
        extra_choices: dict[str, Any] = {
            "precision": config.precision,
            "threads": torch.get_num_threads(),
        }
        extra_choices |= {
            "notes": [*engine.notes, *compile_notes],
            "compile_reason": decision.reason,
        }
        return engine, current | extra_choices
    for name, value in current.items():
        require(
            value == previous_choices[name] or name == "ranks",
            f"The run was begun with {name}={previous_choices[name]}, which cannot be had here "
            f"({'; '.join(engine.notes)}); "
            "resume it on a machine like the first one.",
        )
    return engine, dict(previous_choices) | {
        "notes": [*previous_choices["notes"], *_describe_rank_change(current, previous_choices)]
    }


def _describe_rank_change(
    current: Mapping[str, Any], previous_choices: Mapping[str, Any]
) -> list[str]:
    """A note if there are more or fewer processes than the run was begun with."""
    ranks, previous_ranks = current.get("ranks"), previous_choices.get("ranks")
    return (
        []
        if ranks == previous_ranks
        else [f"resumed with {ranks} ranks for {previous_ranks}: the last digits may differ"]
    )
