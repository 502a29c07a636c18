"""The table that a comparison prints: a row for each method and group of clients.

It takes 100 columns, or 80 without the less important figures. The HTML report has a table of its
own in `html/figures.py`.
"""

import math
from collections.abc import Collection, Mapping, Sequence

import numpy as np
from rich import box
from rich.table import Table
from rich.text import Text

from fedtailor.evaluation.client_statistics import compute_share_better, compute_spread
from fedtailor.training.config import is_fine_tuned_baseline, is_local_baseline
from fedtailor.training.record.schema import GroupScores, RunRecord, StageSummary, has_same_data

MIN_SEEDS = 3
"""The number of seeds from which on a spread over seeds means something."""
TABLE_WIDTH = 100
"""Columns of the whole table; in a narrower terminal some figures are left out."""

_HEADINGS = (
    "before",
    "after",
    "1",
    "5",
    "F1",
    "std",
    "worst\ntenth",
    "beats\nlocal",
    "MB",
    "grad",
    "s",
)
_WIDE_HEADINGS = ("1", "5", "F1", "grad")
"""Columns that only the whole table has."""
_CAPTION = (
    "Test metrics{unit}, before and after personalizing: mean over clients and over the "
    "evaluations in the last fifth of the rounds{spread}. At the last round: after 1 and 5 passes "
    "of personalizing; after all of it, F1 over classes, standard deviation over clients, mean of "
    "the worst tenth of clients, and % of clients that do better than with local training. "
    "Participating clients took part in training, unseen clients did not. MB down and up, "
    "gradients of clients, s of training and scoring: of all rounds, for one seed."
)

Cells = dict[str, str]
"""Texts of a row by the heading of their column."""


def build_table(records: Sequence[RunRecord], title: str, width: int = TABLE_WIDTH) -> Table:
    """Return the table of a comparison: scores by group, means over clients and seeds, and costs.

    FedAvg has two blocks of rows: by itself, and with fine-tuning as its way of personalizing.

    Args:
        records: Finished runs; those of one name are the seeds of one method.
        title: Stands above the table.
        width: Columns of the terminal.
    """
    headings = list(_HEADINGS)
    if width < TABLE_WIDTH:
        headings = [heading for heading in _HEADINGS if heading not in _WIDE_HEADINGS]
    table = _make_empty_table(title, _build_caption(records), headings)
    local_records = _index_local_records(records)
    for name in dict.fromkeys(record.name for record in records):
        method_records = [record for record in records if record.name == name]
        labels = [name]
        if is_fine_tuned_baseline(method_records[0].config.method):
            cells = _format_groups(method_records, local_records, ["before"])
            _add_rows(table, labels, method_records, headings, cells)
            labels = [name, "+ fine-tuning"]
        cells = _format_groups(method_records, local_records, headings)
        _add_rows(table, labels, method_records, headings, cells)
    return table


def _make_empty_table(title: str, caption: str, headings: Sequence[str]) -> Table:
    table = Table(title=title, caption=caption, box=box.SIMPLE_HEAD, padding=0, pad_edge=False)
    table.title_justify = "left"
    table.caption_justify = "left"
    table.add_column("method", no_wrap=True)
    table.add_column("", no_wrap=True)
    for heading in headings:
        # A `Text`, as a line break in a string from outside is none.
        table.add_column(Text(heading), justify="right", no_wrap=True)
    return table


def _build_caption(records: Sequence[RunRecord]) -> str:
    first = records[0]
    num_seeds = len({record.config.seed for record in records})
    unit = " in %" if first.metric.is_percent else f" ({first.metric.name})"
    spread = ""
    if num_seeds > 1:
        spread = ", ± sample standard deviation over seeds"
        if has_same_data(records):
            spread += " (on one split of the data)"
    caption = _CAPTION.format(unit=unit, spread=spread)
    if num_seeds >= MIN_SEEDS:
        return caption
    seeds = "1 seed" if num_seeds == 1 else f"{num_seeds} seeds"
    return f"{caption} Only {seeds}: take {MIN_SEEDS} or more to tell methods apart."


def _index_local_records(records: Sequence[RunRecord]) -> dict[int, RunRecord]:
    """Return the runs of local training by seed, of several with one seed the first."""
    local_records: dict[int, RunRecord] = {}
    for record in records:
        if is_local_baseline(record.config.method):
            local_records.setdefault(record.config.seed, record)
    return local_records


def _add_rows(
    table: Table,
    labels: Sequence[str],
    records: Sequence[RunRecord],
    headings: Sequence[str],
    cells_by_group: Mapping[str, Cells],
) -> None:
    """Add a row for each group; labels and costs, which are of all groups, begin at the first."""
    groups = list(cells_by_group)
    num_rows = max(len(groups), len(labels))
    for index in range(num_rows):
        label = labels[index] if index < len(labels) else ""
        group = groups[index] if index < len(groups) else ""
        cells = cells_by_group.get(group, {})
        if index == 0:
            cells = cells | _format_costs(records)
        texts = [cells.get(heading, "") for heading in headings]
        table.add_row(label, group, *texts, end_section=index == num_rows - 1)


def _format_groups(
    records: Sequence[RunRecord],
    local_records: Mapping[int, RunRecord],
    headings: Collection[str],
) -> dict[str, Cells]:
    """Return the scores of each group, under these headings alone."""
    cells_by_group: dict[str, Cells] = {}
    for group in _get_scores(records[0]):
        cells = _format_group(records, group, local_records)
        cells_by_group[group] = {
            heading: text for heading, text in cells.items() if heading in headings
        }
    return cells_by_group


def _format_group(
    records: Sequence[RunRecord], group: str, local_records: Mapping[int, RunRecord]
) -> Cells:
    first = records[0]
    higher_is_better = first.metric.higher_is_better
    spreads = [
        compute_spread(_get_client_values(record, group), higher_is_better) for record in records
    ]
    shares_better = [
        _compute_share_better(record, local_records.get(record.config.seed), group)
        for record in records
    ]
    share_better = float(np.mean(shares_better))
    figures = {
        "1": _average_summaries(records, group, "1", "acc_macro"),
        "5": _average_summaries(records, group, "5", "acc_macro"),
        "F1": _average_summaries(records, group, "after", "f1_macro"),
        "std": float(np.mean([spread.std for spread in spreads])),
        "worst\ntenth": float(np.mean([spread.worst_tenth for spread in spreads])),
    }
    cells = {stage: _format_window_mean(records, group, stage) for stage in ("before", "after")}
    for heading, value in figures.items():
        cells[heading] = _format_figure(value, first)
    cells["beats\nlocal"] = f"{100 * share_better:.0f}" if math.isfinite(share_better) else ""
    return cells


def _format_window_mean(records: Sequence[RunRecord], group: str, stage: str) -> str:
    """Return the mean over seeds and the last evaluations, and the spread over several seeds."""
    values = [_get_window_mean(record, group, stage) for record in records]
    mean = _format_figure(float(np.mean(values)), records[0])
    if len(values) == 1:
        return mean
    std = _format_figure(float(np.std(values, ddof=1)), records[0])
    return f"{mean} ±{std}"


def _get_window_mean(record: RunRecord, group: str, stage: str) -> float:
    """Return the mean over the evaluations in the last fifth of the rounds; NaN if unknown."""
    assert record.final_window is not None
    group_means = record.final_window.mean.get(group)
    if group_means is None:
        return math.nan
    return _to_float(group_means[stage][record.metric.name])


def _average_summaries(records: Sequence[RunRecord], group: str, stage: str, name: str) -> float:
    """Return the mean over seeds of a field of `StageSummary`, NaN if any seed lacks it."""
    values = []
    for record in records:
        summary = _get_summaries(record)[group].get(stage)
        value = None if summary is None else getattr(summary, name)
        values.append(_to_float(value))
    return float(np.mean(values))


def _compute_share_better(record: RunRecord, local_record: RunRecord | None, group: str) -> float:
    """Return the share of clients that do better than with local training.

    It is NaN for local training itself, and where other clients were scored.
    """
    if local_record is None or is_local_baseline(record.config.method):
        return math.nan
    if _get_scores(record)[group].ids != _get_scores(local_record)[group].ids:
        return math.nan
    return compute_share_better(
        _get_client_values(record, group),
        _get_client_values(local_record, group),
        record.metric.higher_is_better,
    )


def _get_client_values(record: RunRecord, group: str) -> np.ndarray:
    """Return the headline metric after personalizing [clients], NaN for clients without tests."""
    return np.array(_get_scores(record)[group].after[record.metric.name], dtype=float)


def _get_scores(record: RunRecord) -> dict[str, GroupScores]:
    assert record.scores is not None
    return record.scores


def _get_summaries(record: RunRecord) -> dict[str, dict[str, StageSummary]]:
    assert record.summary is not None
    return record.summary


def _format_costs(records: Sequence[RunRecord]) -> Cells:
    """Return the costs of a run, averaged over seeds."""
    costs = [record.cost for record in records if record.cost is not None]
    num_bytes = float(np.mean([cost.bytes_down + cost.bytes_up for cost in costs]))
    gradients = float(np.mean([cost.gradients for cost in costs]))
    seconds = float(np.mean([cost.seconds + cost.scoring_seconds for cost in costs]))
    return {"MB": f"{num_bytes / 1e6:.1f}", "grad": _abbreviate(gradients), "s": f"{seconds:.1f}"}


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


def _to_float(value: float | None) -> float:
    return math.nan if value is None else float(value)
