"""Limits on what is drawn one by one, so that a page stays small however much is compared."""

from collections.abc import Sequence

import numpy as np

MAX_CLIENTS = 2000
"""Clients of a run and group."""
MAX_TOTAL_CLIENTS = 20_000
"""Clients of all runs and groups together."""
MAX_POINTS = 200
"""Points of a curve."""


def get_max_clients(num_runs: int, num_groups: int) -> int:
    """Return how many clients of each run and group are drawn at most."""
    num_parts = max(1, num_runs * num_groups)
    return max(1, min(MAX_CLIENTS, MAX_TOTAL_CLIENTS // num_parts))


def thin(items: Sequence[int], max_items: int) -> list[int]:
    """Return at most `max_items` items, evenly spaced, with the first and the last among them."""
    if len(items) <= max_items:
        return list(items)
    return [items[int(position)] for position in np.linspace(0, len(items) - 1, max_items)]
