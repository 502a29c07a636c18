"""Label x client in characters: a column for each client, a row for each label, darker where a client has more."""

import math
from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.text import Text

from fedtailor.data.label_table import (
    IntArray,
    LabelTable,
    count_clients_by_group,
    normalize_counts,
    sort_by_main_label,
    subsample_evenly,
)
from fedtailor.reporting.dataset_page.numbers import (
    compute_even_edges,
    compute_log_edges,
    has_wide_range,
)

STYLES = {
    "participating": "cyan",
    "train": "cyan",
    "validation": "yellow",
    "unseen": "magenta",
    "server": "green",
}
MAX_LABELS = 64
"""So many rows are drawn; of more labels, the commonest."""
NUM_BARS = 12
"""About so many bars show sizes where there are no labels."""
GAP = 2
SERVER = "server"


class Marks(NamedTuple):
    """Characters of rising density for shares, and of rising height for sizes."""

    shares: str
    sizes: str


BLOCKS, ASCII = Marks(" ░▒▓█", " ▁▂▃▄▅▆▇█"), Marks(" .:*#", " .:*#")


class ClientColumn(NamedTuple):
    """A holder: its share of each label that is drawn, and how much it has."""

    group: str
    shares: NDArray[np.float64]
    size: int


def draw_labels(
    table: LabelTable, width: int, is_ascii: bool = False, max_clients: int | None = None
) -> list[Text]:
    """Lines of at most so many columns, and what the marks mean; of at most `limit` clients; `plain`: in ASCII."""
    marks = ASCII if is_ascii else BLOCKS
    if table.counts is None:
        return _draw_histogram(table.sizes, width, marks)
    labels = _select_labels(table.counts)
    margin = max(len("label"), len(str(labels.max()))) + GAP
    groups = list(dict.fromkeys(table.groups[table.client_ids].tolist()))
    server = (
        []
        if table.server is None
        else [ClientColumn(SERVER, normalize_counts(table.server)[labels], table.server_size)]
    )
    num_columns = width - margin - GAP * (len(groups) - 1) - len(server) * (GAP + len(SERVER))
    clients = _select_clients(
        table,
        table.counts,
        labels,
        max(1, num_columns if max_clients is None else min(num_columns, max_clients)),
    )
    columns, column_width = [*clients, *server], 2 if 2 * len(clients) <= num_columns else 1
    rows = [
        [_choose_mark(column.shares[label_idx], marks.shares) for column in columns]
        for label_idx in range(len(labels))
    ]
    largest = max(client.size for client in clients)
    sizes = [_choose_mark(client.size / largest, marks.sizes) for client in clients]
    return [
        _draw_heading(columns, margin, column_width),
        *(
            _draw_row(str(label), row, columns, margin, column_width)
            for label, row in zip(labels.tolist(), rows, strict=True)
        ),
        _draw_row("size", sizes, clients, margin, column_width),
        Text(),
        *(
            Text(sentence, "dim")
            for sentence in _describe_marks(table, len(clients), len(labels), largest, marks)
        ),
    ]


def _select_labels(counts: IntArray) -> IntArray:
    """The labels that are drawn, in order."""
    return np.sort(np.argsort(-counts.sum(axis=0), kind="stable")[:MAX_LABELS])


def _select_clients(
    table: LabelTable, counts: IntArray, labels: IntArray, num_columns: int
) -> list[ClientColumn]:
    """Clients by group, evenly spaced where not all have room, but somebody of every group that can."""
    order = sort_by_main_label(table)
    groups, parts = table.groups[table.client_ids], normalize_counts(counts)[:, labels]
    positions_by_group = {
        group: order[groups[order] == group]
        for group in count_clients_by_group(table)
        if (groups == group).any()
    }
    quotas = _allocate_columns(
        {group: len(positions) for group, positions in positions_by_group.items()}, num_columns
    )
    return [
        ClientColumn(group, parts[position], int(table.sizes[table.client_ids[position]]))
        for group, positions in positions_by_group.items()
        for position in subsample_evenly(positions, quotas[group])
    ]


def _allocate_columns(sizes: dict[str, int], num_columns: int) -> dict[str, int]:
    """How many columns each group has: one at least, if so many have room, and then by size."""
    quotas = dict.fromkeys(sizes, 0)
    for _ in range(min(num_columns, sum(sizes.values()))):
        quotas[
            max(sizes, key=lambda group: (not quotas[group], sizes[group] / max(quotas[group], 1)))
        ] += 1
    return quotas


def _choose_mark(share: float, marks: str) -> str:
    """The square root lets small shares be seen."""
    return marks[math.ceil((len(marks) - 1) * math.sqrt(share) - 1e-9)]


def _draw_heading(columns: Sequence[ClientColumn], margin: int, column_width: int) -> Text:
    """Names of the groups above their columns, cut where these are few."""
    line = Text("label".ljust(margin), no_wrap=True)
    for group, group_columns in groupby(column.group for column in columns):
        room = len(SERVER) if group == SERVER else column_width * len(list(group_columns))
        line.append(group[:room].ljust(room) + " " * GAP, STYLES.get(group))
    line.rstrip()
    return line


def _draw_row(
    name: str, marks: Iterable[str], columns: Sequence[ClientColumn], margin: int, column_width: int
) -> Text:
    line, previous_group = (
        Text(name.rjust(margin - GAP) + " " * GAP, no_wrap=True),
        columns[0].group,
    )
    for column, mark in zip(columns, marks, strict=True):
        gap = " " * GAP if column.group != previous_group else ""
        line.append(gap + mark * column_width, STYLES.get(column.group))
        previous_group = column.group
    line.rstrip()
    return line


def _describe_marks(
    table: LabelTable, num_clients: int, num_labels: int, largest: int, marks: Marks
) -> Iterable[str]:
    """What is drawn, and what is not."""
    steps = len(marks.shares) - 1
    bounds = [
        f"{mark} up to {100 * (step / steps) ** 2:.0f} %"
        for step, mark in enumerate(marks.shares[1:-1], 1)
    ]
    yield f"A column is a client, a mark a label's share of its examples: {', '.join(bounds)}, {marks.shares[-1]} more."
    yield f"Sizes go up to {largest:,} examples, marked by their square root."
    total_clients = len(table.sizes)
    if num_clients < total_clients:
        yield f"Drawn are {num_clients:,} of {total_clients:,} clients, evenly spaced in order of group and main label."
    if table.counts is not None and num_labels < table.counts.shape[1]:
        yield f"Drawn are the {num_labels:,} commonest of {table.counts.shape[1]:,} labels."


def _draw_histogram(sizes: IntArray, width: int, marks: Marks) -> list[Text]:
    """How many clients have how much, a bar in a line."""
    edges = (compute_log_edges if has_wide_range(sizes) else compute_even_edges)(sizes, NUM_BARS)
    clients = np.histogram(sizes, edges)[0].tolist()
    names = [_format_range(math.ceil(low), math.floor(high)) for low, high in pairwise(edges)]
    margin, digits = max(map(len, [*names, "examples"])), len(f"{max(clients):,}")
    bar_width = max(1, width - margin - digits - 2 * GAP)
    lines = [Text("examples".rjust(margin) + " " * GAP + "clients", no_wrap=True)]
    for name, count in zip(names, clients, strict=True):
        bar = marks.shares[-1] * math.ceil(bar_width * count / max(clients))
        line = Text(name.rjust(margin) + " " * GAP, no_wrap=True).append(
            bar, STYLES["participating"]
        )
        lines.append(line.append(f"{' ' * GAP if bar else ''}{count:,}"))
    return lines


def _format_range(low: int, high: int) -> str:
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
