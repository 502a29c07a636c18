"""What readers give, put together, and files that were damaged on their way."""

import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from hypothesis import strategies as st

from fedtailor.data.examples import Array
from fedtailor.data.reader_blocks import Block
from fedtailor.errors import InputError


def joined(blocks: Iterable[Block]) -> dict[str, Array]:
    """All blocks of a set without clients, end to end."""
    found = list(blocks)
    assert all(block.client == "" for block in found)
    return {
        name: np.concatenate([block.columns[name] for block in found]) for name in found[0].columns
    }


def archived(path: Path, files: Iterable[Path], inside: str) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for file in files:
            archive.add(file, f"{inside}/{file.name}")
    return path


def damaged(raw: bytes, at: float, flip: int | None) -> bytes:
    """Bytes cut off at a place, or with some bits flipped there."""
    place = int(at * len(raw))
    return (
        raw[:place] if flip is None else raw[:place] + bytes([raw[place] ^ flip]) + raw[place + 1 :]
    )


def good_or_refused(
    blocks: Iterator[Block], shape: tuple[int, ...], classes: int
) -> dict[str, Array] | None:
    """Either proper images and labels or a sentence; any other exception fails the test."""
    try:
        found = joined(blocks)
    except InputError:
        return None
    assert found["x"].dtype == np.uint8
    assert found["x"].shape[1:] == shape
    assert found["y"].max() < classes
    assert len(found["x"]) == len(found["y"]) == len(found["is_test"])
    return found


DAMAGE = {"at": st.floats(0, 1, exclude_max=True), "flip": st.none() | st.integers(1, 255)}


def by_client(blocks: Iterable[Block]) -> dict[str, dict[str, Array]]:
    """Every client's columns, end to end; a client's blocks must come one after another."""
    found: dict[str, list[dict[str, Array]]] = {}
    last = ""
    for block in blocks:
        if not block.columns:  # it only counts what is left out
            assert block.num_dropped > 0
            continue
        assert block.client == last or block.client not in found
        assert len({len(column) for column in block.columns.values()}) == 1
        last = block.client
        found.setdefault(block.client, []).append(block.columns)
    return {
        client: {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}
        for client, pieces in found.items()
    }
