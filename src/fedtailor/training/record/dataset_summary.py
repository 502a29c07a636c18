"""Data sets in a record: the clients and their sizes, and whether the data are still the same."""

import hashlib

import numpy as np

from fedtailor.data.dataset import FederatedDataset
from fedtailor.data.examples import ClientExamples
from fedtailor.errors import require
from fedtailor.training.record.schema import DatasetSummary, RunRecord

MAX_LABEL_CELLS = 200_000
"""Label counts are left out of the record when clients x classes are more."""
BLOCK_SIZE = 1 << 16
"""Examples that are hashed together, so that a column on disk need not fit in RAM."""


def summarize_dataset(data: FederatedDataset) -> DatasetSummary:
    """Return the clients of a data set with their groups, sizes and label counts."""
    splits = data.clients.splits
    server_examples = 0 if data.server is None else len(data.server.x)
    labels = None
    server_labels = None
    if _has_countable_labels(data):
        num_classes = data.classes or 0
        labels = count_labels(data.clients, data.get_disjoint_splits(), num_classes).tolist()
        if data.server:
            server_labels = count_labels(data.server, ("train",), num_classes)[0].tolist()
    return DatasetSummary(
        name=data.name,
        classes=data.classes,
        server_examples=server_examples,
        overlap=data.overlap,
        rows=data.row_counts,
        example_spec=data.example_spec,
        clients=data.client_names.tolist(),
        groups={group: client_ids.tolist() for group, client_ids in data.groups.items()},
        train_sizes=splits["train"].compute_sizes().tolist(),
        test_sizes=splits["test"].compute_sizes().tolist(),
        adapt_sizes=splits["adapt"].compute_sizes().tolist(),
        adapts_on=data.get_adapt_split(),
        labels=labels,
        server_labels=server_labels,
        checksum=compute_fingerprint(data),
    )


def _has_countable_labels(data: FederatedDataset) -> bool:
    if data.classes is None or data.clients.y.ndim != 1:
        return False
    return data.clients.count * data.classes <= MAX_LABEL_CELLS


def compute_fingerprint(data: FederatedDataset) -> str:
    """Return a checksum of every example and of its owner.

    Columns whose content has a hash already are not read again.
    """
    digest = hashlib.sha256(data.content_hash.encode())
    for examples in (data.clients, data.server):
        if examples is None:
            continue
        columns = [column for split in examples.splits.values() for column in split]
        is_known = bool(data.content_hash) and examples is data.clients
        if not is_known:
            columns = [examples.x, examples.y, *columns]
        for column in columns:
            digest.update(f"{column.dtype.str} {column.shape}".encode())
            for start in range(0, len(column), BLOCK_SIZE):
                digest.update(np.ascontiguousarray(column[start : start + BLOCK_SIZE]).data)
    return digest.hexdigest()


def require_same_data(record: RunRecord, data: FederatedDataset) -> None:
    """Raise an error if the data are not what the run began with."""
    require(
        record.data == summarize_dataset(data),
        f"Data set '{record.config.data}' has changed since the run began; restore it to resume.",
    )


def count_labels(
    examples: ClientExamples, split_names: tuple[str, ...], classes: int
) -> np.ndarray:
    """Return the number of examples of each class that every client has in some splits together.

    Args:
        examples: The clients' examples, labeled with integers below `classes`.
        split_names: Splits that have no example in common.
        classes: Number of classes.

    Returns:
        Counts [clients, classes].
    """
    counts = np.zeros((examples.count, classes), dtype=np.int64)
    for split_name in split_names:
        split = examples.splits[split_name]
        labels = examples.y[split.index].astype(np.int64)
        np.add.at(counts, (split.compute_owners(), labels), 1)
    return counts
