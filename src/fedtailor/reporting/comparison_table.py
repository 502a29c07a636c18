"""The table that a comparison prints: a line for each method and group of clients, in 100 columns or in 80."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich import box
from rich.table import Table

from fedtailor.evaluation.client_statistics import compute_share_better, compute_spread
from fedtailor.training.record import has_same_data

Record = Mapping[str, Any]

MIN_SEEDS = 3
"""Seeds from which on a spread over seeds is worth something."""
TABLE_WIDTH = 100
"""Columns that the whole table may take."""
_WIDE_COLUMNS = ("1", "5", "F1", "grad")
_COLUMNS = (
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
_CAPTION = (
    "Test figures{percent}: before and after personalizing, mean over clients and over the evaluations in the last fifth "
    "of the rounds{spread}. At the last round: after 1 and 5 passes of personalizing; after all of it F1 over classes, "
    "standard deviation over clients, mean of the worst tenth of them, and % of them better off than alone. "
    "Participating clients took part in training, unseen ones did not. MB down and up, gradients of clients, s of "
    "training and scoring: of all rounds, for one seed."
)


def build_table(records: Sequence[Record], title: str, width: int = TABLE_WIDTH) -> Table:
    """Figures over clients and seeds, before and after personalizing, and costs; where it is narrow, most of them."""
    headings = tuple(
        heading for heading in _COLUMNS if width >= TABLE_WIDTH or heading not in _WIDE_COLUMNS
    )
    table = Table(
        title=title, caption=_build_caption(records), box=box.SIMPLE_HEAD, padding=0, pad_edge=False
    )
    table.title_justify = table.caption_justify = "left"
    for heading in ("method", ""):
        table.add_column(heading, no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    local_records = {
        record["config"]["seed"]: record
        for record in reversed(records)
        if record["config"]["method"] == "local"
    }
    for name in dict.fromkeys(record["name"] for record in records):
        method_records = [record for record in records if record["name"] == name]
        labels = [name]
        if method_records[0]["config"]["method"] == "fedavg":
            cells = _format_cells(method_records, local_records, ("before",))
            _add_rows(table, labels, method_records, headings, cells)
            labels = [name, "+ fine-tuning"]
        cells = _format_cells(method_records, local_records, _COLUMNS)
        _add_rows(table, labels, method_records, headings, cells)
    return table


def _build_caption(records: Sequence[Record]) -> str:
    seeds = len({record["config"]["seed"] for record in records})
    percent = " in %" if _is_percent(records[0]) else f" ({records[0]['metric']['name']})"
    over = ", ± sample standard deviation over seeds" if seeds > 1 else ""
    if seeds > 1 and has_same_data(records):
        over += " (on one split of the data)"
    few = (
        ""
        if seeds >= MIN_SEEDS
        else f" Only {seeds} seed{'s' * (seeds > 1)}: take {MIN_SEEDS} or more to tell methods apart."
    )
    return _CAPTION.format(percent=percent, spread=over) + few


def _add_rows(
    table: Table,
    labels: Sequence[str],
    records: Sequence[Record],
    headings: Sequence[str],
    cells: Sequence[Mapping[str, str]],
) -> None:
    """Add a row for each group, the first labels beside the first rows; costs are the same for all groups."""
    groups = list(records[0]["scores"])
    num_rows = max(len(groups), len(labels))
    for index in range(num_rows):
        label = labels[index] if index < len(labels) else ""
        group = groups[index] if index < len(groups) else ""
        figures = dict(cells[index]) if index < len(groups) else {}
        if index == 0:
            figures |= _format_costs(records)
        figures_in_order = [figures.get(heading, "") for heading in headings]
        table.add_row(label, group, *figures_in_order, end_section=index == num_rows - 1)


def _format_cells(
    records: Sequence[Record], local_records: Mapping[int, Record], headings: Sequence[str]
) -> list[dict[str, str]]:
    """The figures of each group under their headings."""
    return [
        {
            heading: text
            for heading, text in _format_group(records, group, local_records).items()
            if heading in headings
        }
        for group in records[0]["scores"]
    ]


def _format_group(
    records: Sequence[Record], group: str, local_records: Mapping[int, Record]
) -> dict[str, str]:
    higher_is_better = bool(records[0]["metric"]["higher_is_better"])
    _, std, worst = np.mean(
        [compute_spread(_get_client_values(record, group), higher_is_better) for record in records],
        axis=0,
    )
    share = float(
        np.mean(
            [
                _compute_share_better(record, local_records.get(record["config"]["seed"]), group)
                for record in records
            ]
        )
    )
    numbers = {
        "1": _average_summary(records, group, "1", "acc_macro"),
        "5": _average_summary(records, group, "5", "acc_macro"),
        "F1": _average_summary(records, group, "after", "f1_macro"),
        "std": float(std),
        "worst\ntenth": float(worst),
    }
    return {
        **{stage: _format_over_seeds(records, group, stage) for stage in ("before", "after")},
        **{heading: _format_figure(value, records[0]) for heading, value in numbers.items()},
        "beats\nlocal": f"{100 * share:.0f}" if math.isfinite(share) else "",
    }


def _format_over_seeds(records: Sequence[Record], group: str, stage: str) -> str:
    """The mean over seeds of the mean over the last looks, and how far seeds differ, if there are several."""
    found = [_get_window_mean(record, group, stage) for record in records]
    mean = _format_figure(float(np.mean(found)), records[0])
    return (
        f"{mean} ±{_format_figure(float(np.std(found, ddof=1)), records[0])}"
        if len(found) > 1
        else mean
    )


def _get_window_mean(record: Record, group: str, stage: str) -> float:
    metric = record["metric"]["name"]
    means = record["final_window"]["mean"].get(group)
    value = means[stage][metric] if means else None
    return math.nan if value is None else float(value)


def _average_summary(records: Sequence[Record], group: str, stage: str, name: str) -> float:
    found = [record["summary"][group].get(stage, {}).get(name) for record in records]
    return float(np.mean([math.nan if value is None else value for value in found]))


def _compute_share_better(record: Record, local_record: Record | None, group: str) -> float:
    """The share of clients that are better off than alone; NaN for those who are alone."""
    if local_record is None or record["config"]["method"] == "local":
        return math.nan
    is_same = record["scores"][group]["ids"] == local_record["scores"][group]["ids"]
    higher_is_better = bool(record["metric"]["higher_is_better"])
    return (
        compute_share_better(
            _get_client_values(record, group),
            _get_client_values(local_record, group),
            higher_is_better,
        )
        if is_same
        else math.nan
    )


def _get_client_values(record: Record, group: str) -> np.ndarray:
    return np.array(record["scores"][group]["after"][record["metric"]["name"]], dtype=float)


def _format_costs(records: Sequence[Record]) -> dict[str, str]:
    cost = {
        name: float(np.mean([record["cost"][name] for record in records]))
        for name in records[0]["cost"]
    }
    sent, seconds = cost["bytes_down"] + cost["bytes_up"], cost["seconds"] + cost["scoring_seconds"]
    return {
        "MB": f"{sent / 1e6:.1f}",
        "grad": _abbreviate(cost["gradients"]),
        "s": f"{seconds:.1f}",
    }


def _abbreviate(value: float) -> str:
    """A number in four letters or so."""
    for unit, sign in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= unit:
            return f"{value / unit:.3g}{sign}"
    return f"{value:.0f}"


def _is_percent(record: Record) -> bool:
    return record["metric"]["name"] in ("accuracy", "f1")


def _format_figure(value: float, record: Record) -> str:
    if math.isnan(value):
        return ""
    return f"{100 * value:.1f}" if _is_percent(record) else f"{value:.3f}"
