"""Each client against itself when it learns alone: runs of the method `local` with the same seed."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from fedtailor.run.report.grouping import Line, Record, seed_of

ALONE = "local"


class Against(NamedTuple):
    """Of the clients of all seeds, how many fare better, the same and worse than alone."""

    better: int
    same: int
    worse: int

    @property
    def of(self) -> int:
        """How many could be compared."""
        return sum(self)


def alone_in(lines: Sequence[Line]) -> int | None:
    """The line of clients who learn alone; None where there is none with scores."""
    found = (number for number, line in enumerate(lines) if line.method == ALONE and any(_scores(line)))
    return next(found, None)


def against(line: Line, alone: Line, group: str, figure: str, higher_is_better: bool) -> Against:
    """Counts clients, each after personalising, with its own figure after learning alone."""
    reference = _by_client(alone, group, figure)
    own = _by_client(line, group, figure)
    sign = 1 if higher_is_better else -1
    gains = [sign * (value - reference[client]) for client, value in own.items() if client in reference]
    better, worse = sum(gain > 0 for gain in gains), sum(gain < 0 for gain in gains)
    return Against(better, len(gains) - better - worse, worse)


def _by_client(line: Line, group: str, figure: str) -> dict[tuple[Any, str], float]:
    """(seed, id) -> figure, of those who could be tested."""
    return {
        (seed_of(run), client): value
        for run in _scores(line)
        if group in run["scores"]
        for client, value in zip(run["scores"][group]["ids"], run["scores"][group]["after"][figure], strict=True)
        if value is not None
    }


def _scores(line: Line) -> list[Record]:
    return [run for run in line.runs if run["scores"]]
