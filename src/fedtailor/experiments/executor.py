"""The one executor: runs of a comparison, trials of a tuning and scenarios of a study, here or in several processes.

It is given specifications with folders, tells what happens, and can be asked to stop. A run that has ended is left as
it is, and one that was interrupted is resumed, so that the same call again always goes on. What came of a run is read
from its folder. A process that works ends when the one that started it does, however that ends.
"""

import os
import queue
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal, NamedTuple

from fedtailor.engines.chunking import NUM_PROCESSES_ENV
from fedtailor.engines.distributed.process_group import get_launched_world_size
from fedtailor.errors import DivergedError, InputError, LostRankError, require
from fedtailor.storage.files import read_json
from fedtailor.training.config import RunConfig
from fedtailor.training.run_dir import RunDir
from fedtailor.training.runner import InitialParams, resume_run, start_run, sum_costs

POLL_SECONDS = 0.2
"""Seconds between two looks at whether to stop."""
ENDED_STATUSES = ("finished", "diverged")
"""Statuses of runs that there is nothing more to do for."""
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
"""Keys that say how a run's figures are computed, and not which they are."""
KILLED_MESSAGE = (
    "A process that worked was killed, perhaps for want of memory; what was saved is whole, so the same command goes "
    "on, best with fewer of them (jobs=N)."
)


class Run(NamedTuple):
    """A specification and the folder of its run; runs of a scenario share pre-trained first models."""

    config: RunConfig
    path: Path
    scenario: str = ""


class Event(NamedTuple):
    """Something that has happened to a run."""

    kind: Literal["began", "round", "finished", "diverged", "stopped"]
    run: Run
    round: int  # how many rounds the run has behind it
    entry: Mapping[str, Any] = {}  # the record's entry of the round that has ended
    seconds: float = 0.0  # of work since the run began or went on, once it has ended or stopped


OnEvent = Callable[[Event], object]
ShouldStop = Callable[[], bool]
ScenarioInitialParams = defaultdict[str, InitialParams]


def execute(
    runs: Sequence[Run], jobs: int = 1, on_event: OnEvent = bool, should_stop: ShouldStop = bool
) -> None:
    """Do what is left of the runs, in this process or in several, until all have ended or `stop` asks to stop.

    A run that fails leaves the others alone; the first failure is raised when everything else has been done.
    """
    require(jobs >= 1, f"jobs must be at least 1, got {jobs}.")
    is_single = jobs == 1 or get_launched_world_size() == 1
    require(
        is_single, f"jobs={jobs} starts processes of its own; leave out either that or torchrun."
    )
    remaining = [run for run in runs if read_status(run.path) not in ENDED_STATUSES]
    if not remaining:
        return
    problems = (
        _run_in_process(remaining, on_event, should_stop)
        if jobs == 1
        else _run_in_pool(remaining, min(jobs, len(remaining)), on_event, should_stop)
    )
    for problem in problems:
        if isinstance(problem, BrokenProcessPool):
            raise InputError(KILLED_MESSAGE) from problem
        raise problem


def read_status(run_path: Path) -> str:
    """Return the status of the run in a folder; "" if it has not begun."""
    path = run_path / "record.json"
    return str(read_json(path)["status"]) if path.exists() else ""


def check_same_run(run: Run, description: str) -> None:
    """Refuse a folder that holds a run of another specification; one that has ended may have been made elsewhere."""
    if not (run.path / "config.json").exists():
        return
    found_config = RunDir(run.path).read_config()
    if found_config != run.config and read_status(run.path) in ENDED_STATUSES:
        found_config = found_config.model_copy(update=run.config.model_dump(include=COMPUTE_KEYS))
    require(
        found_config == run.config,
        f"'{run.path}' holds {description}; choose another folder with out=DIR.",
    )


def _run_in_process(
    runs: Sequence[Run], on_event: OnEvent, should_stop: ShouldStop
) -> list[Exception]:
    """Work on the runs one after another in this process, and return what went wrong."""
    initial_params: ScenarioInitialParams = defaultdict(dict)
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
    runs: Sequence[Run], jobs: int, on_event: OnEvent, should_stop: ShouldStop
) -> list[BaseException]:
    """Work on the runs in several processes, each on one thread, and return what went wrong."""
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
    """Give these variables to processes that are started meanwhile."""
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
    """What a process that works knows of the one that started it."""

    stop_event: Any
    events: Any
    initial_params: ScenarioInitialParams


def _init_worker(stop_event: Any, events: Any, parent_pipe: Connection) -> None:
    """Make a process ready: signals are for the first one to hear, and its end is this one's."""
    import torch

    for kind in (signal.SIGINT, signal.SIGTERM):
        signal.signal(kind, signal.SIG_IGN)
    torch.set_num_threads(1)
    _WorkerState.stop_event = stop_event
    _WorkerState.events = events
    _WorkerState.initial_params = defaultdict(dict)
    threading.Thread(target=_exit_with_parent, args=(parent_pipe,), daemon=True).start()


def _exit_with_parent(parent_pipe: Connection) -> None:
    """End this process when the other end of the pipe has been closed."""
    try:
        parent_pipe.recv()
    except EOFError:
        os._exit(1)


def _run_in_worker(run: Run) -> None:
    if not _WorkerState.stop_event.is_set():
        _execute_run(
            run,
            _WorkerState.events.put,
            _WorkerState.stop_event.is_set,
            _WorkerState.initial_params,
        )


def _execute_run(
    run: Run, on_event: OnEvent, should_stop: ShouldStop, initial_params: ScenarioInitialParams
) -> None:
    """Start a run or go on with it, until it has ended or is asked to stop; write down that it diverged."""
    started_at = time.perf_counter()
    run_dir = RunDir(run.path)
    launch = (
        partial(resume_run, run.path)
        if (run.path / "config.json").exists()
        else partial(start_run, run.config, run.path)
    )
    try:
        outcome = launch(
            (_EventListener(run, on_event),), should_stop, initial_params[run.scenario]
        )
        kind: Literal["finished", "diverged", "stopped"] = (
            "finished" if outcome.is_finished else "stopped"
        )
    except DivergedError as problem:
        if not run_dir.has_record():
            raise
        run_dir.write_record(
            run_dir.read_record()
            | {"status": "diverged", "problem": str(problem), "cost": sum_costs(run_dir)}
        )
        kind = "diverged"
    on_event(Event(kind, run, len(run_dir.read_rounds()), seconds=time.perf_counter() - started_at))


class _EventListener:
    """A listener of a run that tells of it in events."""

    def __init__(self, run: Run, on_event: OnEvent) -> None:
        self._run = run
        self._on_event = on_event

    def on_run_start(self, record: Mapping[str, Any], rounds_done: int) -> None:
        """Tell that the run begins."""
        self._on_event(Event("began", self._run, rounds_done))

    def on_round_end(self, entry: Mapping[str, Any]) -> None:
        """Tell of a round."""
        self._on_event(Event("round", self._run, entry["round"], entry))

    def on_run_end(self, record: Mapping[str, Any]) -> None:
        """Leave it to the end of the work to tell that the run has finished."""
