"""What the page draws, as plain numbers: clients one by one, sizes of all of them, and shares of labels."""

import math
from typing import Any

import numpy as np

from fedtailor.data.label_table import IntArray, LabelTable, normalize_counts, sort_by_main_label

NUM_BARS = 30
"""About so many bars show the sizes of clients."""
LOG_AXIS_FACTOR = 10
"""Sizes that differ by this factor can also be seen on a logarithmic axis."""


def build_payload(table: LabelTable) -> dict[str, Any]:
    """Everything that the page's scripts draw."""
    return {
        "data": _clients_to_json(table),
        "sizes": _sizes_to_json(table.sizes),
        "mixture": _mixture_to_json(table),
    }


def _clients_to_json(table: LabelTable) -> dict[str, Any] | None:
    """Clients in order of group and commonest label."""
    if table.counts is None:
        return None
    order = sort_by_main_label(table)
    client_ids = table.client_ids[order]
    return {
        "ids": table.client_names[order].tolist(),
        "group": table.groups[client_ids].tolist(),
        "sizes": table.sizes[client_ids].tolist(),
        "labels": table.counts[order].tolist(),
        "server": table.server_size,
        "server_labels": None if table.server is None else table.server.tolist(),
    }


def _sizes_to_json(sizes: IntArray) -> dict[str, Any]:
    """How many clients have how much, in even steps, and in equal factors where sizes differ much."""
    found: dict[str, Any] = {"median": float(np.median(sizes)), "most": int(sizes.max())}
    found |= {"linear": _count_histogram(sizes, compute_even_edges(sizes, NUM_BARS))}
    return found | (
        {"log": _count_histogram(sizes, compute_log_edges(sizes, NUM_BARS))}
        if has_wide_range(sizes)
        else {}
    )


def has_wide_range(sizes: IntArray) -> bool:
    """Whether even steps would put most clients into one."""
    return 0 < LOG_AXIS_FACTOR * int(sizes.min()) <= int(sizes.max())


def compute_even_edges(sizes: IntArray, max_bars: int) -> list[float]:
    """Bounds between sizes, at most so many steps of a round number, plus one."""
    low, high = int(sizes.min()), int(sizes.max())
    width = _round_up_nicely((high - low + 1) / max_bars)
    first = low // width * width
    return [first + width * step - 0.5 for step in range((high - first) // width + 2)]


def compute_log_edges(sizes: IntArray, max_bars: int) -> list[float]:
    """Bounds between sizes, at most so many steps of about the same factor, plus one."""
    firsts = np.geomspace(int(sizes.min()), int(sizes.max()) + 1, max_bars + 1)
    return [float(first) - 0.5 for first in np.unique(np.rint(firsts))]


def _count_histogram(sizes: IntArray, edges: list[float]) -> dict[str, Any]:
    return {"edges": edges, "clients": np.histogram(sizes, edges)[0].tolist()}


def _round_up_nicely(minimum: float) -> int:
    """The smallest of 1, 2, 5, 10, 20, 50, ... that is as large."""
    power = 10 ** max(0, math.floor(math.log10(max(minimum, 1))))
    return next(int(factor * power) for factor in (1, 2, 5, 10) if factor * power >= minimum)


def _mixture_to_json(table: LabelTable) -> dict[str, Any] | None:
    """Each label's share: of a client's examples, mean; and of the server's."""
    if table.counts is None:
        return None
    server = None if table.server is None else normalize_counts(table.server).tolist()
    return {"clients": normalize_counts(table.counts).mean(axis=0).tolist(), "server": server}
