"""A picture of the data, as plain numbers: who has how much of what."""

from typing import Any

import numpy as np

from fedtailor.reporting.html.figures import to_floats
from fedtailor.reporting.html.grouping import Record, get_seed
from fedtailor.reporting.html.thinning import MAX_CLIENTS, thin

_GROUP_ORDER = ("participating", "train", "validation", "unseen")


def build_data_payload(run: Record) -> dict[str, Any]:
    """The first run's data: clients in order of group and of their commonest label, with sizes and label counts."""
    data = run["data"]
    group_by_client = _map_groups(data)
    ordered_ids = sorted(
        group_by_client,
        key=lambda client: (
            _GROUP_ORDER.index(group_by_client[client]),
            *_get_main_label(data, client),
        ),
    )
    drawn_ids = thin(ordered_ids, MAX_CLIENTS)
    return {
        "seed": get_seed(run),
        "of": len(group_by_client),
        "ids": [data["clients"][client] for client in drawn_ids],
        "group": [group_by_client[client] for client in drawn_ids],
        "train": [data["train_sizes"][client] for client in drawn_ids],
        "labels": None
        if data["labels"] is None
        else [data["labels"][client] for client in drawn_ids],
        "server": data["server_examples"],
        "server_labels": data["server_labels"],
    }


def _map_groups(data: dict[str, Any]) -> dict[int, str]:
    return {
        client: group
        for group in reversed(_GROUP_ORDER)
        for client in data["groups"].get(group, ())
    }


def _get_main_label(data: dict[str, Any], client: int) -> tuple[int, int]:
    """The client's commonest label and its count, largest first, for sorting; its size where labels are unknown."""
    if data["labels"] is None:
        return 0, -data["train_sizes"][client]
    counts = data["labels"][client]
    return int(np.argmax(to_floats(counts))), -max(counts)
