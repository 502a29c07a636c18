"""The runs of a study in several processes, each on one thread, all of which stop when they are asked to.

A process that works ends when the one that started it does, however that ends: at once, since what is saved is whole.
"""

import os
import queue
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

from fedtailor.engines.measuring import BESIDE
from fedtailor.errors import InputError
from fedtailor.run.session import FirstModels
from fedtailor.run.study.working import Done, Event, Hear, Unit, work

PATIENCE = 0.2
"""Seconds between two looks at whether somebody wants to stop."""


def work_all(units: Sequence[Unit], jobs: int, hear: Hear, stop: Callable[[], bool]) -> Iterator[Done]:
    """What came of the units, as they end, so many at a time; none is begun after somebody has asked to stop."""
    yield from _here(units, hear, stop) if jobs == 1 else _in_processes(units, jobs, hear, stop)


def _here(units: Sequence[Unit], hear: Hear, stop: Callable[[], bool]) -> Iterator[Done]:
    firsts: dict[str, FirstModels] = {}
    for unit in units:
        if stop():
            return
        yield work(unit, hear, stop, firsts.setdefault(unit.scenario, {}))


def _in_processes(units: Sequence[Unit], jobs: int, hear: Hear, stop: Callable[[], bool]) -> Iterator[Done]:
    context = get_context("spawn")
    asked, events = context.Event(), context.Queue()
    reader, writer = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(min(jobs, len(units)) or 1, context, _begin, (asked, events, reader))
    problems: list[BaseException] = []
    with _told({"OMP_NUM_THREADS": "1", BESIDE: str(min(jobs, len(units)) or 1)}), pool:
        try:
            waiting: set[Future[Done | None]] = {pool.submit(_work, unit) for unit in units}
            while waiting:
                ended, waiting = wait(waiting, PATIENCE, FIRST_COMPLETED)
                if stop():
                    asked.set()
                _hear_all(events, hear)
                for future in ended:
                    problem = future.exception()
                    if problem is not None:
                        problems.append(problem)
                    elif (done := future.result()) is not None:
                        yield done
        except BaseException:
            writer.close()  # ends the processes
            raise
    _hear_all(events, hear)
    writer.close()
    _raise_first(problems)


def _hear_all(events: Any, hear: Hear) -> None:
    while True:
        try:
            hear(events.get_nowait())
        except queue.Empty:
            return


def _raise_first(problems: Sequence[BaseException]) -> None:
    """Raises what failed first, after everything else has been done."""
    for problem in problems:
        if isinstance(problem, BrokenProcessPool):
            raise InputError(
                "A process that worked was killed, perhaps for want of memory; what was saved is whole, so the same "
                "command goes on, best with fewer of them (jobs=N)."
            ) from problem
        raise problem


@contextmanager
def _told(words: dict[str, str]) -> Iterator[None]:
    """Has processes that are started meanwhile find this in their environment."""
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
    firsts: dict[str, FirstModels]


def _begin(asked: Any, events: Any, alive: Connection) -> None:
    """Makes a process ready: signals are the first one's to hear, and its end is this one's."""
    import torch

    for kind in (signal.SIGINT, signal.SIGTERM):
        signal.signal(kind, signal.SIG_IGN)
    torch.set_num_threads(1)
    _Process.asked, _Process.events, _Process.firsts = asked, events, {}
    threading.Thread(target=_end_with, args=(alive,), daemon=True).start()


def _end_with(alive: Connection) -> None:
    """Ends this process when nobody is at the other end of the pipe any more."""
    try:
        alive.recv()
    except EOFError:
        os._exit(1)


def _work(unit: Unit) -> Done | None:
    if _Process.asked.is_set():
        return None
    return work(unit, _tell, _Process.asked.is_set, _Process.firsts.setdefault(unit.scenario, {}))


def _tell(event: Event) -> None:
    _Process.events.put(event)
