"""The figures of a comparison, and which of its methods are best: one definition for every page.

A figure of a method is the mean over its seeds of the figure that stands in the records: after the
last round, over all clients that were scored. The table of the terminal, the report and the tables
of studies take their figures and their words from here.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fedtailor.errors import join_items
from fedtailor.evaluation.ranking import (
    Standing,
    Verdict,
    compare_with_best,
    describe_standing,
)
from fedtailor.training.record.schema import RunRecord, StageSummary, has_same_data

HEADLINE = "acc_macro"
"""The field of a `StageSummary` by which methods are compared."""

ONE_SEED_SENTENCE = "One seed cannot tell which method is best; take five (seeds=0,1,2,3,4)."

LIKE_THESE_BY_SPLITS = "for clients like these, as each seed has a split of its own"
LIKE_THESE_BY_CLIENTS = "for clients like these, as intervals allow for the sample of clients"
THESE_CLIENTS = "for these clients on this split, not for others"

SeedFigures = dict[int, float]
"""A figure by seed; NaN where a run has none."""


class Estimate(NamedTuple):
    """A figure over seeds."""

    mean: float  # over the seeds that have it; NaN without any
    seed_std: float | None  # sample standard deviation over seeds; None for fewer than two
    num_missing: int = 0  # runs that have ended without it


class GroupStandings(NamedTuple):
    """The standing of each method after personalizing, on one group of clients."""

    standings: dict[str, Standing]  # by label; empty if there is nothing to compare
    failures: Mapping[str, str]  # what kept seeds of a method out, by label
    population: str  # the clients that the standings speak of


def get_figure(record: RunRecord, group: str, stage: str, field: str = HEADLINE) -> float:
    """Return a figure of a run; NaN if it is unknown.

    Args:
        record: The run.
        group: A group of clients.
        stage: "before", "after" or a number of passes of personalizing.
        field: A field of `StageSummary`.
    """
    summary = get_summary(record, group, stage)
    value = None if summary is None else getattr(summary, field)
    return math.nan if value is None else float(value)


def get_summary(record: RunRecord, group: str, stage: str) -> StageSummary | None:
    """Return the summary of a group at a stage, or None if it was not scored."""
    return (record.summary or {}).get(group, {}).get(stage)


def estimate(values: Sequence[float]) -> Estimate:
    """Return the mean and the spread over the seeds that have a value; the others have NaN."""
    known = [value for value in values if math.isfinite(value)]
    num_missing = len(values) - len(known)
    if not known:
        return Estimate(math.nan, None, num_missing)
    seed_std = float(np.std(known, ddof=1)) if len(known) > 1 else None
    return Estimate(float(np.mean(known)), seed_std, num_missing)


def estimate_figure(
    records: Sequence[RunRecord], group: str, stage: str, field: str = HEADLINE
) -> Estimate:
    """Return a figure of a method over the seeds of its ended runs.

    Args:
        records: The runs of one method.
        group: A group of clients.
        stage: "before", "after" or a number of passes of personalizing.
        field: A field of `StageSummary`.
    """
    return estimate([get_figure(record, group, stage, field) for record in list_ended(records)])


def list_ended(records: Sequence[RunRecord]) -> list[RunRecord]:
    """Return the runs that have finished or diverged."""
    return [record for record in records if record.status in ("finished", "diverged")]


def describe_failures(records: Sequence[RunRecord], group: str = "") -> str:
    """Return how many seeds of a method have no figure, "" if all have one.

    Args:
        records: The runs of one method.
        group: The group of clients whose figures count, besides those of runs that diverged.
    """
    ended = list_ended(records)
    diverged_seeds = [record for record in ended if record.status == "diverged"]
    lost_seeds = [
        record
        for record in ended
        if record.status == "finished" and _has_lost_figure(record, group)
    ]
    parts = []
    if diverged_seeds:
        parts.append(f"{_count_seeds(len(diverged_seeds), len(ended))} diverged")
    if lost_seeds:
        parts.append(
            f"{_count_seeds(len(lost_seeds), len(ended))} diverged for a client in personalizing"
        )
    return " and ".join(parts)


def _has_lost_figure(record: RunRecord, group: str) -> bool:
    """Return whether clients were tested, but have no mean, since the model of one diverged."""
    summary = get_summary(record, group, "after")
    return summary is not None and summary.tested > 0 and summary.acc_macro is None


def _count_seeds(count: int, total: int) -> str:
    return f"{count} of {total} seed{'s' if total > 1 else ''}"


def compare_methods(
    records_by_label: Mapping[str, Sequence[RunRecord]], group: str
) -> GroupStandings:
    """Return which methods are best after personalizing, on a group of clients.

    Args:
        records_by_label: The runs of each method.
        group: The group.
    """
    ended = {label: list_ended(records) for label, records in records_by_label.items()}
    all_records = [record for records in ended.values() for record in records]
    failures = {label: describe_failures(records, group) for label, records in ended.items()}
    failures = {label: failure for label, failure in failures.items() if failure}
    if not all_records:
        return GroupStandings({}, failures, "")
    higher_is_better = all_records[0].metric.higher_is_better
    figures = {label: _collect_by_seed(records, group) for label, records in ended.items()}
    client_scores = None
    if _needs_client_noise(all_records, group):
        client_scores = _collect_client_scores(ended, group)
    standings = compare_with_best(figures, higher_is_better, client_scores)
    withhold_best(standings, failures)
    return GroupStandings(standings, failures, describe_population(all_records, group))


def withhold_best(standings: dict[str, Standing], failures: Mapping[str, str]) -> None:
    """Let no method with failures be the best: seeds that ended well do not speak for the others.

    Args:
        standings: The standings of all methods, which are changed.
        failures: What kept seeds of a method out, by its label.
    """
    for label in failures:
        if label in standings and standings[label].verdict == Verdict.BEST:
            standings[label] = standings[label]._replace(verdict=Verdict.MAY_BE_BEST)


def describe_population(records: Sequence[RunRecord], group: str) -> str:
    """Return the clients that a comparison speaks of, as the end of a sentence."""
    seeds = {record.config.seed for record in records}
    if len(seeds) > 1 and not has_same_data(records):
        return LIKE_THESE_BY_SPLITS
    if _needs_client_noise(records, group):
        return LIKE_THESE_BY_CLIENTS
    return THESE_CLIENTS


def _needs_client_noise(records: Sequence[RunRecord], group: str) -> bool:
    """Return whether all seeds score the same unseen clients, a sample of those to come."""
    return group == "unseen" and has_same_data(records)


def _collect_by_seed(records: Sequence[RunRecord], group: str) -> SeedFigures:
    figures: SeedFigures = {}
    for record in records:
        figures.setdefault(record.config.seed, get_figure(record, group, "after"))
    return figures


def _collect_client_scores(
    records_by_label: Mapping[str, Sequence[RunRecord]], group: str
) -> dict[str, dict[int, np.ndarray]] | None:
    """Return the scores of clients by method and seed; None if other clients were scored."""
    client_scores: dict[str, dict[int, np.ndarray]] = {}
    all_ids: set[tuple[str, ...]] = set()
    for label, records in records_by_label.items():
        client_scores[label] = {}
        for record in records:
            scores = (record.scores or {}).get(group)
            if scores is None:
                continue
            all_ids.add(tuple(scores.ids))
            values = scores.get_values("after", record.metric.name)
            client_scores[label].setdefault(record.config.seed, values)
    return client_scores if len(all_ids) == 1 else None


def describe_group(
    found: GroupStandings, format_score: Callable[[float], str], num_seeds: int
) -> list[str]:
    """Return what the scores of a group say: which methods are best, and what is missing.

    Args:
        found: The standings.
        format_score: Writes a difference of scores.
        num_seeds: Seeds of the comparison.
    """
    sentences = describe_comparison(found, format_score)
    if found.standings and num_seeds == 1:
        sentences = [ONE_SEED_SENTENCE]
    for label, failure in found.failures.items():
        sentences.append(f"{label}: {failure}; its mean is over the others.")
    return sentences


def describe_comparison(found: GroupStandings, format_score: Callable[[float], str]) -> list[str]:
    """Return sentences on which methods are best, and how far the others are behind.

    Args:
        found: The standings.
        format_score: Writes a difference of scores.
    """
    if not found.standings:
        return []
    labels_by_verdict: dict[Verdict, list[str]] = {verdict: [] for verdict in Verdict}
    for label, standing in found.standings.items():
        labels_by_verdict[standing.verdict].append(label)
    sentences = []
    best = labels_by_verdict[Verdict.BEST]
    if best:
        sentences.append(f"Best {found.population}: {best[0]}.")
    candidates = labels_by_verdict[Verdict.MAY_BE_BEST]
    if candidates:
        sentences.append(
            f"Which is best {found.population}, these runs cannot tell: it may be "
            f"{join_items(candidates, 'or')}."
        )
        sentences += _describe_what_would_tell(found, candidates)
    behind = labels_by_verdict[Verdict.BEHIND]
    if behind:
        texts = [_describe_behind(label, found.standings[label], format_score) for label in behind]
        sentences.append(f"Behind the best: {', '.join(texts)}.")
    return sentences


def _describe_what_would_tell(found: GroupStandings, labels: Sequence[str]) -> list[str]:
    """Return what would decide between methods that may be best, if that is known."""
    standings = [found.standings[label] for label in labels]
    if any(standing.needs_clients for standing in standings):
        return ["More clients would tell, more seeds alone would not."]
    more_seeds = [standing.more_seeds for standing in standings]
    known = [count for count in more_seeds if count is not None]
    if not known or len(known) < len(more_seeds):
        return []
    noun = "seed" if max(known) == 1 else "seeds"
    return [f"About {max(known)} more {noun} would tell."]


def _describe_behind(label: str, standing: Standing, format_score: Callable[[float], str]) -> str:
    words = describe_standing(standing, format_score)
    return f"{label} {words.removeprefix('behind the best ')}"


def format_distance(standing: Standing | None, format_score: Callable[[float], str]) -> str:
    """Return the interval of a method's distance to the best, as in "0.4 to 2.0"; "" if unknown.

    A question mark says that the method may be the best.
    """
    if standing is None:
        return ""
    if standing.verdict == Verdict.BEST:
        return "best"
    mark = " ?" if standing.verdict == Verdict.MAY_BE_BEST else ""
    if not math.isfinite(standing.high):
        if standing.verdict == Verdict.MAY_BE_BEST:
            return "?"
        return f"{format_score(standing.low)} or more"
    return f"{format_score(standing.low)} to {format_score(standing.high)}{mark}"
