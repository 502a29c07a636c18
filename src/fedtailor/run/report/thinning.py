"""How many clients and points are drawn one by one, so that a page stays small whatever was compared."""

from collections.abc import Sequence

import numpy as np

MOST_CLIENTS = 2000  # per run and group
MOST_IN_ALL = 20_000  # of all runs and groups together
MOST_POINTS = 200  # of a curve


def most_of(runs: int, groups: int) -> int:
    """How many clients of a run and group are drawn, when there are so many of these."""
    return max(1, min(MOST_CLIENTS, MOST_IN_ALL // max(1, runs * groups)))


def thinned(places: Sequence[int], most: int) -> list[int]:
    """At most so many of them, evenly spaced."""
    if len(places) <= most:
        return list(places)
    return [places[int(place)] for place in np.linspace(0, len(places) - 1, most)]
