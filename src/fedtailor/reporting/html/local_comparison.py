"""Comparison of each client with itself under local training: the method `local`, same seed."""

from collections.abc import Sequence
from typing import NamedTuple

from fedtailor.reporting.html.figures import list_scored_runs
from fedtailor.reporting.html.grouping import ReportLine
from fedtailor.training.config import is_local_baseline


class LocalComparison(NamedTuple):
    """Numbers of clients, over all seeds, that do better, the same and worse than locally."""

    better: int
    same: int
    worse: int


def find_local_line(lines: Sequence[ReportLine]) -> int | None:
    """Return the index of the line of local training; None if there is none with final scores."""
    for line_idx, line in enumerate(lines):
        has_scores = any(run.scores is not None for run in line.runs)
        if is_local_baseline(line.method) and has_scores:
            return line_idx
    return None


def compare_with_local(
    line: ReportLine, local_line: ReportLine, group: str, metric_name: str, higher_is_better: bool
) -> LocalComparison:
    """Compare each client's score after personalizing with its own under local training.

    Args:
        line: The method to compare.
        local_line: The runs of local training.
        group: The group of clients; those without test examples are left out.
        metric_name: The score.
        higher_is_better: For this score.
    """
    local_scores = _collect_by_client(local_line, group, metric_name)
    scores = _collect_by_client(line, group, metric_name)
    sign = 1 if higher_is_better else -1
    gains = [
        sign * (score - local_scores[client])
        for client, score in scores.items()
        if client in local_scores
    ]
    better = sum(gain > 0 for gain in gains)
    worse = sum(gain < 0 for gain in gains)
    return LocalComparison(better, len(gains) - better - worse, worse)


def _collect_by_client(
    line: ReportLine, group: str, metric_name: str
) -> dict[tuple[int, str], float]:
    """Return the scores after personalizing of the tested clients, by (seed, client id)."""
    scores = {}
    for run, group_scores in list_scored_runs(line, group):
        for client, score in zip(group_scores.ids, group_scores.after[metric_name], strict=True):
            if score is not None:
                scores[run.config.seed, client] = score
    return scores
