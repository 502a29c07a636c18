"""Which methods of a part are best, by the rule of all tables, from its record.

They are said only of records with the scores of every client beside them.
"""

from collections.abc import Mapping, Sequence
from math import nan

from fedtailor.evaluation.ranking import compare_with_best
from fedtailor.reporting.results import (
    LIKE_THESE_BY_CLIENTS,
    LIKE_THESE_BY_SPLITS,
    THESE_CLIENTS,
    GroupStandings,
    withhold_best,
)
from fedtailor.studies.client_scores import ClientScores, count_splits, stack_scores
from fedtailor.studies.config import Part, Scalar
from fedtailor.studies.record import PartRecord, RunSummary


def compare_runs(
    record: PartRecord, part: Part, scores: ClientScores, value: Scalar | None
) -> GroupStandings:
    """Return which methods of a part are best in its headline.

    Args:
        record: The record of the part.
        part: The part.
        scores: The scores of clients of its runs.
        value: The varied value whose runs are compared; None if nothing varies.
    """
    runs = [run for run in record.runs if run.value == value]
    figures: dict[str, dict[int, float]] = {}
    for run in runs:
        figures.setdefault(run.name, {})[run.seed] = _get_figure(run, part)
    failures = _describe_failures(runs)
    client_scores = None
    is_unseen = part.column.startswith("unseen")
    has_one_split = count_splits(scores, value) == 1
    if is_unseen and has_one_split:
        client_scores = stack_scores(scores, value, part.column)
    standings = compare_with_best(figures, record.metric.higher_is_better, client_scores)
    withhold_best(standings, failures)
    population = THESE_CLIENTS
    if not has_one_split:
        population = LIKE_THESE_BY_SPLITS
    elif client_scores is not None:
        population = LIKE_THESE_BY_CLIENTS
    return GroupStandings(standings, failures, population)


def _get_figure(run: RunSummary, part: Part) -> float:
    if part.column not in run.figures:
        return nan
    value = run.figures[part.column].get_statistic(part.statistic)
    return nan if value is None else value


def _describe_failures(runs: Sequence[RunSummary]) -> Mapping[str, str]:
    failures = {}
    for name in dict.fromkeys(run.name for run in runs):
        statuses = [run.status for run in runs if run.name == name]
        num_diverged = statuses.count("diverged")
        if num_diverged:
            failures[name] = f"{num_diverged} of {len(statuses)} seeds diverged"
    return failures
