"""Who holds which labels: the numbers behind a picture of a dataset.

Columns and indices are read block by block, and only where clients are looked at, so memory maps stay on the disk.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtailor.data.dataset import FederatedDataset
from fedtailor.data.examples import ClientExamples, Split

MAX_CLIENTS = 4000
"""So many clients have their labels counted; of more, so many evenly spaced ones."""
DISPLAY_GROUPS = ("participating", "train", "validation", "unseen")
"""In the order in which they are shown; participating clients are not listed as train as well."""
CHANNELS, SMALLEST_SIDE = (1, 3), 4  # of what is an image
NO_GROUP = "no group"
BLOCK_ROWS = 1 << 16

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


class LabelTable(NamedTuple):
    """How many examples of each label everybody has. `who` are the clients whose labels were counted."""

    sizes: IntArray  # [all clients] examples, each once, whatever splits it is in
    groups: NDArray[np.str_]  # [all clients]
    client_ids: IntArray  # by number, in the order of groups: all clients, or evenly spaced ones if there are very many
    client_names: NDArray[np.str_]  # [who]
    counts: IntArray | None  # [who, classes]; None: there are no labels to count
    server: IntArray | None  # [classes]; None: as above, or the server has nothing
    server_size: int
    reason: str  # why there are no labels to count; "": there are


class DatasetStats(NamedTuple):
    """A picture in a few numbers. Distances are total variation: 0 for equal shares of labels, 1 for disjoint ones."""

    smallest: int
    median: float
    mean: float
    std: float
    largest: int
    labels_per_client: (
        float | None
    )  # different labels of a client, mean; None, here and below: no labels were counted
    client_distance: float | None  # from a client's labels to all clients' together, mean
    server_distance: float | None  # from the server's to all clients' together
    client_server_distance: float | None  # from a client's to the server's, mean


def compute_label_table(dataset: FederatedDataset, max_clients: int = MAX_CLIENTS) -> LabelTable:
    """Counts labels over all splits, of at most so many clients."""
    clients, server = dataset.clients, dataset.server
    groups, reason = _get_client_groups(dataset), _explain_missing_labels(dataset)
    client_ids = subsample_evenly(np.argsort(_rank_groups(groups), kind="stable"), max_clients)
    classes = 0 if reason else dataset.classes or 0
    return LabelTable(
        sizes=_count_examples(clients),
        groups=groups,
        client_ids=client_ids,
        client_names=dataset.client_names[client_ids],
        counts=None if reason else _count_labels(clients, client_ids, classes),
        server=None
        if reason or server is None
        else _count_labels(server, np.array([0]), classes)[0],
        server_size=0 if server is None else len(server.splits["train"].index),
        reason=reason,
    )


def compute_stats(table: LabelTable) -> DatasetStats:
    """The picture in numbers: sizes of all clients, labels of those who were looked at."""
    sizes, counts = table.sizes, table.counts
    spread = (
        int(sizes.min()),
        float(np.median(sizes)),
        float(sizes.mean()),
        float(sizes.std()),
        int(sizes.max()),
    )
    if counts is None:
        return DatasetStats(
            *spread,
            labels_per_client=None,
            client_distance=None,
            server_distance=None,
            client_server_distance=None,
        )
    client_shares, overall = normalize_counts(counts), normalize_counts(counts.sum(axis=0))
    server = None if table.server is None else normalize_counts(table.server)
    return DatasetStats(
        *spread,
        labels_per_client=float((counts > 0).sum(axis=1).mean()),
        client_distance=float(total_variation(client_shares, overall).mean()),
        server_distance=None if server is None else float(total_variation(server, overall)),
        client_server_distance=None
        if server is None
        else float(total_variation(client_shares, server).mean()),
    )


def count_clients_by_group(table: LabelTable) -> dict[str, int]:
    """How many clients are in each group that has any."""
    sizes = np.bincount(_rank_groups(table.groups), minlength=len(_GROUP_RANK)).tolist()
    return {group: size for group, size in zip(_GROUP_RANK, sizes, strict=True) if size}


def normalize_counts(counts: IntArray) -> FloatArray:
    """Counts along the last axis as parts of their sum."""
    return np.asarray(counts / np.maximum(counts.sum(axis=-1, keepdims=True), 1))


def sort_by_main_label(table: LabelTable) -> IntArray:
    """Places in `who`, by group, then by commonest label, the most of it first; by size where no labels are."""
    ranks = _rank_groups(table.groups[table.client_ids])
    if table.counts is None:
        return np.lexsort((-table.sizes[table.client_ids], ranks))
    return np.lexsort((-table.counts.max(axis=1), table.counts.argmax(axis=1), ranks))


def subsample_evenly(order: IntArray, max_count: int) -> IntArray:
    """At most so many of them, evenly spaced, the first and the last included."""
    if len(order) <= max_count:
        return order
    return order[np.linspace(0, len(order) - 1, max_count).astype(np.int64)]


_GROUP_RANK = {group: rank for rank, group in enumerate((*DISPLAY_GROUPS, NO_GROUP))}


def _rank_groups(groups: NDArray[np.str_]) -> IntArray:
    return np.array([_GROUP_RANK[group] for group in groups.tolist()], np.int64)


def total_variation(one: FloatArray, other: FloatArray) -> FloatArray:
    """|p - q|_TV = 1/2 sum_z |p(z) - q(z)| along the last axis: 0 for equal distributions, 1 for disjoint ones."""
    return np.asarray(np.abs(one - other).sum(axis=-1) / 2)


def has_images(dataset: FederatedDataset) -> bool:
    """Whether an example is [1 or 3, height, width], or whole numbers [height, width]."""
    x, shape = dataset.clients.x, dataset.example_spec.shape
    if dataset.tokens or len(shape) not in (2, 3) or min(shape[-2:]) < SMALLEST_SIDE:
        return False
    return shape[0] in CHANNELS if len(shape) == 3 else x.dtype.kind in "iu"


def _explain_missing_labels(dataset: FederatedDataset) -> str:
    """What is in the way of counting labels."""
    shape = dataset.clients.y.shape[1:]
    if dataset.classes is None:
        return "Targets are numbers, not labels, so there are no labels to count."
    if shape:
        what = "tokens" if dataset.tokens else "numbers"
        return f"A target is {what} of shape {list(shape)}, not one label, so there are no labels to count."
    return ""


def _get_client_groups(dataset: FederatedDataset) -> NDArray[np.str_]:
    found = np.full(dataset.clients.count, NO_GROUP, dtype=f"<U{max(map(len, _GROUP_RANK))}")
    for group in reversed(DISPLAY_GROUPS):
        found[dataset.groups[group]] = group
    return found


def _get_distinct_splits(examples: ClientExamples) -> list[Split]:
    """The splits that hold all examples. Who adapts on train or test names the same split, which is one."""
    named = (
        examples.splits[name] for name in ("train", "test", "adapt") if name in examples.splits
    )
    return list({id(split): split for split in named}.values())


def _count_examples(examples: ClientExamples) -> IntArray:
    splits = _get_distinct_splits(examples)
    if len(splits) <= 2:
        return np.asarray(np.sum([split.sizes() for split in splits], axis=0))
    sizes = np.zeros(examples.count, np.int64)
    for _, owners in _iter_owned_rows(examples, np.arange(examples.count)):
        begin, end = int(owners[0]), int(owners[-1]) + 1
        sizes[begin:end] += np.bincount(owners - begin)
    return sizes


def _count_labels(examples: ClientExamples, client_ids: IntArray, classes: int) -> IntArray:
    counts = np.zeros((len(client_ids), classes), np.int64)
    for rows, owners in _iter_owned_rows(examples, client_ids):
        begin, end = int(owners[0]), int(owners[-1]) + 1
        cells = (owners - begin) * classes + examples.y[rows].astype(np.int64)
        counts[begin:end] += np.bincount(cells, minlength=(end - begin) * classes).reshape(
            -1, classes
        )
    return counts


def _iter_owned_rows(
    examples: ClientExamples, client_ids: IntArray
) -> Iterator[tuple[IntArray, IntArray]]:
    """Blocks of what these have: rows, and whose each is, as rising places in `who`; every example once."""
    splits = _get_distinct_splits(examples)
    seen = (
        np.zeros(len(examples.x), bool) if len(splits) > 2 else None
    )  # adapt may have what train has
    for split in splits:
        for rows, owners in _iter_split_blocks(split, client_ids):
            if seen is not None:
                fresh = ~seen[rows]
                seen[rows] = True
                rows, owners = rows[fresh], owners[fresh]
            if len(rows):
                yield rows, owners


def _iter_split_blocks(split: Split, client_ids: IntArray) -> Iterator[tuple[IntArray, IntArray]]:
    first, sizes = (
        split.offsets[client_ids],
        split.offsets[client_ids + 1] - split.offsets[client_ids],
    )
    ends = np.cumsum(sizes)
    shift = first - (ends - sizes)
    for begin in range(0, int(ends[-1]), BLOCK_ROWS):
        entries = np.arange(begin, min(begin + BLOCK_ROWS, int(ends[-1])))
        owners = np.searchsorted(ends, entries, "right")
        yield split.index[entries + shift[owners]], owners
