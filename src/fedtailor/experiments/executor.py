"""The one executor of runs, for comparisons, trials and studies, in one process or in several.

It is given specifications with folders, reports events, and can be asked to stop. A run that has
ended is left as it is, and one that was interrupted is resumed, so that repeating a call always
continues it. Results are read from the folders of runs. Worker processes exit when the process that
started them does, however that ends.
"""

import os
import queue
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal, NamedTuple

from fedtailor.engines.chunking import NUM_PROCESSES_ENV
from fedtailor.engines.distributed.process_group import get_launched_world_size
from fedtailor.errors import DivergedError, InputError, LostRankError, require
from fedtailor.training import from_config
from fedtailor.training.config import RunConfig
from fedtailor.training.engine_choice import ComputeChoice, choose_for_config, recall_choice
from fedtailor.training.record.schema import RoundEntry, RunRecord
from fedtailor.training.resources import check_jobs
from fedtailor.training.run_dir import RunDir
from fedtailor.training.runner import InitialParams, resume_run, start_run

POLL_SECONDS = 0.2
"""Seconds between two checks of whether to stop."""
ENDED_STATUSES = ("finished", "diverged")
"""Statuses of runs that are complete."""
COMPUTE_KEYS = {
    "engine",
    "device",
    "chunk",
    "compile",
    "threads",
    "client_state",
    "checkpoint_every",
    "log",
}
"""Keys that decide how the figures of a run are computed, but not their values."""
KILLED_MESSAGE = (
    "A worker process was killed, perhaps because the machine ran out of memory; what was saved "
    "is intact, so the same command resumes, best with fewer processes (jobs=N)."
)


class PlannedRun(NamedTuple):
    """A run to start or resume; those of one comparison share pre-trained first weights."""

    config: RunConfig
    path: Path  # its folder
    comparison_name: str = ""


class _SeedRun(NamedTuple):
    """A run, with what it shares with the other seeds of its method."""

    run: PlannedRun
    shared_choice: ComputeChoice | None = None  # how all seeds compute; None: the run chooses
    siblings: tuple[Path, ...] = ()  # the folders of the other seeds


class Event(NamedTuple):
    """An event of a run."""

    kind: Literal["began", "round", "finished", "diverged", "stopped"]
    run: PlannedRun
    round: int  # rounds done so far
    entry: RoundEntry | None = None  # the round that has ended
    seconds: float = 0.0  # of this call, once the run has ended or stopped


OnEvent = Callable[[Event], object]
ShouldStop = Callable[[], bool]
InitialParamsByComparison = defaultdict[str, InitialParams]


def execute(
    runs: Sequence[PlannedRun],
    jobs: int = 1,
    on_event: OnEvent = bool,
    should_stop: ShouldStop = bool,
) -> None:
    """Start or resume the runs that have not ended, in this process or in several.

    A run that fails leaves the others alone; the first failure is raised when all others have
    ended.

    Args:
        runs: The runs, in any state.
        jobs: Number of processes; with 1 the runs go one after another in this process.
        on_event: Called with every event of a run.
        should_stop: Whether to stop after the present rounds.
    """
    check_jobs(jobs)
    is_single = jobs == 1 or get_launched_world_size() == 1
    require(
        is_single, f"jobs={jobs} starts processes of its own; leave out either that or torchrun."
    )
    remaining = [run for run in runs if RunDir(run.path).read_status() not in ENDED_STATUSES]
    if not remaining:
        return
    for run in remaining:
        from_config.trust_named_file(run.config)
    seed_runs = _share_choices(runs, remaining)
    problems = (
        _run_in_process(seed_runs, on_event, should_stop)
        if jobs == 1
        else _run_in_pool(seed_runs, min(jobs, len(seed_runs)), on_event, should_stop)
    )
    for problem in problems:
        if isinstance(problem, BrokenProcessPool):
            raise InputError(KILLED_MESSAGE) from problem
        raise problem


def _share_choices(runs: Sequence[PlannedRun], remaining: Sequence[PlannedRun]) -> list[_SeedRun]:
    """Return the remaining runs with a choice for all seeds of a method, made for the first one.

    Other seeds may have other clients, and would be decided differently.
    """
    groups: dict[str, list[PlannedRun]] = defaultdict(list)
    for run in runs:
        groups[_format_without_seed(run)].append(run)
    choices: dict[str, ComputeChoice | None] = {}
    seed_runs = []
    for run in remaining:
        key = _format_without_seed(run)
        seeds = groups[key]
        if len(seeds) == 1 or RunDir(run.path).exists():
            seed_runs.append(_SeedRun(run))
            continue
        if key not in choices:
            choices[key] = _make_shared_choice(seeds)
        siblings = tuple(seed.path for seed in seeds if seed.path != run.path)
        seed_runs.append(_SeedRun(run, choices[key], siblings))
    return seed_runs


def _make_shared_choice(runs: Sequence[PlannedRun]) -> ComputeChoice | None:
    """Return the choice for the seeds of a method; None if one of them has made it, or none can."""
    if any(_has_record(run.path) for run in runs):
        return None
    try:
        return choose_for_config(runs[0].config)
    except Exception:  # the run itself says what is wrong
        return None


def _recall_choice(seed_run: _SeedRun) -> ComputeChoice | None:
    """Return the choice of the first other seed that has begun, else the one made for all."""
    for path in seed_run.siblings:
        if _has_record(path):
            # The rounds of another seed may be damaged, which is no matter of this one.
            return recall_choice(RunDir(path).read_stored_record().choices)
    return seed_run.shared_choice


def _has_record(path: Path) -> bool:
    run_dir = RunDir(path)
    return run_dir.exists() and run_dir.has_record()


def _format_without_seed(run: PlannedRun) -> str:
    return repr((run.comparison_name, run.config.without_seeds()))


def check_same_run(run: PlannedRun, description: str) -> None:
    """Raise an error if a run's folder holds a run with another specification.

    Of a run that has ended, keys that change no figure may differ. `description` says what the
    folder holds.
    """
    run_dir = RunDir(run.path)
    if not run_dir.exists():
        return
    config = run_dir.read_config()
    if config != run.config and run_dir.read_status() in ENDED_STATUSES:
        config = config.model_copy(update=run.config.model_dump(include=COMPUTE_KEYS))
    require(
        config == run.config,
        f"'{run.path}' holds {description}; choose another folder with out=DIR.",
    )


def _run_in_process(
    runs: Sequence[_SeedRun], on_event: OnEvent, should_stop: ShouldStop
) -> list[Exception]:
    """Execute runs one after another in this process, and return their failures."""
    initial_params: InitialParamsByComparison = defaultdict(dict)
    problems: list[Exception] = []
    for run in runs:
        if should_stop():
            break
        try:
            _execute_run(run, on_event, should_stop, initial_params)
        except LostRankError:  # the other ranks are gone for all runs
            raise
        except Exception as problem:
            problems.append(problem)
    return problems


def _run_in_pool(
    runs: Sequence[_SeedRun], jobs: int, on_event: OnEvent, should_stop: ShouldStop
) -> list[BaseException]:
    """Execute runs in several processes, each on one thread, and return their failures."""
    mp_context = get_context("spawn")
    stop_event = mp_context.Event()
    events = mp_context.Queue()
    reader, writer = mp_context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(jobs, mp_context, _init_worker, (stop_event, events, reader))
    problems: list[BaseException] = []
    with _set_environment({"OMP_NUM_THREADS": "1", NUM_PROCESSES_ENV: str(jobs)}), pool:
        try:
            pending: set[Future[None]] = {pool.submit(_run_in_worker, run) for run in runs}
            while pending:
                ended, pending = wait(pending, POLL_SECONDS, FIRST_COMPLETED)
                if should_stop():
                    stop_event.set()
                _drain_events(events, on_event)
                problems += filter(None, (future.exception() for future in ended))
        except BaseException:
            writer.close()  # ends the processes
            raise
    _drain_events(events, on_event)
    writer.close()
    return problems


def _drain_events(events: Any, on_event: OnEvent) -> None:
    while True:
        try:
            on_event(events.get_nowait())
        except queue.Empty:
            return


@contextmanager
def _set_environment(variables: dict[str, str]) -> Iterator[None]:
    """Set variables for processes that are started within the block."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ |= variables
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


class _WorkerState:
    """Objects that a worker process got from the one that started it."""

    stop_event: Any
    events: Any
    initial_params: InitialParamsByComparison


def _init_worker(stop_event: Any, events: Any, parent_pipe: Connection) -> None:
    """Prepare a worker process: it ignores signals and exits with its parent."""
    import torch

    for kind in (signal.SIGINT, signal.SIGTERM):
        signal.signal(kind, signal.SIG_IGN)
    torch.set_num_threads(1)
    _WorkerState.stop_event = stop_event
    _WorkerState.events = events
    _WorkerState.initial_params = defaultdict(dict)
    threading.Thread(target=_exit_with_parent, args=(parent_pipe,), daemon=True).start()


def _exit_with_parent(parent_pipe: Connection) -> None:
    """Exit when the parent closes its end of the pipe, or dies."""
    try:
        parent_pipe.recv()
    except EOFError:
        os._exit(1)


def _run_in_worker(run: _SeedRun) -> None:
    if not _WorkerState.stop_event.is_set():
        _execute_run(
            run,
            _WorkerState.events.put,
            _WorkerState.stop_event.is_set,
            _WorkerState.initial_params,
        )


def _execute_run(
    seed_run: _SeedRun,
    on_event: OnEvent,
    should_stop: ShouldStop,
    initial_params: InitialParamsByComparison,
) -> None:
    """Start or resume a run until it ends or is asked to stop; record it if it diverges."""
    started_at = time.perf_counter()
    run = seed_run.run
    run_dir = RunDir(run.path)
    listeners = (_EventListener(run, on_event),)
    params = initial_params[run.comparison_name]
    kind: Literal["finished", "diverged", "stopped"] = "stopped"
    try:
        if run_dir.exists():
            outcome = resume_run(run.path, listeners, should_stop, params)
        else:
            choice = _recall_choice(seed_run)
            outcome = start_run(run.config, run.path, listeners, should_stop, params, choice)
        num_rounds = len(outcome.record.rounds)
        if outcome.is_finished:
            kind = "finished"
    except DivergedError:
        if not run_dir.has_record():
            raise
        num_rounds = len(run_dir.read_record().rounds)
        kind = "diverged"
    on_event(Event(kind, run, num_rounds, seconds=time.perf_counter() - started_at))


class _EventListener:
    """A listener that reports a run as events."""

    def __init__(self, run: PlannedRun, on_event: OnEvent) -> None:
        self._run = run
        self._on_event = on_event

    def on_run_start(self, record: RunRecord, rounds_done: int) -> None:
        """Report the start of the run."""
        self._on_event(Event("began", self._run, rounds_done))

    def on_round_end(self, entry: RoundEntry) -> None:
        """Report a round."""
        self._on_event(Event("round", self._run, entry.round, entry))

    def on_run_end(self, record: RunRecord) -> None:
        """Report nothing: the end is reported when the run's folder is complete."""
