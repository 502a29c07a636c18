"""Small stores for tests."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fedtailor.data.reader_blocks import Block
from fedtailor.data.store import DatasetAttributes, Provenance, StoredDataset, build

MADE = Provenance("1")
NO_FACTS = DatasetAttributes()


def at_once(handle: int) -> None:
    """What takes the place of waiting for the disk, which tests need not."""


def blocks_of(sizes: list[int], value: int = 0) -> Iterator[Block]:
    """Clients c0, c1, ... with so many examples each; x counts from `value`, y is the client's
    number modulo 3.
    """
    start = value
    for number, size in enumerate(sizes):
        x = np.arange(start, start + size, dtype=np.float32)[:, None] + np.array(
            [0, 0.5], np.float32
        )
        yield Block(f"c{number}", {"x": x, "y": np.full(size, number % 3, np.uint8)})
        start += size


def toy(sizes: list[int] | None = None, name: str = "toy", value: int = 0) -> StoredDataset:
    return build(name, blocks_of(sizes or [3, 1, 4, 2], value), DatasetAttributes(classes=3), MADE)


def left_behind(place: Path) -> list[str]:
    return sorted(path.name for path in (place / "stores").iterdir())


def full(handle: int) -> None:
    """What takes the place of waiting for a disk that has no room."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
