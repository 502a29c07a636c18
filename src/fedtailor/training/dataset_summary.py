"""Data in a record: who has how much of what, and whether it is still the same."""

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedtailor.data.dataset import ExampleSpec, FederatedDataset
from fedtailor.data.examples import ClientExamples
from fedtailor.errors import require

MAX_LABEL_CELLS = 200_000
"""Label counts are left out of the record when clients x classes are more."""
BLOCK_SIZE = 1 << 16
"""Examples looked at together, so that a column that lies on the disk need not fit in RAM."""


def summarize_dataset(data: FederatedDataset) -> dict[str, Any]:
    """Who has how much of what."""
    num_clients = data.clients.count
    has_label_counts = (
        data.classes is not None
        and data.clients.y.ndim == 1
        and num_clients * data.classes <= MAX_LABEL_CELLS
    )
    return {
        "name": data.name,
        "classes": data.classes,
        "server_examples": 0 if data.server is None else len(data.server.x),
        "overlap": data.overlap,
        "example_spec": example_spec_to_json(data.example_spec),
        "clients": data.client_names.tolist(),
        "groups": {group: client_ids.tolist() for group, client_ids in data.groups.items()},
        "train_sizes": data.clients.splits["train"].sizes().tolist(),
        "test_sizes": data.clients.splits["test"].sizes().tolist(),
        "adapt_sizes": data.clients.splits["adapt"].sizes().tolist(),
        "adapts_on": data.get_adapt_split(),
        "labels": count_labels(data.clients, data.get_disjoint_splits(), data.classes or 0).tolist()
        if has_label_counts
        else None,
        "server_labels": count_labels(data.server, ("train",), data.classes or 0)[0].tolist()
        if has_label_counts and data.server
        else None,
        "checksum": compute_fingerprint(data),
    }


def compute_fingerprint(data: FederatedDataset) -> str:
    """A checksum of every example and of who holds it; columns of known identity are not read again."""
    digest = hashlib.sha256(data.content_hash.encode())
    for examples in filter(None, (data.clients, data.server)):
        is_known = bool(data.content_hash) and examples is data.clients
        splits = [column for split in examples.splits.values() for column in split]
        for column in (*(() if is_known else (examples.x, examples.y)), *splits):
            digest.update(f"{column.dtype.str} {column.shape}".encode())
            for start in range(0, len(column), BLOCK_SIZE):
                digest.update(np.ascontiguousarray(column[start : start + BLOCK_SIZE]).data)
    return digest.hexdigest()


def require_same_data(record: Mapping[str, Any], data: FederatedDataset) -> None:
    """Refuses data that is not what the run was begun with."""
    require(
        record["data"] == summarize_dataset(data),
        f"Data set '{record['config']['data']}' is no longer what it was when the run began; bring it back.",
    )


def example_spec_to_json(example_spec: ExampleSpec) -> dict[str, Any]:
    """Units as JSON has them."""
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in example_spec._asdict().items()
    }


def example_spec_from_json(content: Mapping[str, Any]) -> ExampleSpec:
    """Units from JSON."""
    values: dict[str, Any] = {
        name: tuple(v) if isinstance(v, list) else v for name, v in content.items()
    }
    return ExampleSpec(**values)


def count_labels(
    examples: ClientExamples, split_names: tuple[str, ...], classes: int
) -> np.ndarray:
    """How many examples of each class every holder has, in these splits together."""
    counts = np.zeros((examples.count, classes), dtype=np.int64)
    for split in (examples.splits[split_name] for split_name in split_names):
        np.add.at(counts, (split.owners(), examples.y[split.index].astype(np.int64)), 1)
    return counts
