"""The sentences about a dataset: what it is, and what to know about its picture."""

import json
from collections.abc import Mapping
from typing import Any

from fedtailor.data.dataset import FederatedDataset
from fedtailor.data.label_table import LabelTable, compute_stats, count_clients_by_group
from fedtailor.reporting.html.wording import format_count, join_words


def format_options(options: Mapping[str, Any]) -> str:
    """Options as they are written on the command line."""
    return ", ".join(f"{key}={_format_value(value)}" for key, value in options.items())


def make_summary(dataset: FederatedDataset, table: LabelTable) -> str:
    """Examples, clients by group, classes and the server's examples in a sentence."""
    groups = join_words(
        f"{size:,} {group}" for group, size in count_clients_by_group(table).items()
    )
    clients_text = f"{format_count(int(table.sizes.sum()), 'example')} of {format_count(len(table.sizes), 'client')} ({groups})"
    labels = (
        ""
        if dataset.classes is None
        else f"{dataset.classes:,} {'class' if dataset.classes == 1 else 'classes'}"
    )
    server = (
        f"{format_count(table.server_size, 'example')} held by the server"
        if table.server_size
        else "none at the server"
    )
    return "; ".join(filter(None, (clients_text, labels, server))) + "."


def describe_figures(table: LabelTable) -> list[tuple[str, str]]:
    """The dataset in figures: what, and how much."""
    stats = compute_stats(table)
    spread = (
        f"median {stats.median:,g}, mean {stats.mean:,.1f}, standard deviation {stats.std:,.1f}"
    )
    lines = [("examples of a client", f"{stats.smallest:,} to {stats.largest:,}, {spread}")]
    if stats.labels_per_client is not None and table.counts is not None:
        lines += [
            (
                "labels of a client",
                f"{stats.labels_per_client:.1f} of {table.counts.shape[1]:,}, mean",
            )
        ]
        lines += [
            (
                "a client's differ",
                f"by {stats.client_distance:.2f} from all clients' together, mean total variation",
            )
        ]
    if stats.server_distance is not None:
        own = f"by {stats.server_distance:.2f} from all clients'"
        lines += [
            (
                "the server's differ",
                f"{own}, by {stats.client_server_distance:.2f} from a client's, mean",
            )
        ]
    return lines


def list_notes(dataset: FederatedDataset, table: LabelTable) -> list[str]:
    """What to know: clients that are not shown, why there are no labels, and declared overlap."""
    num_shown, num_clients = len(table.client_ids), len(table.sizes)
    sampled = (
        f"Labels are of {num_shown:,} of the {num_clients:,} clients, evenly spaced; sizes are of all."
        if num_shown < num_clients
        else ""
    )
    overlap = (
        f"The server's data overlaps the clients', as declared: {dataset.overlap}"
        if dataset.overlap
        else ""
    )
    return [
        sentence
        for sentence in (sampled if not table.reason else "", table.reason, overlap)
        if sentence
    ]


def _format_value(value: Any) -> str:
    """A value as it is written on the command line."""
    return json.dumps(value) if isinstance(value, bool) else "none" if value is None else str(value)
