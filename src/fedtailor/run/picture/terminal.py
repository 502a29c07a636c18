"""Label x client in characters: a column for each client, a row for each label, darker where a client has more."""

import math
from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.text import Text

from fedtailor.data.picture import Labels, Whole, main_label_order, people, shares, spaced
from fedtailor.run.picture.numbers import differ_much, even_edges, factor_edges

STYLES = {"local": "cyan", "train": "cyan", "validation": "yellow", "new": "magenta", "server": "green"}
MOST_LABELS = 64
"""So many rows are drawn; of more labels, the commonest."""
BARS = 12
"""About so many bars show sizes where there are no labels."""
GAP = 2
SERVER = "server"


class Marks(NamedTuple):
    """Characters of rising density for shares, and of rising height for sizes."""

    shares: str
    sizes: str


BLOCKS, ASCII = Marks(" ░▒▓█", " ▁▂▃▄▅▆▇█"), Marks(" .:*#", " .:*#")


class Column(NamedTuple):
    """A holder: its share of each label that is drawn, and how much it has."""

    group: str
    shares: NDArray[np.float64]
    size: int


def drawn(table: Labels, width: int, plain: bool = False, limit: int | None = None) -> list[Text]:
    """Lines of at most so many columns, and what the marks mean; of at most `limit` clients; `plain`: in ASCII."""
    marks = ASCII if plain else BLOCKS
    if table.counts is None:
        return _histogram(table.sizes, width, marks)
    kinds = _commonest(table.counts)
    margin = max(len("label"), len(str(kinds.max()))) + GAP
    groups = list(dict.fromkeys(table.groups[table.who].tolist()))
    server = [] if table.server is None else [Column(SERVER, shares(table.server)[kinds], table.server_size)]
    room = width - margin - GAP * (len(groups) - 1) - len(server) * (GAP + len(SERVER))
    clients = _clients(table, table.counts, kinds, max(1, room if limit is None else min(room, limit)))
    columns, wide = [*clients, *server], 2 if 2 * len(clients) <= room else 1
    rows = [[_mark(column.shares[place], marks.shares) for column in columns] for place in range(len(kinds))]
    largest = max(client.size for client in clients)
    sizes = [_mark(client.size / largest, marks.sizes) for client in clients]
    return [
        _heading(columns, margin, wide),
        *(_line(str(kind), row, columns, margin, wide) for kind, row in zip(kinds.tolist(), rows, strict=True)),
        _line("size", sizes, clients, margin, wide),
        Text(),
        *(Text(sentence, "dim") for sentence in _meaning(table, len(clients), len(kinds), largest, marks)),
    ]


def _commonest(counts: Whole) -> Whole:
    """The labels that are drawn, in order."""
    return np.sort(np.argsort(-counts.sum(axis=0), kind="stable")[:MOST_LABELS])


def _clients(table: Labels, counts: Whole, kinds: Whole, room: int) -> list[Column]:
    """Clients by group, evenly spaced where not all have room, but somebody of every group that can."""
    order = main_label_order(table)
    groups, parts = table.groups[table.who], shares(counts)[:, kinds]
    there = {group: order[groups[order] == group] for group in people(table) if (groups == group).any()}
    quotas = _quotas({group: len(places) for group, places in there.items()}, room)
    return [
        Column(group, parts[place], int(table.sizes[table.who[place]]))
        for group, places in there.items()
        for place in spaced(places, quotas[group])
    ]


def _quotas(sizes: dict[str, int], room: int) -> dict[str, int]:
    """How many columns each group has: one at least, if so many have room, and then by size."""
    quotas = dict.fromkeys(sizes, 0)
    for _ in range(min(room, sum(sizes.values()))):
        quotas[max(sizes, key=lambda group: (not quotas[group], sizes[group] / max(quotas[group], 1)))] += 1
    return quotas


def _mark(share: float, marks: str) -> str:
    """The square root lets small shares be seen."""
    return marks[math.ceil((len(marks) - 1) * math.sqrt(share) - 1e-9)]


def _heading(columns: Sequence[Column], margin: int, wide: int) -> Text:
    """Names of the groups above their columns, cut where these are few."""
    line = Text("label".ljust(margin), no_wrap=True)
    for group, those in groupby(column.group for column in columns):
        room = len(SERVER) if group == SERVER else wide * len(list(those))
        line.append(group[:room].ljust(room) + " " * GAP, STYLES.get(group))
    line.rstrip()
    return line


def _line(name: str, marks: Iterable[str], columns: Sequence[Column], margin: int, wide: int) -> Text:
    line, before = Text(name.rjust(margin - GAP) + " " * GAP, no_wrap=True), columns[0].group
    for column, mark in zip(columns, marks, strict=True):
        gap = " " * GAP if column.group != before else ""
        line.append(gap + mark * wide, STYLES.get(column.group))
        before = column.group
    line.rstrip()
    return line


def _meaning(table: Labels, clients: int, kinds: int, largest: int, marks: Marks) -> Iterable[str]:
    """What is drawn, and what is not."""
    steps = len(marks.shares) - 1
    bounds = [f"{mark} up to {100 * (step / steps) ** 2:.0f} %" for step, mark in enumerate(marks.shares[1:-1], 1)]
    yield f"A column is a client, a mark a label's share of its examples: {', '.join(bounds)}, {marks.shares[-1]} more."
    yield f"Sizes go up to {largest:,} examples, marked by their square root."
    of = len(table.sizes)
    if clients < of:
        yield f"Drawn are {clients:,} of {of:,} clients, evenly spaced in order of group and main label."
    if table.counts is not None and kinds < table.counts.shape[1]:
        yield f"Drawn are the {kinds:,} commonest of {table.counts.shape[1]:,} labels."


def _histogram(sizes: Whole, width: int, marks: Marks) -> list[Text]:
    """How many clients have how much, a bar in a line."""
    edges = (factor_edges if differ_much(sizes) else even_edges)(sizes, BARS)
    clients = np.histogram(sizes, edges)[0].tolist()
    names = [_from_to(math.ceil(low), math.floor(high)) for low, high in pairwise(edges)]
    margin, digits = max(map(len, [*names, "examples"])), len(f"{max(clients):,}")
    room = max(1, width - margin - digits - 2 * GAP)
    lines = [Text("examples".rjust(margin) + " " * GAP + "clients", no_wrap=True)]
    for name, count in zip(names, clients, strict=True):
        bar = marks.shares[-1] * math.ceil(room * count / max(clients))
        line = Text(name.rjust(margin) + " " * GAP, no_wrap=True).append(bar, STYLES["local"])
        lines.append(line.append(f"{' ' * GAP if bar else ''}{count:,}"))
    return lines


def _from_to(low: int, high: int) -> str:
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
