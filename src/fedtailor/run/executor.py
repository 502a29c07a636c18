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

from fedtailor.engines.measuring import BESIDE
from fedtailor.engines.ranks import started
from fedtailor.errors import DivergedError, InputError, LostRankError, require
from fedtailor.run.files import read_json
from fedtailor.run.record import Folder
from fedtailor.run.session import FirstModels, cost, resume, start
from fedtailor.run.spec import Spec

PATIENCE = 0.2
"""Seconds between two looks at whether to stop."""
ENDED = ("finished", "diverged")
"""Statuses of runs that there is nothing more to do for."""
HOW_COMPUTED = {"engine", "device", "chunk", "compile", "threads", "memory", "checkpoint_every", "log"}
"""Keys that say how a run's figures are computed, and not which they are."""
KILLED = (
    "A process that worked was killed, perhaps for want of memory; what was saved is whole, so the same command goes "
    "on, best with fewer of them (jobs=N)."
)


class Run(NamedTuple):
    """A specification and the folder of its run; runs of a scenario share pre-trained first models."""

    spec: Spec
    place: Path
    scenario: str = ""


class Event(NamedTuple):
    """Something that has happened to a run."""

    kind: Literal["began", "round", "finished", "diverged", "stopped"]
    run: Run
    round: int  # how many rounds the run has behind it
    entry: Mapping[str, Any] = {}  # the record's entry of the round that has ended
    seconds: float = 0.0  # of work since the run began or went on, once it has ended or stopped


Hear = Callable[[Event], object]
Stop = Callable[[], bool]
Shared = defaultdict[str, FirstModels]


def execute(runs: Sequence[Run], jobs: int = 1, hear: Hear = bool, stop: Stop = bool) -> None:
    """Do what is left of the runs, in this process or in several, until all have ended or `stop` asks to stop.

    A run that fails leaves the others alone; the first failure is raised when everything else has been done.
    """
    require(jobs >= 1, f"jobs must be at least 1, got {jobs}.")
    alone = jobs == 1 or started() == 1
    require(alone, f"jobs={jobs} starts processes of its own; leave out either that or torchrun.")
    left = [run for run in runs if status_of(run.place) not in ENDED]
    if not left:
        return
    problems = _here(left, hear, stop) if jobs == 1 else _in_processes(left, min(jobs, len(left)), hear, stop)
    for problem in problems:
        if isinstance(problem, BrokenProcessPool):
            raise InputError(KILLED) from problem
        raise problem


def status_of(place: Path) -> str:
    """Return the status of the run in a folder; "" if it has not begun."""
    path = place / "record.json"
    return str(read_json(path)["status"]) if path.exists() else ""


def refuse_other(run: Run, other: str) -> None:
    """Refuse a folder that holds a run of another specification; one that has ended may have been made elsewhere."""
    if not (run.place / "spec.json").exists():
        return
    found = Folder(run.place).spec()
    if found != run.spec and status_of(run.place) in ENDED:
        found = found.model_copy(update=run.spec.model_dump(include=HOW_COMPUTED))
    require(found == run.spec, f"'{run.place}' holds {other}; choose another folder with out=DIR.")


def _here(runs: Sequence[Run], hear: Hear, stop: Stop) -> list[Exception]:
    """Work on the runs one after another in this process, and return what went wrong."""
    shared: Shared = defaultdict(dict)
    problems: list[Exception] = []
    for run in runs:
        if stop():
            break
        try:
            _work(run, hear, stop, shared)
        except LostRankError:  # the other ranks are gone for all runs
            raise
        except Exception as problem:
            problems.append(problem)
    return problems


def _in_processes(runs: Sequence[Run], jobs: int, hear: Hear, stop: Stop) -> list[BaseException]:
    """Work on the runs in several processes, each on one thread, and return what went wrong."""
    context = get_context("spawn")
    asked = context.Event()
    events = context.Queue()
    reader, writer = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(jobs, context, _begin, (asked, events, reader))
    problems: list[BaseException] = []
    with _environment({"OMP_NUM_THREADS": "1", BESIDE: str(jobs)}), pool:
        try:
            waiting: set[Future[None]] = {pool.submit(_work_there, run) for run in runs}
            while waiting:
                ended, waiting = wait(waiting, PATIENCE, FIRST_COMPLETED)
                if stop():
                    asked.set()
                _hear_all(events, hear)
                problems += filter(None, (future.exception() for future in ended))
        except BaseException:
            writer.close()  # ends the processes
            raise
    _hear_all(events, hear)
    writer.close()
    return problems


def _hear_all(events: Any, hear: Hear) -> None:
    while True:
        try:
            hear(events.get_nowait())
        except queue.Empty:
            return


@contextmanager
def _environment(words: dict[str, str]) -> Iterator[None]:
    """Give these variables to processes that are started meanwhile."""
    before = {name: os.environ.get(name) for name in words}
    os.environ |= words
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


class _Process:
    """What a process that works knows of the one that started it."""

    asked: Any
    events: Any
    shared: Shared


def _begin(asked: Any, events: Any, alive: Connection) -> None:
    """Make a process ready: signals are for the first one to hear, and its end is this one's."""
    import torch

    for kind in (signal.SIGINT, signal.SIGTERM):
        signal.signal(kind, signal.SIG_IGN)
    torch.set_num_threads(1)
    _Process.asked = asked
    _Process.events = events
    _Process.shared = defaultdict(dict)
    threading.Thread(target=_end_with, args=(alive,), daemon=True).start()


def _end_with(alive: Connection) -> None:
    """End this process when the other end of the pipe has been closed."""
    try:
        alive.recv()
    except EOFError:
        os._exit(1)


def _work_there(run: Run) -> None:
    if not _Process.asked.is_set():
        _work(run, _Process.events.put, _Process.asked.is_set, _Process.shared)


def _work(run: Run, hear: Hear, stop: Stop, shared: Shared) -> None:
    """Start a run or go on with it, until it has ended or is asked to stop; write down that it diverged."""
    began = time.perf_counter()
    folder = Folder(run.place)
    go = partial(resume, run.place) if (run.place / "spec.json").exists() else partial(start, run.spec, run.place)
    try:
        outcome = go((_Telling(run, hear),), stop, shared[run.scenario])
        kind: Literal["finished", "diverged", "stopped"] = "finished" if outcome.finished else "stopped"
    except DivergedError as problem:
        if not folder.begun():
            raise
        folder.write(folder.record() | {"status": "diverged", "problem": str(problem), "cost": cost(folder)})
        kind = "diverged"
    hear(Event(kind, run, len(folder.rounds()), seconds=time.perf_counter() - began))


class _Telling:
    """A listener of a run that tells of it in events."""

    def __init__(self, run: Run, hear: Hear) -> None:
        self._run = run
        self._hear = hear

    def began(self, record: Mapping[str, Any], done: int) -> None:
        """Tell that the run begins."""
        self._hear(Event("began", self._run, done))

    def ended_round(self, entry: Mapping[str, Any]) -> None:
        """Tell of a round."""
        self._hear(Event("round", self._run, entry["round"], entry))

    def finished(self, record: Mapping[str, Any]) -> None:
        """Leave it to the end of the work to tell that the run has finished."""
