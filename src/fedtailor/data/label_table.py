"""Counts of labels per client: the numbers behind the pictures and figures of a data set.

Columns and indices are read in blocks, and only for the clients whose labels are counted, so that
memory maps stay on disk.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtailor.data.dataset import FederatedDataset
from fedtailor.data.examples import ClientExamples, Split

MAX_CLIENTS = 4000
"""Maximum number of clients whose labels are counted; of more, evenly spaced ones are taken."""

DISPLAY_GROUPS = ("participating", "train", "validation", "unseen")
"""Groups in the order of tables and pictures; a client is in the first of them that lists it."""

NO_GROUP = "no group"
"""Name of the group of clients that are in none."""

BLOCK_ROWS = 1 << 16
"""Number of rows read at a time."""

_IMAGE_CHANNELS = (1, 3)
_MIN_IMAGE_SIDE = 4

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


class LabelTable(NamedTuple):
    """Number of examples of each label for the clients whose labels were counted ("counted")."""

    sizes: IntArray  # [clients] number of examples of each client, each counted once
    groups: NDArray[np.str_]  # [clients] first of `DISPLAY_GROUPS` that each client is in
    client_ids: IntArray  # [counted] by group: all clients, or evenly spaced ones of very many
    client_names: NDArray[np.str_]  # [counted]
    counts: IntArray | None  # [counted, classes]; None: there are no labels to count
    server: IntArray | None  # [classes]; None: there are no labels, or the server has no examples
    server_size: int  # number of examples of the server
    reason: str  # why there are no labels to count; "": there are


class DatasetStats(NamedTuple):
    """Figures of a label table.

    Distances are total variation distances of label distributions: 0 for equal ones, 1 for
    disjoint ones. They and the number of labels are None where no labels were counted.
    """

    smallest: int  # number of examples of a client
    median: float
    mean: float
    std: float
    largest: int
    labels_per_client: float | None = None  # mean number of different labels of a client
    client_distance: float | None = None  # mean, from a client to all clients together
    server_distance: float | None = None  # from the server to all clients together
    client_server_distance: float | None = None  # mean, from a client to the server


def compute_label_table(dataset: FederatedDataset, max_clients: int = MAX_CLIENTS) -> LabelTable:
    """Return the number of examples of each label, over all splits, for at most `max_clients`."""
    clients = dataset.clients
    server = dataset.server
    groups = _get_client_groups(dataset)
    order = np.argsort(_rank_groups(groups), kind="stable")
    client_ids = subsample_evenly(order, max_clients)
    reason = _explain_missing_labels(dataset)
    client_counts = None
    server_counts = None
    if dataset.classes is not None and not reason:
        client_counts = _count_labels(clients, client_ids, dataset.classes)
        if server is not None:
            server_counts = _count_labels(server, np.array([0]), dataset.classes)[0]
    return LabelTable(
        sizes=_count_examples(clients),
        groups=groups,
        client_ids=client_ids,
        client_names=dataset.client_names[client_ids],
        counts=client_counts,
        server=server_counts,
        server_size=0 if server is None else len(server.splits["train"].index),
        reason=reason,
    )


def compute_stats(table: LabelTable) -> DatasetStats:
    """Return the figures of a label table: sizes of all clients, labels of the counted ones."""
    sizes = table.sizes
    stats = DatasetStats(
        smallest=int(sizes.min()),
        median=float(np.median(sizes)),
        mean=float(sizes.mean()),
        std=float(sizes.std()),
        largest=int(sizes.max()),
    )
    if table.counts is None:
        return stats
    num_labels = (table.counts > 0).sum(axis=1)
    client_shares = normalize_counts(table.counts)
    overall_shares = normalize_counts(table.counts.sum(axis=0))
    stats = stats._replace(
        labels_per_client=float(num_labels.mean()),
        client_distance=float(total_variation(client_shares, overall_shares).mean()),
    )
    if table.server is None:
        return stats
    server_shares = normalize_counts(table.server)
    return stats._replace(
        server_distance=float(total_variation(server_shares, overall_shares)),
        client_server_distance=float(total_variation(client_shares, server_shares).mean()),
    )


def count_clients_by_group(table: LabelTable) -> dict[str, int]:
    """Return the number of clients in each group that has any."""
    group_sizes = np.bincount(_rank_groups(table.groups), minlength=len(_GROUP_RANK)).tolist()
    sizes_by_group = zip(_GROUP_RANK, group_sizes, strict=True)
    return {group: size for group, size in sizes_by_group if size > 0}


def normalize_counts(counts: IntArray) -> FloatArray:
    """Return counts as shares of their sum along the last axis; zeros stay zeros."""
    totals = counts.sum(axis=-1, keepdims=True)
    return np.asarray(counts / np.maximum(totals, 1))


def sort_by_main_label(table: LabelTable) -> IntArray:
    """Return an order of the counted clients, by group and then by their most frequent label.

    Among clients with the same one, those with most examples of it come first. Without labels,
    clients are sorted by group and then by decreasing size.

    Returns:
        Indices into `table.client_ids`, [counted].
    """
    ranks = _rank_groups(table.groups[table.client_ids])
    if table.counts is None:
        return np.lexsort((-table.sizes[table.client_ids], ranks))
    main_label = table.counts.argmax(axis=1)
    main_count = table.counts.max(axis=1)
    return np.lexsort((-main_count, main_label, ranks))


def subsample_evenly(order: IntArray, max_count: int) -> IntArray:
    """Return at most `max_count` evenly spaced elements, the first and the last one included."""
    if len(order) <= max_count:
        return order
    return order[np.linspace(0, len(order) - 1, max_count).astype(np.int64)]


def total_variation(one: FloatArray, other: FloatArray) -> FloatArray:
    """Return |p - q|_TV = 1/2 sum_z |p(z) - q(z)| of two distributions along the last axis.

    It is 0 for equal distributions and 1 for disjoint ones.
    """
    return np.asarray(np.abs(one - other).sum(axis=-1) / 2)


def has_images(dataset: FederatedDataset) -> bool:
    """Return whether examples are [1 or 3, height, width], or integers [height, width]."""
    shape = dataset.example_spec.shape
    if dataset.tokens or len(shape) not in (2, 3):
        return False
    if min(shape[-2:]) < _MIN_IMAGE_SIDE:
        return False
    if len(shape) == 3:
        return shape[0] in _IMAGE_CHANNELS
    return dataset.clients.x.dtype.kind in "iu"


_GROUP_RANK = {group: rank for rank, group in enumerate((*DISPLAY_GROUPS, NO_GROUP))}


def _rank_groups(groups: NDArray[np.str_]) -> IntArray:
    return np.array([_GROUP_RANK[group] for group in groups.tolist()], np.int64)


def _explain_missing_labels(dataset: FederatedDataset) -> str:
    """Return a sentence that says why there are no labels to count, or "" if there are."""
    if dataset.classes is None:
        return "Targets are numbers, not labels, so there are no labels to count."
    shape = dataset.clients.y.shape[1:]
    if not shape:
        return ""
    values = "tokens" if dataset.tokens else "numbers"
    return (
        f"A target is {values} of shape {list(shape)}, not one label, so there are no labels to "
        "count."
    )


def _get_client_groups(dataset: FederatedDataset) -> NDArray[np.str_]:
    """Return the first of `DISPLAY_GROUPS` that each client is in, [clients]."""
    max_length = max(len(group) for group in _GROUP_RANK)
    groups = np.full(dataset.clients.count, NO_GROUP, dtype=f"<U{max_length}")
    for group in reversed(DISPLAY_GROUPS):
        groups[dataset.groups[group]] = group
    return groups


def _get_distinct_splits(examples: ClientExamples) -> list[Split]:
    """Return the splits that together have all examples, each split object once.

    Where clients adapt on "train" or "test", "adapt" is the same object as that split.
    """
    splits = {}
    for name in ("train", "test", "adapt"):
        if name in examples.splits:
            split = examples.splits[name]
            splits[id(split)] = split
    return list(splits.values())


def _count_examples(examples: ClientExamples) -> IntArray:
    """Return the number of examples of each client, [clients], counting each example once."""
    splits = _get_distinct_splits(examples)
    if len(splits) <= 2:
        return np.asarray(np.sum([split.compute_sizes() for split in splits], axis=0))
    sizes = np.zeros(examples.count, np.int64)
    for _, owners in _iter_owned_rows(examples, np.arange(examples.count)):
        first = int(owners[0])
        last = int(owners[-1])
        sizes[first : last + 1] += np.bincount(owners - first)
    return sizes


def _count_labels(examples: ClientExamples, client_ids: IntArray, classes: int) -> IntArray:
    """Return the number of examples of each label for some clients, [counted, classes]."""
    counts = np.zeros((len(client_ids), classes), np.int64)
    for rows, owners in _iter_owned_rows(examples, client_ids):
        first = int(owners[0])
        num_owners = int(owners[-1]) + 1 - first
        cells = (owners - first) * classes + examples.y[rows].astype(np.int64)
        block_counts = np.bincount(cells, minlength=num_owners * classes)
        counts[first : first + num_owners] += block_counts.reshape(num_owners, classes)
    return counts


def _iter_owned_rows(
    examples: ClientExamples, client_ids: IntArray
) -> Iterator[tuple[IntArray, IntArray]]:
    """Yield blocks of the clients' rows, and the owner of each row; every row comes once.

    Owners are indices into `client_ids`, sorted within a block.
    """
    splits = _get_distinct_splits(examples)
    # "train" and "test" are disjoint, but a third split, "adapt", may share rows with both.
    is_seen = np.zeros(len(examples.x), bool) if len(splits) > 2 else None
    for split in splits:
        for rows, owners in _iter_split_blocks(split, client_ids):
            if is_seen is not None:
                is_new = ~is_seen[rows]
                is_seen[rows] = True
                rows = rows[is_new]
                owners = owners[is_new]
            if len(rows):
                yield rows, owners


def _iter_split_blocks(split: Split, client_ids: IntArray) -> Iterator[tuple[IntArray, IntArray]]:
    """Yield blocks of the clients' rows in one split, and the owner of each row."""
    begins = split.offsets[client_ids]
    sizes = split.offsets[client_ids + 1] - begins
    ends = np.cumsum(sizes)
    # Entries of the clients are numbered one after another; the shift leads to their positions.
    shifts = begins - (ends - sizes)
    total = int(ends[-1])
    for start in range(0, total, BLOCK_ROWS):
        entries = np.arange(start, min(start + BLOCK_ROWS, total))
        owners = np.searchsorted(ends, entries, "right")
        yield split.index[entries + shifts[owners]], owners
