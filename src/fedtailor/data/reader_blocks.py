"""Blocks of examples, which readers stream to the store so that a data set need not fit in RAM."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from fedtailor.data.content_hash import hash_rows
from fedtailor.data.examples import Array


class Block(NamedTuple):
    """Examples of one client, which may have more in the next block.

    Columns are "x", "y" and any others with an entry for each example: "is_test" (whether it is in
    the data set's own test part), "coarse" (its coarse label), "style". All blocks of a data set
    have the same columns, of the same types and row shapes. Those of the server have x and y alone.
    """

    client: str  # "": the data set has no clients of its own, or the examples are the server's
    columns: dict[str, Array]  # [examples, ...] each; {} if the block only counts left-out examples
    is_server: bool = False  # whether these are examples that the server has from the beginning
    num_dropped: int = 0  # examples that the reader left out since the block before


def drop_duplicates(blocks: Iterable[Block]) -> Iterator[Block]:
    """Yield the blocks without repeated examples of a client, which have equal hashes of x.

    The first of equal examples stays. The blocks of a client must follow each other.
    """
    client = None
    seen = np.zeros(0, np.uint64)
    for block in blocks:
        if not block.columns:
            yield block
            continue
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
            continue
        columns = {}
        if is_new.any():
            columns = {name: column[is_new] for name, column in block.columns.items()}
        num_dropped = block.num_dropped + int((~is_new).sum())
        yield Block(block.client, columns, num_dropped=num_dropped)
