"""Data in a record: who has how much of what, and whether it is still the same."""

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedtailor.data.dataset import FederatedDataset, Units
from fedtailor.data.holders import Holders
from fedtailor.errors import require

MOST_CELLS = 200_000
"""Label counts are left out of the record when clients x classes are more."""
BLOCK = 1 << 16
"""Examples looked at together, so that a column that lies on the disk need not fit in RAM."""


def described(data: FederatedDataset) -> dict[str, Any]:
    """Who has how much of what."""
    count = data.clients.count
    small = data.classes is not None and data.clients.y.ndim == 1 and count * data.classes <= MOST_CELLS
    return {
        "name": data.name,
        "classes": data.classes,
        "server_examples": 0 if data.server is None else len(data.server.x),
        "overlap": data.overlap,
        "units": listed_units(data.units),
        "clients": data.ids.tolist(),
        "groups": {group: people.tolist() for group, people in data.groups.items()},
        "train_sizes": data.clients.splits["train"].sizes().tolist(),
        "test_sizes": data.clients.splits["test"].sizes().tolist(),
        "adapt_sizes": data.clients.splits["adapt"].sizes().tolist(),
        "adapts_on": data.adapts_on(),
        "labels": label_counts(data.clients, data.parts(), data.classes or 0).tolist() if small else None,
        "server_labels": label_counts(data.server, ("train",), data.classes or 0)[0].tolist()
        if small and data.server
        else None,
        "sum": fingerprint(data),
    }


def fingerprint(data: FederatedDataset) -> str:
    """A checksum of every example and of who holds it; columns of known identity are not read again."""
    found = hashlib.sha256(data.identity.encode())
    for holders in filter(None, (data.clients, data.server)):
        known = bool(data.identity) and holders is data.clients
        splits = [column for split in holders.splits.values() for column in split]
        for column in (*(() if known else (holders.x, holders.y)), *splits):
            found.update(f"{column.dtype.str} {column.shape}".encode())
            for begin in range(0, len(column), BLOCK):
                found.update(np.ascontiguousarray(column[begin : begin + BLOCK]).data)
    return found.hexdigest()


def require_same_data(record: Mapping[str, Any], data: FederatedDataset) -> None:
    """Refuses data that is not what the run was begun with."""
    require(
        record["data"] == described(data),
        f"Data set '{record['spec']['data']}' is no longer what it was when the run began; bring it back.",
    )


def listed_units(units: Units) -> dict[str, Any]:
    """Units as JSON has them."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in units._asdict().items()}


def units_of(content: Mapping[str, Any]) -> Units:
    """Units from JSON."""
    plain: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in content.items()}
    return Units(**plain)


def label_counts(holders: Holders, parts: tuple[str, ...], classes: int) -> np.ndarray:
    """How many examples of each class every holder has, in these splits together."""
    counts = np.zeros((holders.count, classes), dtype=np.int64)
    for split in (holders.splits[part] for part in parts):
        np.add.at(counts, (split.holders(), holders.y[split.index].astype(np.int64)), 1)
    return counts
