"""The numbers of the chart of the data: how many examples of which labels each client has."""

from typing import Any

import numpy as np

from fedtailor.reporting.html.thinning import MAX_CLIENTS, thin
from fedtailor.training.record.schema import DatasetSummary, RunRecord

GROUP_ORDER = ("participating", "train", "validation", "unseen")
"""A client in several groups is shown in the first of them."""


def build_data_payload(run: RunRecord) -> dict[str, Any]:
    """Return sizes and label counts of a run's clients, ordered by group and main label."""
    data = run.data
    group_by_client = _map_clients_to_groups(data)

    def get_rank(client: int) -> tuple[int, int, int]:
        group_rank = GROUP_ORDER.index(group_by_client[client])
        return group_rank, *_get_main_label(data, client)

    clients = thin(sorted(group_by_client, key=get_rank), MAX_CLIENTS)
    labels = None
    if data.labels is not None:
        labels = [data.labels[client] for client in clients]
    return {
        "seed": run.config.seed,
        "total": len(group_by_client),
        "ids": [data.clients[client] for client in clients],
        "group": [group_by_client[client] for client in clients],
        "train": [data.train_sizes[client] for client in clients],
        "labels": labels,
        "server": data.server_examples,
        "server_labels": data.server_labels,
    }


def _map_clients_to_groups(data: DatasetSummary) -> dict[int, str]:
    groups: dict[int, str] = {}
    for group in reversed(GROUP_ORDER):
        for client in data.groups[group]:
            groups[client] = group
    return groups


def _get_main_label(data: DatasetSummary, client: int) -> tuple[int, int]:
    """Return a client's most frequent label and minus its count, to sort by.

    Where labels are unknown, clients are sorted by their size.
    """
    if data.labels is None:
        return 0, -data.train_sizes[client]
    counts = data.labels[client]
    return int(np.argmax(counts)), -max(counts)
