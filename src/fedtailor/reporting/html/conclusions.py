"""What the table of the report says in words: which methods are best, and what is missing."""

from collections.abc import Sequence

from fedtailor.reporting import results
from fedtailor.reporting.html.figures import compare_lines, make_score_format
from fedtailor.reporting.html.grouping import HeadlineMetric, ReportLine, list_runs
from fedtailor.reporting.times import describe_times

TITLES = {
    "participating": "Participating clients",
    "unseen": "Unseen clients",
    "validation": "Validation clients",
}


def list_conclusions(
    lines: Sequence[ReportLine], metric: HeadlineMetric
) -> list[tuple[str, list[str]]]:
    """Return a heading and sentences for each group with anything to say, and for the time."""
    conclusions = []
    for group, found in compare_lines(lines).items():
        sentences = results.describe_group(found, make_score_format(metric), count_seeds(lines))
        if sentences:
            conclusions.append((TITLES[group], sentences))
    times = describe_times([run for _, run in list_runs(lines)])
    if times:
        conclusions.append(("Time", times))
    return conclusions


def count_seeds(lines: Sequence[ReportLine]) -> int:
    """Return the number of seeds that any run has."""
    return len({run.config.seed for _, run in list_runs(lines)})
