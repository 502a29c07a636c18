"""The numbers that the page draws: clients one by one, sizes of all clients, shares of labels."""

import math
from typing import Any

import numpy as np

from fedtailor.data.label_table import IntArray, LabelTable, normalize_counts, sort_by_main_label

MAX_BARS = 30
"""Bars of the histogram of sizes; up to two more where bounds are rounded."""
LOG_AXIS_FACTOR = 10
"""Sizes that differ by this factor can also be seen in steps of a factor."""


def build_payload(table: LabelTable) -> dict[str, Any]:
    """Return everything that the page's scripts draw."""
    return {
        "data": _build_clients(table),
        "sizes": _build_sizes(table.sizes),
        "mixture": _build_mixture(table),
    }


def _build_clients(table: LabelTable) -> dict[str, Any] | None:
    """Return sizes and label counts of clients, by group and main label; None without labels."""
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


def _build_sizes(sizes: IntArray) -> dict[str, Any]:
    """Return histograms of sizes: in even steps and, if sizes differ much, in steps of a factor."""
    payload: dict[str, Any] = {
        "median": float(np.median(sizes)),
        "most": int(sizes.max()),
        "linear": _count_histogram(sizes, compute_even_edges(sizes, MAX_BARS)),
    }
    if has_wide_range(sizes):
        payload["log"] = _count_histogram(sizes, compute_log_edges(sizes, MAX_BARS))
    return payload


def has_wide_range(sizes: IntArray) -> bool:
    """Return whether sizes differ so much that even steps would put most clients into one bar."""
    smallest = int(sizes.min())
    return 0 < LOG_AXIS_FACTOR * smallest <= int(sizes.max())


def compute_even_edges(sizes: IntArray, max_bars: int) -> list[float]:
    """Return bounds between sizes in steps of a round number, for at most `max_bars` + 1 bars."""
    low = int(sizes.min())
    high = int(sizes.max())
    width = _round_up_nicely((high - low + 1) / max_bars)
    first = low // width * width
    num_bars = (high - first) // width + 1
    return [first + width * step - 0.5 for step in range(num_bars + 1)]


def compute_log_edges(sizes: IntArray, max_bars: int) -> list[float]:
    """Return bounds between sizes in steps of about one factor, for at most `max_bars` bars."""
    bounds = np.geomspace(int(sizes.min()), int(sizes.max()) + 1, max_bars + 1)
    return [float(bound) - 0.5 for bound in np.unique(np.rint(bounds))]


def _count_histogram(sizes: IntArray, edges: list[float]) -> dict[str, Any]:
    return {"edges": edges, "clients": np.histogram(sizes, edges)[0].tolist()}


def _round_up_nicely(minimum: float) -> int:
    """Return the smallest of 1, 2, 5, 10, 20, 50, ... that is at least `minimum`."""
    power = 10 ** max(0, math.floor(math.log10(max(minimum, 1))))
    candidates = [factor * power for factor in (1, 2, 5, 10)]
    return int(next(candidate for candidate in candidates if candidate >= minimum))


def _build_mixture(table: LabelTable) -> dict[str, Any] | None:
    """Return the share of each label: mean over clients, and at the server; None without labels."""
    if table.counts is None:
        return None
    server_shares = None
    if table.server is not None:
        server_shares = normalize_counts(table.server).tolist()
    client_shares = normalize_counts(table.counts).mean(axis=0)
    return {"clients": client_shares.tolist(), "server": server_shares}
