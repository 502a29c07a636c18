"""The tables that a comparison prints: scores by group of clients, and what each method costs.

They take 100 columns, or 80 without the less important figures. The HTML report has tables of its
own in `html/figures.py`, with the same figures.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from fedtailor.errors import make_printable
from fedtailor.evaluation.client_statistics import compute_share_better
from fedtailor.evaluation.finetune_budgets import describe_finetune_budgets
from fedtailor.reporting.results import (
    HEADLINE,
    GroupStandings,
    compare_methods,
    describe_group,
    estimate,
    estimate_figure,
    format_distance,
    get_summary,
    list_ended,
)
from fedtailor.training.config import is_fine_tuned_baseline, is_local_baseline
from fedtailor.training.record.schema import RunRecord, has_same_data

MIN_SEEDS = 3
"""The number of seeds from which on a spread over seeds means something."""
TABLE_WIDTH = 100
"""Columns of the whole tables; in a narrower terminal some figures are left out."""
GROUP_TITLES = {
    "participating": "Participating clients, who took part in training",
    "unseen": "Unseen clients, who took no part in training",
    "validation": "Validation clients",
}

_DISTANCE = "behind\nthe best"
_SCORE_HEADINGS = (
    "before",
    "after",
    _DISTANCE,
    "1",
    "5",
    "F1",
    "std",
    "worst\ntenth",
    "beats\nlocal",
)
_WIDE_HEADINGS = ("1", "5", "F1")
"""Columns that only the whole tables have."""
_COST_HEADINGS = (
    "MB",
    "training\ngradients",
    "gradients to\npersonalize",
    "training\ns",
    "evaluation\ns",
    "rest\ns",
    "all\ns",
)
_SCORES_NOTE = (
    "{metric}, before and after personalizing: mean over clients after the last round{spread}. "
    "behind the best: interval of the distance to the best method, ? if the method may be the best "
    "itself. 1 and 5: after 1 and 5 epochs of personalizing. F1: over classes. std: over clients. "
    "worst tenth: mean over the worst tenth of clients. beats local: % of clients that do better "
    "than with local training."
)
_COSTS_NOTE = (
    "Costs of a run, averaged over seeds: MB down and up and gradients of clients in all rounds; "
    "gradients to personalize the model for one client; seconds of training, of evaluation with "
    "its personalizing, of everything else (data, compiling, saving), and of all."
)

Cells = dict[str, str]
"""Texts of a row by the heading of their column."""
RecordsByMethod = Mapping[str, Sequence[RunRecord]]


def build_tables(records: Sequence[RunRecord], title: str, width: int = TABLE_WIDTH) -> Group:
    """Return the tables of a comparison: scores for each group of clients, and costs.

    Args:
        records: Runs that have ended; those of one name are the seeds of one method.
        title: Stands above the tables.
        width: Columns of the terminal.
    """
    records_by_method: dict[str, list[RunRecord]] = {}
    for record in records:
        records_by_method.setdefault(record.name, []).append(record)
    parts: list[Table | Text] = [_make_text(title, style="bold")]
    for group in _list_groups(records):
        parts.append(_make_text(_make_group_title(records_by_method, group), style="italic"))
        parts.append(_build_score_table(records_by_method, group, width))
        parts += _describe_group(records_by_method, group)
    parts.append(_make_text(_build_scores_note(records)))
    parts.append(_make_text("Costs", style="italic"))
    parts.append(_build_cost_table(records_by_method))
    parts.append(_make_text(_COSTS_NOTE))
    return Group(*parts)


def _make_text(text: str, style: str = "") -> Text:
    return Text(f"\n{make_printable(text)}", style=style)


def _list_groups(records: Sequence[RunRecord]) -> list[str]:
    groups = {group for record in records for group in record.summary or {}}
    return [group for group in GROUP_TITLES if group in groups]


# Scores


def _build_score_table(records_by_method: RecordsByMethod, group: str, width: int) -> Table:
    headings = [
        heading
        for heading in _SCORE_HEADINGS
        if width >= TABLE_WIDTH or heading not in _WIDE_HEADINGS
    ]
    table = _make_empty_table(headings)
    found = compare_methods(records_by_method, group)
    local_records = _index_local_records(records_by_method)
    for name, records in records_by_method.items():
        cells = _format_scores(records, group, local_records)
        cells[_DISTANCE] = _format_distance(found, name, records[0])
        table.add_row(make_printable(name), *(cells.get(heading, "") for heading in headings))
    return table


def _make_empty_table(headings: Sequence[str]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=0, pad_edge=False)
    table.add_column("method", no_wrap=True)
    for heading in headings:
        # A `Text`, as a line break in a string from outside is none.
        table.add_column(Text(heading), justify="right", no_wrap=True)
    return table


def _make_group_title(records_by_method: RecordsByMethod, group: str) -> str:
    """Return the group with its size, and how many of its clients could not be tested."""
    counts = set()
    untested = set()
    for records in records_by_method.values():
        for record in records:
            summary = get_summary(record, group, "after")
            if summary is not None:
                counts.add(summary.tested)
                untested.add(summary.untested)
    title = f"{GROUP_TITLES[group]}: {_format_range(counts)}"
    if untested != {0}:
        title += f" with test examples, {_format_range(untested)} without are left out"
    return title


def _format_range(counts: set[int]) -> str:
    low = min(counts)
    high = max(counts)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _format_scores(
    records: Sequence[RunRecord], group: str, local_records: Mapping[int, RunRecord]
) -> Cells:
    first = records[0]
    cells = {stage: _format_estimate(records, group, stage) for stage in ("before", "after")}
    for stage in ("1", "5"):
        cells[stage] = _format_figure(estimate_figure(records, group, stage, HEADLINE).mean, first)
    fields = {"F1": "f1_macro", "std": "std", "worst\ntenth": "worst_tenth"}
    for heading, field in fields.items():
        cells[heading] = _format_figure(estimate_figure(records, group, "after", field).mean, first)
    shares_better = [
        _compute_share_better(record, local_records.get(record.config.seed), group)
        for record in list_ended(records)
    ]
    share_better = estimate(shares_better).mean
    cells["beats\nlocal"] = f"{100 * share_better:.0f}" if math.isfinite(share_better) else ""
    return cells


def _format_estimate(records: Sequence[RunRecord], group: str, stage: str) -> str:
    """Return mean and spread over seeds, with a dagger if a seed has no figure."""
    found = estimate_figure(records, group, stage)
    if math.isnan(found.mean):
        return "diverged" if found.num_missing else ""
    text = _format_figure(found.mean, records[0])
    if found.seed_std is not None:
        text += f" ±{_format_figure(found.seed_std, records[0])}"
    return f"{text}†" if found.num_missing else text


def _format_distance(found: GroupStandings, name: str, record: RunRecord) -> str:
    return format_distance(found.standings.get(name), lambda value: _format_figure(value, record))


def _describe_group(records_by_method: RecordsByMethod, group: str) -> list[Text]:
    """Return what the scores of a group say: which methods are best, and what is missing."""
    records = [record for records in records_by_method.values() for record in records]
    num_seeds = len({record.config.seed for record in records})
    found = compare_methods(records_by_method, group)
    sentences = describe_group(found, lambda value: _format_figure(value, records[0]), num_seeds)
    return [_make_text(" ".join(sentences))] if sentences else []


def _build_scores_note(records: Sequence[RunRecord]) -> str:
    first = records[0]
    metric = f"Test {first.metric.name} in %" if first.metric.is_percent else first.metric.name
    num_seeds = len({record.config.seed for record in records})
    spread = ""
    if num_seeds > 1:
        spread = f", ± sample standard deviation over {num_seeds} seeds"
        if has_same_data(list_ended(records)):
            spread += " on one split of the data"
        else:
            spread += ", each with a split of its own"
    note = _SCORES_NOTE.format(metric=metric, spread=spread)
    note += f" {describe_finetune_budgets((record.name, record.hparams) for record in records)}"
    if any(is_fine_tuned_baseline(record.config.method) for record in records):
        note += " FedAvg after personalizing is FedAvg with fine-tuning."
    return note


def _index_local_records(records_by_method: RecordsByMethod) -> dict[int, RunRecord]:
    """Return the runs of local training by seed, of several with one seed the first."""
    local_records: dict[int, RunRecord] = {}
    for records in records_by_method.values():
        for record in records:
            if is_local_baseline(record.config.method):
                local_records.setdefault(record.config.seed, record)
    return local_records


def _compute_share_better(record: RunRecord, local_record: RunRecord | None, group: str) -> float:
    """Return the share of clients that do better than with local training.

    It is NaN for local training itself, and where other clients were scored.
    """
    if local_record is None or is_local_baseline(record.config.method):
        return math.nan
    scores = (record.scores or {}).get(group)
    local_scores = (local_record.scores or {}).get(group)
    if scores is None or local_scores is None or scores.ids != local_scores.ids:
        return math.nan
    metric = record.metric.name
    return compute_share_better(
        scores.get_values("after", metric),
        local_scores.get_values("after", metric),
        record.metric.higher_is_better,
    )


# Costs


def _build_cost_table(records_by_method: RecordsByMethod) -> Table:
    table = _make_empty_table(_COST_HEADINGS)
    for name, records in records_by_method.items():
        table.add_row(make_printable(name), *_format_costs(records))
    return table


def _format_costs(records: Sequence[RunRecord]) -> list[str]:
    costs = [record.cost for record in records if record.cost is not None]
    if not costs:
        return []
    num_bytes = float(np.mean([cost.bytes_down + cost.bytes_up for cost in costs]))
    gradients = float(np.mean([cost.gradients for cost in costs]))
    personalize = [cost.personalize_gradients for cost in costs]
    known = [value for value in personalize if value is not None]
    texts = [f"{num_bytes / 1e6:.1f}", _abbreviate(gradients)]
    texts.append(_abbreviate(float(np.mean(known))) if known else "")
    times = [record.times for record in records if record.times is not None]
    if not times:
        return texts
    training = float(np.mean([time.training for time in times]))
    evaluation = float(np.mean([time.evaluation + time.personalizing for time in times]))
    total = float(np.mean([time.total for time in times]))
    seconds = (training, evaluation, total - training - evaluation, total)
    return [*texts, *(f"{value:.1f}" for value in seconds)]


def _abbreviate(value: float) -> str:
    """Return a number with three digits and a unit, as in 12.3M."""
    for unit, sign in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= unit:
            return f"{value / unit:.3g}{sign}"
    return f"{value:.0f}"


def _format_figure(value: float, record: RunRecord) -> str:
    if math.isnan(value):
        return ""
    if record.metric.is_percent:
        return f"{100 * value:.1f}"
    return f"{value:.3f}"
