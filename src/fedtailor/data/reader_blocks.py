"""What readers of files hand to the store: pieces of columns, client by client, so that no data set need fit in RAM."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from fedtailor.data.examples import Array
from fedtailor.data.validation import hash_rows


class Block(NamedTuple):
    """Some examples of one client; blocks of the same client come one after another.

    Columns are "x" and "y", and whatever else belongs to an example: "testing" (of the canonical test part), "coarse"
    (a coarser label), "style". All blocks of a data set have the same columns, of the same types and row shapes.
    """

    client: str  # "": the set has no clients of its own
    columns: dict[str, Array]  # equally long


def drop_duplicates(blocks: Iterable[Block]) -> Iterator[Block]:
    """The same blocks, but of examples that one client has several times only the first."""
    client, seen = None, np.zeros(0, np.uint64)
    for block in blocks:
        seen = seen if block.client == client else seen[:0]
        client, hashes = block.client, hash_rows(block.columns["x"])
        fresh = np.isin(np.arange(len(hashes)), np.unique(hashes, return_index=True)[1]) & ~np.isin(
            hashes, seen
        )
        seen = np.concatenate([seen, hashes[fresh]])
        if fresh.all():
            yield block
        elif fresh.any():
            yield Block(
                block.client, {name: column[fresh] for name, column in block.columns.items()}
            )
