"""A run from a specification: recorded, checkpointed, interruptible, resumable.

The specification is written down before anything slow begins; automatic choices are made once,
written down before the first round, and kept when the run is resumed. A run killed at any moment
and resumed ends with the same bytes.
"""

import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from torch import Tensor

from fedtailor.core.stopwatch import Stopwatch, time_phase
from fedtailor.core.types import Params, ServerState
from fedtailor.data.dataset import FederatedDataset
from fedtailor.engines import factory
from fedtailor.engines.base import Engine
from fedtailor.engines.context import EngineContext
from fedtailor.errors import DivergedError
from fedtailor.evaluation.costs import CostMeter, make_cost_meter
from fedtailor.evaluation.evaluate import TEST_GROUPS, evaluate, evaluate_final, sample_group
from fedtailor.training import engine_choice, from_config
from fedtailor.training.checkpoint import CheckpointManager, RestoredCheckpoint
from fedtailor.training.config import RunConfig
from fedtailor.training.context import get_cohort_size
from fedtailor.training.early_stopping import has_stopped_improving
from fedtailor.training.loggers import make_loggers
from fedtailor.training.loop import Round, run_rounds
from fedtailor.training.pretraining import run_pretraining
from fedtailor.training.record.build import (
    compute_checksums,
    compute_group_means,
    make_group_scores,
    make_initial_record,
    sum_costs,
)
from fedtailor.training.record.dataset_summary import require_same_data
from fedtailor.training.record.provenance import describe_version_changes
from fedtailor.training.record.schema import (
    Figures,
    MetricInfo,
    RoundEntry,
    RunCost,
    RunRecord,
    Status,
    Times,
)
from fedtailor.training.record.summary import (
    compute_convergence,
    compute_final_window,
    summarize_group,
)
from fedtailor.training.resources import check_threads, restore_threads
from fedtailor.training.resume_changes import (
    change_config,
    change_record,
    check_same_hparams,
    describe_change,
)
from fedtailor.training.round_log import RoundLog
from fedtailor.training.run_dir import RunDir
from fedtailor.training.shell_commands import format_run_command
from fedtailor.training.start_weights import (
    check_same_start,
    describe_start,
    read_start_params,
)

EVAL_GROUPS = ("validation", *TEST_GROUPS)


class Listener(Protocol):
    """An observer of a run, called with every event of it."""

    def on_run_start(self, record: RunRecord, rounds_done: int) -> None:
        """Handle the start of a run, or its resumption after `rounds_done` rounds."""

    def on_round_end(self, entry: RoundEntry) -> None:
        """Handle the end of a round."""

    def on_run_end(self, record: RunRecord) -> None:
        """Handle the end of a run."""


class RunOutcome(NamedTuple):
    """The record of a run that has finished or stopped."""

    record: RunRecord
    is_finished: bool  # False: it was asked to stop, and has saved its state


InitialParams = dict[tuple[int, int | None], Params]
"""First weights by the seeds of run and data, shared by the runs of a comparison.

They may be pre-trained on the server's data.
"""


@restore_threads()
def start_run(
    config: RunConfig,
    out: str | Path,
    listeners: tuple[Listener, ...] = (),
    should_stop: Callable[[], bool] = bool,
    initial_params: InitialParams | None = None,
    shared_choice: engine_choice.ComputeChoice | None = None,
) -> RunOutcome:
    """Start a run in a new folder.

    Args:
        config: The specification.
        out: The folder, which must not exist or be empty.
        listeners: Called with every event of the run, besides the logger of the specification.
        should_stop: Asked after every round; the run saves its state and returns if it says yes.
        initial_params: First weights that runs share; those of the run's seed are added if they are
            not there.
        shared_choice: How the runs of its method compute in a comparison; None: this one chooses.
    """
    stopwatch = Stopwatch()
    run_dir = RunDir(out)
    check_threads(config.threads)
    run_dir.check_new()
    with stopwatch.run(), time_phase("data"):
        data = from_config.load_dataset(config)
        client_state_dir = _get_client_state_dir(config, run_dir)
        context = from_config.build_context(config, data, client_state_dir=client_state_dir)
    initial_params = {} if initial_params is None else initial_params
    if config.start_from:
        initial_params[config.seed, config.data_seed] = read_start_params(config, context)
    loggers = make_loggers(config.log, run_dir.path)
    with stopwatch.run(), run_dir.create(config), _clear_scratch(run_dir):
        run = Run(config, run_dir, data, context, (*loggers, *listeners), should_stop, stopwatch)
        run.shared_choice = shared_choice
        return run.execute(initial_params)


@restore_threads()
def resume_run(
    out: str | Path,
    listeners: tuple[Listener, ...] = (),
    should_stop: Callable[[], bool] = bool,
    initial_params: InitialParams | None = None,
    changes: Mapping[str, Any] | None = None,
) -> RunOutcome:
    """Resume a run from its last intact checkpoint; a finished run is left as it is.

    A run that has finished goes on if there are more rounds to do now. The other arguments are
    those of `start_run`.

    Args:
        out: The folder of the run.
        listeners: As for `start_run`.
        should_stop: As for `start_run`.
        initial_params: As for `start_run`.
        changes: New values for some keys of the specification: `rounds`, or one that changes no
            figure.
    """
    stopwatch = Stopwatch()
    run_dir = RunDir(out)
    old_config = run_dir.read_config()
    config = change_config(run_dir, old_config, changes or {})
    if run_dir.read_status() == "finished" and config.rounds == old_config.rounds:
        run_dir.settle()
        return RunOutcome(run_dir.read_record(), True)
    with stopwatch.run(), time_phase("data"):
        data = from_config.load_dataset(config)
    check_same_hparams(run_dir, old_config, config, data)
    loggers = make_loggers(config.log, run_dir.path)
    with (
        stopwatch.run(),
        run_dir.explain_disk_errors(),
        run_dir.lock(),
        _clear_scratch(run_dir),
    ):
        client_state_dir = _get_client_state_dir(config, run_dir)
        with time_phase("data"):
            context = from_config.build_context(config, data, run_dir.path, client_state_dir)
        run = Run(config, run_dir, data, context, (*loggers, *listeners), should_stop, stopwatch)
        return run.execute({} if initial_params is None else initial_params)


def _get_client_state_dir(config: RunConfig, run_dir: RunDir) -> Path | None:
    return run_dir.scratch_path if config.client_state == "files" else None


@contextmanager
def _clear_scratch(run_dir: RunDir) -> Iterator[None]:
    """Leave no temporary files of this or of a killed process in a run's folder."""
    shutil.rmtree(run_dir.scratch_path, ignore_errors=True)
    try:
        yield
    finally:
        shutil.rmtree(run_dir.scratch_path, ignore_errors=True)


@dataclass
class Run:
    """A run under way: what it computes with, its folder, its record and its state.

    `data` are the data before the method's view of them, which is `context.data`.
    """

    config: RunConfig
    run_dir: RunDir
    data: FederatedDataset
    context: EngineContext
    listeners: tuple[Listener, ...]
    should_stop: Callable[[], bool]
    stopwatch: Stopwatch
    shared_choice: engine_choice.ComputeChoice | None = None
    previous_times: Times = field(init=False)
    engine: Engine = field(init=False)
    checkpoints: CheckpointManager = field(init=False)
    meter: CostMeter = field(init=False)
    record: RunRecord = field(init=False)
    round_log: RoundLog = field(init=False)
    state: ServerState = field(init=False)
    scored_rounds: list[RoundEntry] = field(init=False)

    def execute(self, initial_params: InitialParams) -> RunOutcome:
        """Run from the last checkpoint or the first round, to the end or until asked to stop."""
        rounds_done = self._open(initial_params)
        for listener in self.listeners:
            listener.on_run_start(self.record, rounds_done)
        if rounds_done == 0:
            self._compile_ahead()
        try:
            is_complete = self._train()
        except DivergedError as problem:
            self._record_end("diverged", problem=str(problem))
            raise
        if not is_complete:
            self._record_end("interrupted")
            return RunOutcome(self.record, False)
        self._finish()
        for listener in self.listeners:
            listener.on_run_end(self.record)
        return RunOutcome(self.record, True)

    def _record_end(self, status: Status, **changes: Any) -> None:
        """Record the rounds of a run that ends before its last round."""
        rounds = self.round_log.entries
        self._update_record(status=status, rounds=rounds, cost=sum_costs(rounds), **changes)

    def _compile_ahead(self) -> None:
        """Compile before the first round; if that fails, write down that the run is uncompiled."""
        if not self.record.choices.compile:
            return
        with time_phase("compiling"):
            self.engine, choices = engine_choice.compile_ahead_of_run(
                self.config, self.engine, self.state, self.record.choices
            )
        if choices != self.record.choices:
            self._update_record(choices=choices)

    def _open(self, initial_params: InitialParams) -> int:
        """Make or restore engine, state and record, and return the number of rounds done."""
        previous = self.run_dir.read_stored_record() if self.run_dir.has_record() else None
        if previous is None:
            self.engine, new_choices = engine_choice.make_new_engine(
                self.config, self.context, self.run_dir.path, self.shared_choice
            )
        else:
            require_same_data(previous, self.context.data)
            self.engine, new_choices = engine_choice.remake_engine(
                self.config, self.context, self.run_dir.path, previous.choices
            )
        self.round_log = self.run_dir.open_round_log()
        self.checkpoints = CheckpointManager(
            self.run_dir.path, self.round_log, self.run_dir.compute_config_checksum()
        )
        restored = self._restore()
        if restored is None:
            self.state = self._make_first_state(initial_params)
            if previous is not None and previous.started_from is not None:
                check_same_start(previous.started_from, self.state.params)
            rounds_done = 0
            skipped: tuple[str, ...] = ()
        else:
            self.state = restored.state
            rounds_done = restored.rounds_done
            skipped = restored.skipped
        record = previous
        if record is None:
            record = make_initial_record(
                self.config,
                from_config.resolve_hparams(self.config, self.data),
                self.context,
                compute_checksums(self.run_dir.read_config_bytes(), self.data, self.state.params),
                new_choices,
                format_run_command(self.config, self.run_dir.path),
            )
            if self.config.start_from:
                started_from, note = describe_start(self.config.start_from, record.checksums)
                record = record.model_copy(update={"started_from": started_from})
                new_choices = new_choices.model_copy(update={"notes": (*new_choices.notes, note)})
        notes = [*new_choices.notes, *skipped, *describe_version_changes(record.versions)]
        if record.config != self.config:
            other_compile_choice = engine_choice.describe_other_compile_choice(
                self.config, self.context, new_choices
            )
            notes.append(describe_change(record.config, self.config, other_compile_choice))
            record = change_record(record, self.config, self.run_dir.path)
        new_choices = new_choices.model_copy(
            update={"notes": tuple(dict.fromkeys(filter(None, notes)))}
        )
        self.round_log.truncate(rounds_done)
        self.scored_rounds = [entry for entry in self._list_rounds() if entry.scores]
        self.record = record
        self.previous_times = record.times or Times()
        self._update_record(status="running", rounds=[], cost=None, choices=new_choices)
        self.run_dir.remove_model()
        self.meter = make_cost_meter(self.context)
        return rounds_done

    def _restore(self) -> RestoredCheckpoint | None:
        state = self.context.init_server_state()
        client_state = self.context.method.init_client_state(state)
        return self.checkpoints.restore_latest(state, self.context.client_states, client_state)

    def _make_first_state(self, initial_params: InitialParams) -> ServerState:
        """Return the state before the first round, with weights that the runs of a seed share."""
        seeds = (self.config.seed, self.config.data_seed)
        if seeds not in initial_params:
            initial_params[seeds] = self._make_first_params()
        return self.context.init_server_state(initial_params[seeds])

    def _make_first_params(self) -> Params:
        """Return the first weights: those of another run, or drawn from the seed."""
        if self.config.start_from:
            return read_start_params(self.config, self.context)
        pretraining = from_config.get_pretraining_config(self.config)
        return run_pretraining(self.context, pretraining)

    def _update_record(self, model: dict[str, Tensor] | None = None, **changes: Any) -> None:
        times = self.previous_times.add(self.stopwatch.read())
        self.record = self.record.model_copy(update={**changes, "times": times})
        with time_phase("saving"):
            self.run_dir.write_record(self.record, model)

    def _train(self) -> bool:
        """Train to the last round or until asked to stop; return whether the last was reached.

        The last one is earlier if validation clients do not improve any more.
        """
        if self._should_stop_early():  # it was killed between its last round and its end
            return True
        cohort_size = get_cohort_size(self.context, self.config.cohort)
        rounds = run_rounds(self.context, self.engine, self.state, cohort_size, self._should_sync)
        num_left = self.config.rounds - int(self.state.round)
        for finished_round in islice(rounds, num_left):
            self.state = finished_round.state
            rounds_done = finished_round.rounds_done
            entry = self._make_entry(finished_round)
            if entry.scores:
                self.scored_rounds.append(entry)
            is_last = rounds_done == self.config.rounds or self._should_stop_early()
            is_stopping = self.should_stop()
            should_save = is_stopping or is_last or rounds_done % self.config.checkpoint_every == 0
            with time_phase("saving"):
                self.round_log.append(entry, should_sync=should_save)
            for listener in self.listeners:
                listener.on_round_end(entry)
            if should_save:
                client_states = factory.collect_client_states(self.engine)
                with time_phase("saving"):
                    self.checkpoints.save(rounds_done, self.state, client_states)
            if is_last:
                return True
            if is_stopping:
                return False
        return True

    def _should_stop_early(self) -> bool:
        metric = self.context.task.metrics[0]
        info = MetricInfo(name=metric.name, higher_is_better=metric.higher_is_better)
        return has_stopped_improving(self.scored_rounds, info, self.config.patience)

    def _should_sync(self, rounds_done: int) -> bool:
        """Return whether the state after a round is evaluated or saved."""
        if self._is_evaluated(rounds_done):
            return True
        return rounds_done % self.config.checkpoint_every == 0

    def _is_evaluated(self, rounds_done: int) -> bool:
        """Return whether clients are evaluated after a round.

        Without client phases nothing changes before the end, so only the last round is evaluated.
        """
        if rounds_done == self.config.rounds:
            return True
        has_training = bool(self.context.method.client.phases)
        return has_training and rounds_done % (self.config.evaluate_every or 1) == 0

    def _make_entry(self, finished_round: Round) -> RoundEntry:
        scores = None
        if self._is_evaluated(finished_round.rounds_done):
            scores = self._evaluate(finished_round.state)
        return RoundEntry(
            round=finished_round.rounds_done,
            **finished_round.cost._asdict(),
            **self.meter.compute_round_work(finished_round.cohort)._asdict(),
            scores=scores,
        )

    def _evaluate(self, state: ServerState) -> dict[str, dict[str, Figures]]:
        """Return mean scores by group and stage."""
        groups = self._select_groups(EVAL_GROUPS)
        with time_phase("evaluation"):
            scores = evaluate(self.context, self.engine, state, groups, self.config.eval_clients)
        headline = self.context.task.metrics[0].name
        return {
            group: compute_group_means(group_scores, headline)
            for group, group_scores in scores.items()
        }

    def _select_groups(self, groups: tuple[str, ...]) -> tuple[str, ...]:
        """Return the groups that may be evaluated: while tuning, validation clients alone."""
        if self.config.eval_groups == "validation":
            return ("validation",)
        return groups

    def _finish(self) -> None:
        """Evaluate the last state on all clients, and write the model and the record."""
        started_at = time.perf_counter()
        rounds = self._collect_rounds()
        with time_phase("evaluation"):
            final_scores = evaluate_final(
                self.context,
                self.engine,
                self.state,
                self._select_groups(TEST_GROUPS),
                self.config.final_eval_clients,
            )
        module = self.context.task.to_module(self.state.params)
        metric = self.record.metric
        rounds_done = len(rounds)
        self._update_record(
            model=dict(module.state_dict()),
            status="finished",
            rounds=rounds,
            stopped_early_after=rounds_done if rounds_done < self.config.rounds else None,
            scores={group: make_group_scores(final) for group, final in final_scores.items()},
            summary={
                group: summarize_group(final, metric) for group, final in final_scores.items()
            },
            final_window=compute_final_window(rounds, rounds_done),
            convergence=compute_convergence(rounds, rounds_done, metric, self.config.target),
            cost=self._compute_total_cost(rounds, started_at),
        )

    def _list_rounds(self) -> list[RoundEntry]:
        """Return the rounds so far with the scores that a run of this length has from the start.

        Another round was the last one, and so evaluated, if the length has changed.
        """
        return [
            entry if self._is_evaluated(entry.round) else entry.model_copy(update={"scores": None})
            for entry in self.round_log.entries
        ]

    def _collect_rounds(self) -> list[RoundEntry]:
        """Return all rounds, of which the last one has scores."""
        entries = self._list_rounds()
        if entries[-1].scores is None:
            scores = self._evaluate(self.state)
            entries[-1] = entries[-1].model_copy(update={"scores": scores})
        return entries

    def _compute_total_cost(self, rounds: list[RoundEntry], started_at: float) -> RunCost:
        """Return the cost of the run, with the mean cost of personalizing for a client.

        That is averaged over all clients with final scores. Final scoring began at `started_at`.
        """
        sampled_groups = [
            sample_group(self.context, group, self.config.final_eval_clients)
            for group in self._select_groups(TEST_GROUPS)
        ]
        client_ids = np.concatenate(sampled_groups)
        cost_per_client = self.meter.compute_personalize_cost(client_ids)
        return sum_costs(rounds).model_copy(
            update={
                "personalize_gradients": round(float(cost_per_client.gradients.mean()), 1),
                "personalize_flops": round(float(cost_per_client.flops.mean())),
                "scoring_seconds": time.perf_counter() - started_at,
            }
        )
