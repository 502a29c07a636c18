"""Several runs of one method side by side, their clients in one stack where that is possible."""

from collections.abc import Callable, Sequence
from threading import Event, Thread
from typing import TypeVar

from fedtailor import engines
from fedtailor.engines import Party

T = TypeVar("T")


def abreast(jobs: Sequence[Callable[[Party | None], T]]) -> list[T]:
    """What the jobs return, each in a thread of its own; only one is ever at work. One that fails ends itself alone.

    The first failure is raised when all have ended.
    """
    if len(jobs) == 1:
        return [jobs[0](None)]
    party, results, failures = engines.party(len(jobs)), dict[int, T](), dict[int, BaseException]()

    def go(number: int, begun: Event) -> None:
        with party.meeting.turn:
            begun.set()
            try:
                results[number] = jobs[number](party)
            except BaseException as problem:
                failures[number] = problem
            finally:
                party.meeting.leave()

    threads = []
    for number in range(len(jobs)):
        begun = Event()
        threads.append(Thread(target=go, args=(number, begun), daemon=True))
        threads[-1].start()
        begun.wait()  # so that they begin in their order
    for thread in threads:
        while thread.is_alive():
            thread.join(0.2)  # so that a signal is heard meanwhile
    for problem in failures.values():
        raise problem
    return [results[number] for number in range(len(jobs))]


def in_groups(things: Sequence[T], key: Callable[[T], object], most: int) -> list[list[T]]:
    """Neighbours with the same key together, so many at most."""
    groups: list[list[T]] = []
    for thing in things:
        if groups and len(groups[-1]) < most and key(groups[-1][0]) == key(thing):
            groups[-1].append(thing)
        else:
            groups.append([thing])
    return groups
