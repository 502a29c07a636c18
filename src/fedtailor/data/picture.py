"""Who holds which labels: the numbers behind a picture of a dataset.

Columns and indices are read block by block, and only where clients are looked at, so memory maps stay on the disk.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtailor.data.dataset import FederatedDataset
from fedtailor.data.holders import Holders, Split

MOST = 4000
"""So many clients have their labels counted; of more, so many evenly spaced ones."""
GROUPS = ("local", "train", "validation", "new")
"""In the order in which they are shown; whoever is local is not called train as well."""
CHANNELS, SMALLEST_SIDE = (1, 3), 4  # of what is an image
NO_GROUP = "no group"
BLOCK = 1 << 16

Whole = NDArray[np.int64]
Shares = NDArray[np.float64]


class Labels(NamedTuple):
    """How many examples of each label everybody has. `who` are the clients whose labels were counted."""

    sizes: Whole  # [all clients] examples, each once, whatever splits it is in
    groups: NDArray[np.str_]  # [all clients]
    who: Whole  # by number, in the order of groups: all clients, or evenly spaced ones if there are very many
    ids: NDArray[np.str_]  # [who]
    counts: Whole | None  # [who, classes]; None: there are no labels to count
    server: Whole | None  # [classes]; None: as above, or the server has nothing
    server_size: int
    why: str  # why there are no labels to count; "": there are


class Figures(NamedTuple):
    """A picture in a few numbers. Distances are total variation: 0 for equal shares of labels, 1 for disjoint ones."""

    smallest: int
    median: float
    mean: float
    std: float
    largest: int
    labels: float | None  # different labels of a client, mean; None, here and below: no labels were counted
    apart: float | None  # from a client's labels to all clients' together, mean
    server_apart: float | None  # from the server's to all clients' together
    from_server: float | None  # from a client's to the server's, mean


def label_table(dataset: FederatedDataset, most: int = MOST) -> Labels:
    """Counts labels over all splits, of at most so many clients."""
    clients, server = dataset.clients, dataset.server
    groups, why = _groups(dataset), _why(dataset)
    who = spaced(np.argsort(_ranks(groups), kind="stable"), most)
    classes = 0 if why else dataset.classes or 0
    return Labels(
        sizes=_sizes(clients),
        groups=groups,
        who=who,
        ids=dataset.ids[who],
        counts=None if why else _counts(clients, who, classes),
        server=None if why or server is None else _counts(server, np.array([0]), classes)[0],
        server_size=0 if server is None else len(server.splits["train"].index),
        why=why,
    )


def figures(table: Labels) -> Figures:
    """The picture in numbers: sizes of all clients, labels of those who were looked at."""
    sizes, counts = table.sizes, table.counts
    spread = (int(sizes.min()), float(np.median(sizes)), float(sizes.mean()), float(sizes.std()), int(sizes.max()))
    if counts is None:
        return Figures(*spread, labels=None, apart=None, server_apart=None, from_server=None)
    own, overall = shares(counts), shares(counts.sum(axis=0))
    server = None if table.server is None else shares(table.server)
    return Figures(
        *spread,
        labels=float((counts > 0).sum(axis=1).mean()),
        apart=float(total_variation(own, overall).mean()),
        server_apart=None if server is None else float(total_variation(server, overall)),
        from_server=None if server is None else float(total_variation(own, server).mean()),
    )


def people(table: Labels) -> dict[str, int]:
    """How many clients are in each group that has any."""
    sizes = np.bincount(_ranks(table.groups), minlength=len(_RANK)).tolist()
    return {group: size for group, size in zip(_RANK, sizes, strict=True) if size}


def shares(counts: Whole) -> Shares:
    """Counts along the last axis as parts of their sum."""
    return np.asarray(counts / np.maximum(counts.sum(axis=-1, keepdims=True), 1))


def main_label_order(table: Labels) -> Whole:
    """Places in `who`, by group, then by commonest label, the most of it first; by size where no labels are."""
    ranks = _ranks(table.groups[table.who])
    if table.counts is None:
        return np.lexsort((-table.sizes[table.who], ranks))
    return np.lexsort((-table.counts.max(axis=1), table.counts.argmax(axis=1), ranks))


def spaced(order: Whole, most: int) -> Whole:
    """At most so many of them, evenly spaced, the first and the last included."""
    if len(order) <= most:
        return order
    return order[np.linspace(0, len(order) - 1, most).astype(np.int64)]


_RANK = {group: rank for rank, group in enumerate((*GROUPS, NO_GROUP))}


def _ranks(groups: NDArray[np.str_]) -> Whole:
    return np.array([_RANK[group] for group in groups.tolist()], np.int64)


def total_variation(one: Shares, other: Shares) -> Shares:
    """|p - q|_TV = 1/2 sum_z |p(z) - q(z)| along the last axis: 0 for equal distributions, 1 for disjoint ones."""
    return np.asarray(np.abs(one - other).sum(axis=-1) / 2)


def are_images(dataset: FederatedDataset) -> bool:
    """Whether an example is [1 or 3, height, width], or whole numbers [height, width]."""
    x, shape = dataset.clients.x, dataset.units.shape
    if dataset.tokens or len(shape) not in (2, 3) or min(shape[-2:]) < SMALLEST_SIDE:
        return False
    return shape[0] in CHANNELS if len(shape) == 3 else x.dtype.kind in "iu"


def _why(dataset: FederatedDataset) -> str:
    """What is in the way of counting labels."""
    shape = dataset.clients.y.shape[1:]
    if dataset.classes is None:
        return "Targets are numbers, not labels, so there are no labels to count."
    if shape:
        what = "tokens" if dataset.tokens else "numbers"
        return f"A target is {what} of shape {list(shape)}, not one label, so there are no labels to count."
    return ""


def _groups(dataset: FederatedDataset) -> NDArray[np.str_]:
    found = np.full(dataset.clients.count, NO_GROUP, dtype=f"<U{max(map(len, _RANK))}")
    for group in reversed(GROUPS):
        found[dataset.groups[group]] = group
    return found


def _splits(holders: Holders) -> list[Split]:
    """The splits that hold all examples. Who adapts on train or test names the same split, which is one."""
    named = (holders.splits[name] for name in ("train", "test", "adapt") if name in holders.splits)
    return list({id(split): split for split in named}.values())


def _sizes(holders: Holders) -> Whole:
    splits = _splits(holders)
    if len(splits) <= 2:
        return np.asarray(np.sum([split.sizes() for split in splits], axis=0))
    sizes = np.zeros(holders.count, np.int64)
    for _, whose in _held(holders, np.arange(holders.count)):
        begin, end = int(whose[0]), int(whose[-1]) + 1
        sizes[begin:end] += np.bincount(whose - begin)
    return sizes


def _counts(holders: Holders, who: Whole, classes: int) -> Whole:
    counts = np.zeros((len(who), classes), np.int64)
    for rows, whose in _held(holders, who):
        begin, end = int(whose[0]), int(whose[-1]) + 1
        cells = (whose - begin) * classes + holders.y[rows].astype(np.int64)
        counts[begin:end] += np.bincount(cells, minlength=(end - begin) * classes).reshape(-1, classes)
    return counts


def _held(holders: Holders, who: Whole) -> Iterator[tuple[Whole, Whole]]:
    """Blocks of what these have: rows, and whose each is, as rising places in `who`; every example once."""
    splits = _splits(holders)
    seen = np.zeros(len(holders.x), bool) if len(splits) > 2 else None  # adapt may have what train has
    for split in splits:
        for rows, whose in _blocks(split, who):
            if seen is not None:
                fresh = ~seen[rows]
                seen[rows] = True
                rows, whose = rows[fresh], whose[fresh]
            if len(rows):
                yield rows, whose


def _blocks(split: Split, who: Whole) -> Iterator[tuple[Whole, Whole]]:
    first, sizes = split.offsets[who], split.offsets[who + 1] - split.offsets[who]
    ends = np.cumsum(sizes)
    shift = first - (ends - sizes)
    for begin in range(0, int(ends[-1]), BLOCK):
        entries = np.arange(begin, min(begin + BLOCK, int(ends[-1])))
        whose = np.searchsorted(ends, entries, "right")
        yield split.index[entries + shift[whose]], whose
