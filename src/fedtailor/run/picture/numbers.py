"""What the page draws, as plain numbers: clients one by one, sizes of all of them, and shares of labels."""

import math
from typing import Any

import numpy as np

from fedtailor.data.picture import Labels, Whole, main_label_order, shares

BARS = 30
"""About so many bars show the sizes of clients."""
WIDE = 10
"""Sizes that differ by this factor can also be seen on a logarithmic axis."""


def payload(table: Labels) -> dict[str, Any]:
    """Everything that the page's scripts draw."""
    return {"data": _clients(table), "sizes": _sizes(table.sizes), "mixture": _mixture(table)}


def _clients(table: Labels) -> dict[str, Any] | None:
    """Clients in order of group and commonest label."""
    if table.counts is None:
        return None
    order = main_label_order(table)
    who = table.who[order]
    return {
        "ids": table.ids[order].tolist(),
        "group": table.groups[who].tolist(),
        "sizes": table.sizes[who].tolist(),
        "labels": table.counts[order].tolist(),
        "server": table.server_size,
        "server_labels": None if table.server is None else table.server.tolist(),
    }


def _sizes(sizes: Whole) -> dict[str, Any]:
    """How many clients have how much, in even steps, and in equal factors where sizes differ much."""
    found: dict[str, Any] = {"median": float(np.median(sizes)), "most": int(sizes.max())}
    found |= {"linear": _histogram(sizes, even_edges(sizes, BARS))}
    return found | ({"log": _histogram(sizes, factor_edges(sizes, BARS))} if differ_much(sizes) else {})


def differ_much(sizes: Whole) -> bool:
    """Whether even steps would put most clients into one."""
    return 0 < WIDE * int(sizes.min()) <= int(sizes.max())


def even_edges(sizes: Whole, bars: int) -> list[float]:
    """Bounds between sizes, at most so many steps of a round number, plus one."""
    low, high = int(sizes.min()), int(sizes.max())
    width = _round_number((high - low + 1) / bars)
    first = low // width * width
    return [first + width * step - 0.5 for step in range((high - first) // width + 2)]


def factor_edges(sizes: Whole, bars: int) -> list[float]:
    """Bounds between sizes, at most so many steps of about the same factor, plus one."""
    firsts = np.geomspace(int(sizes.min()), int(sizes.max()) + 1, bars + 1)
    return [float(first) - 0.5 for first in np.unique(np.rint(firsts))]


def _histogram(sizes: Whole, edges: list[float]) -> dict[str, Any]:
    return {"edges": edges, "clients": np.histogram(sizes, edges)[0].tolist()}


def _round_number(least: float) -> int:
    """The smallest of 1, 2, 5, 10, 20, 50, ... that is as large."""
    power = 10 ** max(0, math.floor(math.log10(max(least, 1))))
    return next(int(factor * power) for factor in (1, 2, 5, 10) if factor * power >= least)


def _mixture(table: Labels) -> dict[str, Any] | None:
    """Each label's share: of a client's examples, mean; and of the server's."""
    if table.counts is None:
        return None
    server = None if table.server is None else shares(table.server).tolist()
    return {"clients": shares(table.counts).mean(axis=0).tolist(), "server": server}
