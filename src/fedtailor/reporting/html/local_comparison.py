"""Each client against itself when it learns alone: runs of the method `local` with the same seed."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from fedtailor.reporting.html.grouping import Record, ReportLine, get_seed

LOCAL_METHOD = "local"


class LocalComparison(NamedTuple):
    """Of the clients of all seeds, how many fare better, the same and worse than alone."""

    better: int
    same: int
    worse: int

    @property
    def of(self) -> int:
        """How many could be compared."""
        return sum(self)


def find_local_line(lines: Sequence[ReportLine]) -> int | None:
    """The line of clients who learn alone; None where there is none with scores."""
    found = (
        line_idx
        for line_idx, line in enumerate(lines)
        if line.method == LOCAL_METHOD and any(_select_scored_runs(line))
    )
    return next(found, None)


def compare_with_local(
    line: ReportLine, local_line: ReportLine, group: str, metric_name: str, higher_is_better: bool
) -> LocalComparison:
    """Counts clients, each after personalizing, with its own figure after learning alone."""
    reference = _collect_by_client(local_line, group, metric_name)
    own = _collect_by_client(line, group, metric_name)
    sign = 1 if higher_is_better else -1
    gains = [
        sign * (value - reference[client]) for client, value in own.items() if client in reference
    ]
    better, worse = sum(gain > 0 for gain in gains), sum(gain < 0 for gain in gains)
    return LocalComparison(better, len(gains) - better - worse, worse)


def _collect_by_client(
    line: ReportLine, group: str, metric_name: str
) -> dict[tuple[Any, str], float]:
    """(seed, id) -> figure, of those who could be tested."""
    return {
        (get_seed(run), client): value
        for run in _select_scored_runs(line)
        if group in run["scores"]
        for client, value in zip(
            run["scores"][group]["ids"], run["scores"][group]["after"][metric_name], strict=True
        )
        if value is not None
    }


def _select_scored_runs(line: ReportLine) -> list[Record]:
    return [run for run in line.runs if run["scores"]]
