"""Labels by client in characters: a column is a client, a row a label, darker marks are more."""

import math
from collections.abc import Iterator, Sequence
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
"""Rows that are drawn; of more labels, the most frequent."""
MAX_BARS = 12
"""Bars of the histogram of sizes, where there are no labels."""
GAP = 2
"""Columns between groups, and between text and marks."""
SERVER = "server"
ROUNDING = 1e-9
"""Keeps shares that are exactly at a bound on its lower side."""


class Marks(NamedTuple):
    """Characters of rising density for shares, and of rising height for sizes."""

    shares: str
    sizes: str


BLOCKS = Marks(" ░▒▓█", " ▁▂▃▄▅▆▇█")
ASCII = Marks(" .:*#", " .:*#")


class ClientColumn(NamedTuple):
    """A client or the server: its share of each label that is drawn, and its number of examples."""

    group: str
    shares: NDArray[np.float64]
    size: int


class Layout(NamedTuple):
    """Columns of the picture: of the names of its rows with the gap behind, and of each client."""

    margin: int
    client_width: int


def draw_labels(
    table: LabelTable, width: int, is_ascii: bool = False, max_clients: int | None = None
) -> list[Text]:
    """Return the lines of the picture, with a legend below.

    Without labels it is a histogram of sizes.

    Args:
        table: Which clients have which labels.
        width: Columns of the terminal; only the legend may be wider.
        is_ascii: Whether to keep to ASCII characters.
        max_clients: Clients that are drawn at most; of more, evenly spaced ones.
    """
    marks = ASCII if is_ascii else BLOCKS
    if table.counts is None:
        return _draw_histogram(table.sizes, width, marks)
    labels = _select_labels(table.counts)
    margin = max(len("label"), len(str(labels.max()))) + GAP
    num_groups = len(np.unique(table.groups[table.client_ids]))
    server_columns = []
    if table.server is not None:
        server_shares = normalize_counts(table.server)[labels]
        server_columns.append(ClientColumn(SERVER, server_shares, table.server_size))
    room = width - margin - GAP * (num_groups - 1) - len(server_columns) * (GAP + len(SERVER))
    num_columns = room if max_clients is None else min(room, max_clients)
    clients = _select_clients(table, table.counts, labels, max(1, num_columns))
    layout = Layout(margin, client_width=2 if 2 * len(clients) <= room else 1)
    columns = [*clients, *server_columns]
    lines = [_draw_heading(columns, layout)]
    for label_idx, label in enumerate(labels.tolist()):
        row = [_choose_mark(column.shares[label_idx], marks.shares) for column in columns]
        lines.append(_draw_row(str(label), row, columns, layout))
    largest = max(client.size for client in clients)
    sizes = [_choose_mark(client.size / largest, marks.sizes) for client in clients]
    lines.append(_draw_row("size", sizes, clients, layout))
    lines.append(Text())
    for sentence in _describe_picture(table, len(clients), len(labels), largest, marks):
        lines.append(Text(sentence, "dim"))
    return lines


def _select_labels(counts: IntArray) -> IntArray:
    """Return the most frequent labels in rising order."""
    by_frequency = np.argsort(-counts.sum(axis=0), kind="stable")
    return np.sort(by_frequency[:MAX_LABELS])


def _select_clients(
    table: LabelTable, counts: IntArray, labels: IntArray, num_columns: int
) -> list[ClientColumn]:
    """Return clients by group and main label; if not all have room, evenly spaced within groups."""
    order = sort_by_main_label(table)
    groups = table.groups[table.client_ids]
    shares = normalize_counts(counts)[:, labels]
    positions_by_group = {}
    for group in count_clients_by_group(table):
        positions = order[groups[order] == group]
        if len(positions):
            positions_by_group[group] = positions
    group_sizes = {group: len(positions) for group, positions in positions_by_group.items()}
    quotas = _allocate_columns(group_sizes, num_columns)
    columns = []
    for group, positions in positions_by_group.items():
        for position in subsample_evenly(positions, quotas[group]):
            size = int(table.sizes[table.client_ids[position]])
            columns.append(ClientColumn(group, shares[position], size))
    return columns


def _allocate_columns(group_sizes: dict[str, int], num_columns: int) -> dict[str, int]:
    """Return the number of columns of each group: at least one if there is room, then by size."""
    quotas = dict.fromkeys(group_sizes, 0)

    def get_priority(group: str) -> tuple[bool, float]:
        quota = quotas[group]
        return quota == 0, group_sizes[group] / max(quota, 1)

    for _ in range(min(num_columns, sum(group_sizes.values()))):
        quotas[max(group_sizes, key=get_priority)] += 1
    return quotas


def _choose_mark(share: float, marks: str) -> str:
    """Return the mark of a share; its square root is taken so that small shares can be seen."""
    level = (len(marks) - 1) * math.sqrt(share)
    return marks[math.ceil(level - ROUNDING)]


def _draw_heading(columns: Sequence[ClientColumn], layout: Layout) -> Text:
    """Return the names of the groups above their columns, cut where these are few."""
    line = Text("label".ljust(layout.margin), no_wrap=True)
    for group, group_columns in groupby(column.group for column in columns):
        if group == SERVER:
            room = len(SERVER)
        else:
            room = layout.client_width * len(list(group_columns))
        line.append(group[:room].ljust(room) + " " * GAP, STYLES.get(group))
    line.rstrip()
    return line


def _draw_row(
    name: str, marks: Sequence[str], columns: Sequence[ClientColumn], layout: Layout
) -> Text:
    """Return a row of marks behind its name, one for each column, with gaps between groups."""
    line = Text(name.rjust(layout.margin - GAP) + " " * GAP, no_wrap=True)
    previous_group = columns[0].group
    for column, mark in zip(columns, marks, strict=True):
        gap = "" if column.group == previous_group else " " * GAP
        line.append(gap + mark * layout.client_width, STYLES.get(column.group))
        previous_group = column.group
    line.rstrip()
    return line


def _describe_picture(
    table: LabelTable, num_drawn: int, num_labels: int, largest: int, marks: Marks
) -> Iterator[str]:
    """Yield sentences about the marks, and about clients and labels that are not drawn."""
    num_steps = len(marks.shares) - 1
    bounds = []
    for step, mark in enumerate(marks.shares[1:-1], 1):
        # `_choose_mark` takes square roots.
        percent = 100 * (step / num_steps) ** 2
        bounds.append(f"{mark} up to {percent:.0f} %")
    yield (
        "A column is a client, a mark the share of a label among its examples: "
        f"{', '.join(bounds)}, {marks.shares[-1]} more."
    )
    yield f"Sizes go up to {largest:,} examples, marked by their square root."
    num_clients = len(table.sizes)
    if num_drawn < num_clients:
        yield (
            f"{num_drawn:,} of {num_clients:,} clients are drawn, evenly spaced in order of group "
            "and main label."
        )
    if table.counts is not None and num_labels < table.counts.shape[1]:
        yield f"The {num_labels:,} most frequent of {table.counts.shape[1]:,} labels are drawn."


def _draw_histogram(sizes: IntArray, width: int, marks: Marks) -> list[Text]:
    """Return a histogram of sizes, a bar in a line."""
    if has_wide_range(sizes):
        edges = compute_log_edges(sizes, MAX_BARS)
    else:
        edges = compute_even_edges(sizes, MAX_BARS)
    counts = np.histogram(sizes, edges)[0].tolist()
    names = [_format_range(math.ceil(low), math.floor(high)) for low, high in pairwise(edges)]
    largest = max(counts)
    margin = max(len(name) for name in [*names, "examples"])
    num_digits = len(f"{largest:,}")
    bar_width = max(1, width - margin - num_digits - 2 * GAP)
    lines = [Text("examples".rjust(margin) + " " * GAP + "clients", no_wrap=True)]
    for name, count in zip(names, counts, strict=True):
        bar = marks.shares[-1] * math.ceil(bar_width * count / largest)
        gap = " " * GAP if bar else ""
        line = Text(name.rjust(margin) + " " * GAP, no_wrap=True)
        line.append(bar, STYLES["participating"])
        line.append(f"{gap}{count:,}")
        lines.append(line)
    return lines


def _format_range(low: int, high: int) -> str:
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
