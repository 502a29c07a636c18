"""A picture of the data, as plain numbers: who has how much of what."""

from typing import Any

import numpy as np

from fedtailor.run.report.figures import numbers
from fedtailor.run.report.grouping import Record, seed_of
from fedtailor.run.report.thinning import MOST_CLIENTS, thinned

_ORDER = ("local", "train", "validation", "new")


def picture(run: Record) -> dict[str, Any]:
    """The first run's data: clients in order of group and of their commonest label, with sizes and label counts."""
    data = run["data"]
    group_of = _group_of(data)
    inside = sorted(group_of, key=lambda client: (_ORDER.index(group_of[client]), *_commonest(data, client)))
    order = thinned(inside, MOST_CLIENTS)
    return {
        "seed": seed_of(run),
        "of": len(group_of),
        "ids": [data["clients"][client] for client in order],
        "group": [group_of[client] for client in order],
        "train": [data["train_sizes"][client] for client in order],
        "labels": None if data["labels"] is None else [data["labels"][client] for client in order],
        "server": data["server_examples"],
        "server_labels": data["server_labels"],
    }


def _group_of(data: dict[str, Any]) -> dict[int, str]:
    return {client: group for group in reversed(_ORDER) for client in data["groups"].get(group, ())}


def _commonest(data: dict[str, Any], client: int) -> tuple[int, int]:
    """The client's commonest label and its count, largest first, for sorting; its size where labels are unknown."""
    if data["labels"] is None:
        return 0, -data["train_sizes"][client]
    counts = data["labels"][client]
    return int(np.argmax(numbers(counts))), -max(counts)
