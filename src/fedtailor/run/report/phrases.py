"""Phrases about rows of the table: names stay rows, so that a page can give them their colours."""

from collections.abc import Iterable, Sequence

from fedtailor.run.report import formats
from fedtailor.run.report.figures import Column, Row
from fedtailor.run.report.grouping import Metric

Words = tuple[str | Row, ...]


def plain(words: Words) -> str:
    """The words as text."""
    return "".join(word.label if isinstance(word, Row) else word for word in words)


def named(row: Row, column: Column, metric: Metric) -> Words:
    """A row with its figure and the figure's spread over seeds."""
    figure = row.cells[column.key]
    unit = " %" if metric.percent else ""
    parts = [value for value in (figure.mean, figure.over_seeds) if value is not None]
    return (row, f" ({' ± '.join(formats.score(value, metric).removesuffix(' %') for value in parts)}{unit})")


def listed(parts: Sequence[Words], then: str = "") -> Words:
    """One, two and three, and what is said of them; nothing of nobody."""
    if not parts:
        return ()
    head = joined(parts[:-1], ", ")
    return (*head, *((" and ",) if head else ()), *parts[-1], then)


def joined(parts: Iterable[Words], between: str) -> Words:
    """Parts one after another."""
    return tuple(word for place, part in enumerate(parts) for word in (*((between,) if place else ()), *part))


def sent(row: Row) -> float:
    """Megabytes down and up."""
    return row.cells["down"].mean + row.cells["up"].mean


def cost(row: Row, work: str) -> str:
    """What training sent and what clients computed, counted in `work`."""
    if not sent(row) and not row.cells[work].mean:
        return "no training together at all"
    return f"{formats.amount('mb', sent(row))} and {formats.amount(work, row.cells[work].mean)} of clients' work"
