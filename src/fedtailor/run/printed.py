"""The table that a comparison prints: a line for each method and group of clients, in 100 columns or in 80."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich import box
from rich.table import Table

from fedtailor.run.metrics import share_better, spread
from fedtailor.run.record import have_same_data

Record = Mapping[str, Any]

ENOUGH = 3
"""Seeds from which on a spread over seeds is worth something."""
WIDTH = 100
"""Columns that the whole table may take."""
_IF_WIDE = ("1", "5", "F1")
_COLUMNS = ("before", "after", "1", "5", "F1", "std", "worst\ntenth", "beats\nlocal", "MB", "grad", "s")
_CAPTION = (
    "Test figures{percent}: before and after personalising, mean over clients and over the looks in the last fifth of "
    "the rounds{spread}. At the last round: after 1 and 5 passes of personalising; after all of it F1 over classes, "
    "standard deviation over clients, mean of the worst tenth of them, and % of them better off than alone. local: "
    "clients who took part; new: people never seen. MB down and up, gradients of clients, s of training and scoring: "
    "of all rounds, for one seed."
)


def table(records: Sequence[Record], title: str, width: int = WIDTH) -> Table:
    """Figures over clients and seeds, before and after personalising, and costs; where it is narrow, most of them."""
    shown = tuple(heading for heading in _COLUMNS if width >= WIDTH or heading not in _IF_WIDE)
    made = Table(title=title, caption=_caption(records), box=box.SIMPLE_HEAD, padding=0, pad_edge=False)
    made.title_justify = made.caption_justify = "left"
    for heading in ("method", ""):
        made.add_column(heading, no_wrap=True)
    for heading in shown:
        made.add_column(heading, justify="right", no_wrap=True)
    alone = {record["spec"]["seed"]: record for record in reversed(records) if record["spec"]["method"] == "local"}
    for name in dict.fromkeys(record["name"] for record in records):
        own = [record for record in records if record["name"] == name]
        if own[0]["spec"]["method"] == "fedavg":
            _add_rows(made, name, own, shown, _cells(own, alone, ("before",)))
            name += " + fine-tuning"
        _add_rows(made, name, own, shown, _cells(own, alone, _COLUMNS))
    return made


def _caption(records: Sequence[Record]) -> str:
    seeds = len({record["spec"]["seed"] for record in records})
    percent = " in %" if _percent(records[0]) else f" ({records[0]['metric']['name']})"
    over = ", ± sample standard deviation over seeds" if seeds > 1 else ""
    if seeds > 1 and have_same_data(records):
        over += " (on one split of the data)"
    few = (
        ""
        if seeds >= ENOUGH
        else f" Only {seeds} seed{'s' * (seeds > 1)}: take {ENOUGH} or more to tell methods apart."
    )
    return _CAPTION.format(percent=percent, spread=over) + few


def _add_rows(
    made: Table, name: str, records: Sequence[Record], shown: Sequence[str], cells: Sequence[Mapping[str, str]]
) -> None:
    """A line for each group; costs are the same for all of them."""
    groups = list(records[0]["scores"])
    for number, (group, figures) in enumerate(zip(groups, cells, strict=True)):
        found = {**figures, **(_costs(records) if number == 0 else {})}
        line = [name if number == 0 else "", group, *(found.get(heading, "") for heading in shown)]
        made.add_row(*line, end_section=number == len(groups) - 1)


def _cells(records: Sequence[Record], alone: Mapping[int, Record], wanted: Sequence[str]) -> list[dict[str, str]]:
    """The figures of each group under their headings."""
    return [
        {heading: text for heading, text in _of_group(records, group, alone).items() if heading in wanted}
        for group in records[0]["scores"]
    ]


def _of_group(records: Sequence[Record], group: str, alone: Mapping[int, Record]) -> dict[str, str]:
    higher = bool(records[0]["metric"]["higher_is_better"])
    _, std, worst = np.mean([spread(_values(record, group), higher) for record in records], axis=0)
    share = float(np.mean([_better(record, alone.get(record["spec"]["seed"]), group) for record in records]))
    numbers = {
        "1": _mean_of(records, group, "1", "acc_macro"),
        "5": _mean_of(records, group, "5", "acc_macro"),
        "F1": _mean_of(records, group, "after", "f1_macro"),
        "std": float(std),
        "worst\ntenth": float(worst),
    }
    return {
        **{when: _over_seeds(records, group, when) for when in ("before", "after")},
        **{heading: _written(value, records[0]) for heading, value in numbers.items()},
        "beats\nlocal": f"{100 * share:.0f}" if math.isfinite(share) else "",
    }


def _over_seeds(records: Sequence[Record], group: str, when: str) -> str:
    """The mean over seeds of the mean over the last looks, and how far seeds differ, if there are several."""
    found = [_last_rounds(record, group, when) for record in records]
    mean = _written(float(np.mean(found)), records[0])
    return f"{mean} ±{_written(float(np.std(found, ddof=1)), records[0])}" if len(found) > 1 else mean


def _last_rounds(record: Record, group: str, when: str) -> float:
    metric = record["metric"]["name"]
    means = record["window"]["mean"].get(group)
    value = means[when][metric] if means else None
    return math.nan if value is None else float(value)


def _mean_of(records: Sequence[Record], group: str, when: str, name: str) -> float:
    found = [record["summary"][group].get(when, {}).get(name) for record in records]
    return float(np.mean([math.nan if value is None else value for value in found]))


def _better(record: Record, other: Record | None, group: str) -> float:
    """The share of clients that are better off than alone; NaN for those who are alone."""
    if other is None or record["spec"]["method"] == "local":
        return math.nan
    same = record["scores"][group]["ids"] == other["scores"][group]["ids"]
    higher = bool(record["metric"]["higher_is_better"])
    return share_better(_values(record, group), _values(other, group), higher) if same else math.nan


def _values(record: Record, group: str) -> np.ndarray:
    return np.array(record["scores"][group]["after"][record["metric"]["name"]], dtype=float)


def _costs(records: Sequence[Record]) -> dict[str, str]:
    cost = {name: float(np.mean([record["cost"][name] for record in records])) for name in records[0]["cost"]}
    sent, seconds = cost["bytes_down"] + cost["bytes_up"], cost["seconds"] + cost["scoring_seconds"]
    return {"MB": f"{sent / 1e6:.1f}", "grad": _short(cost["gradients"]), "s": f"{seconds:.1f}"}


def _short(value: float) -> str:
    """A number in four letters or so."""
    for unit, sign in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= unit:
            return f"{value / unit:.3g}{sign}"
    return f"{value:.0f}"


def _percent(record: Record) -> bool:
    return record["metric"]["name"] in ("accuracy", "f1")


def _written(value: float, record: Record) -> str:
    if math.isnan(value):
        return ""
    return f"{100 * value:.1f}" if _percent(record) else f"{value:.3f}"
