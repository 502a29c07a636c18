"""Blocks of examples: what readers of files pass on to the store, so that no data set need fit in RAM."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from fedtailor.data.content_hash import hash_rows
from fedtailor.data.examples import Array


class Block(NamedTuple):
    """Examples of one client, of which there may be more in the next block.

    Columns are "x" and "y", and whatever else belongs to an example: "testing" (true in the data
    set's test part), "coarse" (a coarser label), "style". All blocks of a data set have the same
    columns, of the same types and row shapes.
    """

    client: str  # "" if the data set has no clients of its own
    columns: dict[str, Array]  # all equally long


def drop_duplicates(blocks: Iterable[Block]) -> Iterator[Block]:
    """Yield the blocks without the examples that the same client had before, by content of x."""
    client = None
    seen = np.zeros(0, np.uint64)
    for block in blocks:
        if block.client != client:
            client = block.client
            seen = seen[:0]
        hashes = hash_rows(block.columns["x"])
        first_indices = np.unique(hashes, return_index=True)[1]
        is_first = np.isin(np.arange(len(hashes)), first_indices)
        is_new = is_first & ~np.isin(hashes, seen)
        seen = np.concatenate([seen, hashes[is_new]])
        if is_new.all():
            yield block
        elif is_new.any():
            columns = {name: column[is_new] for name, column in block.columns.items()}
            yield Block(block.client, columns)
