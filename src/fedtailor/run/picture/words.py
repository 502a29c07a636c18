"""The sentences about a dataset: what it is, and what to know about its picture."""

import json
from collections.abc import Mapping
from typing import Any

from fedtailor.data.dataset import FederatedDataset
from fedtailor.data.picture import Labels, figures, people
from fedtailor.run.report.wording import counted, listed


def options_in_words(options: Mapping[str, Any]) -> str:
    """Options as they are written on the command line."""
    return ", ".join(f"{key}={_typed(value)}" for key, value in options.items())


def summary(dataset: FederatedDataset, table: Labels) -> str:
    """Examples, clients by group, classes and the server's examples in a sentence."""
    groups = listed(f"{size:,} {group}" for group, size in people(table).items())
    held = f"{counted(int(table.sizes.sum()), 'example')} of {counted(len(table.sizes), 'client')} ({groups})"
    labels = "" if dataset.classes is None else f"{dataset.classes:,} {'class' if dataset.classes == 1 else 'classes'}"
    server = (
        f"{counted(table.server_size, 'example')} held by the server" if table.server_size else "none at the server"
    )
    return "; ".join(filter(None, (held, labels, server))) + "."


def said(table: Labels) -> list[tuple[str, str]]:
    """The dataset in figures: what, and how much."""
    found = figures(table)
    spread = f"median {found.median:,g}, mean {found.mean:,.1f}, standard deviation {found.std:,.1f}"
    lines = [("examples of a client", f"{found.smallest:,} to {found.largest:,}, {spread}")]
    if found.labels is not None and table.counts is not None:
        lines += [("labels of a client", f"{found.labels:.1f} of {table.counts.shape[1]:,}, mean")]
        lines += [("a client's differ", f"by {found.apart:.2f} from all clients' together, mean total variation")]
    if found.server_apart is not None:
        own = f"by {found.server_apart:.2f} from all clients', by {found.from_server:.2f} from a client's, mean"
        lines += [("the server's differ", own)]
    return lines


def sentences(dataset: FederatedDataset, table: Labels) -> list[str]:
    """What to know: clients that are not shown, why there are no labels, and declared overlap."""
    shown, of = len(table.who), len(table.sizes)
    sampled = f"Labels are of {shown:,} of the {of:,} clients, evenly spaced; sizes are of all." if shown < of else ""
    overlap = f"The server's data overlaps the clients', as declared: {dataset.overlap}" if dataset.overlap else ""
    return [sentence for sentence in (sampled if not table.why else "", table.why, overlap) if sentence]


def _typed(value: Any) -> str:
    """A value as it is written on the command line."""
    return json.dumps(value) if isinstance(value, bool) else "none" if value is None else str(value)
