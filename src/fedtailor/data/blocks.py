"""What readers of files hand to the store: pieces of columns, client by client, so that no data set need fit in RAM."""

from typing import NamedTuple

from fedtailor.data.holders import Array


class Block(NamedTuple):
    """Some examples of one client; blocks of the same client come one after another.

    Columns are "x" and "y", and whatever else belongs to an example: "testing" (of the canonical test part), "coarse"
    (a coarser label), "style". All blocks of a data set have the same columns, of the same types and row shapes.
    """

    client: str  # "": the set has no clients of its own
    columns: dict[str, Array]  # equally long
