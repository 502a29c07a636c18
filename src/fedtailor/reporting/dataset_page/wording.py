"""The sentences about a data set: what it holds, and what to know about its picture."""

import json
from collections.abc import Mapping
from typing import Any

from fedtailor.data.dataset import FederatedDataset
from fedtailor.data.label_table import LabelTable, compute_stats, count_clients_by_group
from fedtailor.data.row_counts import OVERLAP_NOTE
from fedtailor.errors import join_items
from fedtailor.reporting.html.wording import format_count


def format_options(options: Mapping[str, Any]) -> str:
    """Return options as they are written on the command line."""
    return ", ".join(f"{key}={_format_value(value)}" for key, value in options.items())


def _format_value(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return json.dumps(value)
    return str(value)


def make_summary(dataset: FederatedDataset, table: LabelTable) -> str:
    """Return examples, clients by group, classes and the server's examples in a sentence."""
    group_sizes = count_clients_by_group(table)
    groups = join_items(f"{size:,} {group}" for group, size in group_sizes.items())
    examples = format_count(int(table.sizes.sum()), "example")
    clients = format_count(len(table.sizes), "client")
    parts = [f"{examples} of {clients} ({groups})"]
    if dataset.classes is not None:
        noun = "class" if dataset.classes == 1 else "classes"
        parts.append(f"{dataset.classes:,} {noun}")
    if table.server_size:
        parts.append(f"{format_count(table.server_size, 'example')} held by the server")
    else:
        parts.append("none held by the server")
    return "; ".join(parts) + "."


def describe_figures(table: LabelTable) -> list[tuple[str, str]]:
    """Return the figures of a data set as texts: names and values."""
    stats = compute_stats(table)
    size_range = f"{stats.smallest:,} to {stats.largest:,}"
    figures = [
        (
            "examples of a client",
            f"{size_range}, median {stats.median:,g}, mean {stats.mean:,.1f}, "
            f"standard deviation {stats.std:,.1f}",
        )
    ]
    if stats.labels_per_client is not None and table.counts is not None:
        num_labels = table.counts.shape[1]
        figures += [
            ("labels of a client", f"{stats.labels_per_client:.1f} of {num_labels:,}, mean"),
            (
                "a client's differ",
                f"by {stats.client_distance:.2f} from all clients' together, mean total variation",
            ),
        ]
    if stats.server_distance is not None:
        figures.append(
            (
                "the server's differ",
                f"by {stats.server_distance:.2f} from all clients', "
                f"by {stats.client_server_distance:.2f} from a client's, mean",
            )
        )
    return figures


def list_notes(dataset: FederatedDataset, table: LabelTable) -> list[str]:
    """Return notes on all rows, clients that are not drawn, missing labels, and overlap."""
    notes = [str(dataset.row_counts)]
    num_drawn = len(table.client_ids)
    num_clients = len(table.sizes)
    if table.reason:
        notes.append(table.reason)
    elif num_drawn < num_clients:
        notes.append(
            f"Labels are of {num_drawn:,} of the {num_clients:,} clients, evenly spaced; "
            "sizes are of all."
        )
    if dataset.overlap:
        notes.append(OVERLAP_NOTE)
    return notes
