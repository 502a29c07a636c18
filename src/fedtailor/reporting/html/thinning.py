"""How many clients and points are drawn one by one, so that a page stays small whatever was compared."""

from collections.abc import Sequence

import numpy as np

MAX_CLIENTS = 2000  # per run and group
MAX_TOTAL_CLIENTS = 20_000  # of all runs and groups together
MAX_POINTS = 200  # of a curve


def get_max_clients(num_runs: int, num_groups: int) -> int:
    """How many clients of a run and group are drawn, when there are so many of these."""
    return max(1, min(MAX_CLIENTS, MAX_TOTAL_CLIENTS // max(1, num_runs * num_groups)))


def thin(items: Sequence[int], max_items: int) -> list[int]:
    """At most so many of them, evenly spaced."""
    if len(items) <= max_items:
        return list(items)
    return [items[int(position)] for position in np.linspace(0, len(items) - 1, max_items)]
