from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedtailor.data.reader_blocks import Block, drop_duplicates

VALUES = st.lists(
    st.tuples(st.sampled_from("abc"), st.lists(st.integers(0, 3), min_size=1, max_size=5)),
    max_size=8,
)


@given(VALUES)
def test_of_what_a_client_has_several_times_the_first_stays(
    pieces: list[tuple[str, list[int]]],
) -> None:
    pieces = sorted(pieces, key=lambda piece: piece[0])
    blocks = [
        Block(who, {"x": np.array(x)[:, None] * 300, "y": np.arange(len(x))}) for who, x in pieces
    ]
    kept = list(drop_duplicates(blocks))
    found = [
        (block.client, int(x), int(y)) for block in kept if block.columns for x, y in _rows(block)
    ]
    assert sum(block.num_dropped for block in kept) == sum(len(x) for _, x in pieces) - len(found)
    wanted, seen = [], set()
    for block in blocks:
        for x, y in _rows(block):
            if (block.client, int(x)) not in seen:
                wanted.append((block.client, int(x), int(y)))
            seen.add((block.client, int(x)))
    assert found == wanted
    assert all(one[0] <= other[0] for one, other in pairwise(found))


def _rows(block: Block) -> list[tuple[int, int]]:
    return list(zip(block.columns["x"][:, 0].tolist(), block.columns["y"].tolist(), strict=True))
