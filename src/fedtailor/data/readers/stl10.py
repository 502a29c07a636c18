"""STL-10: 96 x 96 color images in column-major binary files, optionally as CIFAR-10 would have them."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fedtailor.data.examples import Array
from fedtailor.data.reader_blocks import Block
from fedtailor.data.readers.files import FileSource, add_test_column, parse_labels, read_fixed_rows
from fedtailor.errors import require

CLASSES = ("airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck")
SIDE = 96
TO_CIFAR10 = np.array(
    [0, 2, 1, 3, 4, 5, 7, -1, 8, 9]
)  # -1: monkeys, which CIFAR-10 has not; it has frogs (6) instead


def stl10(path: str | Path, like: str = "stl10", side: int = SIDE) -> Iterator[Block]:
    """The labeled images of the folder or archive `stl10_binary`: train before test, labels from 0.

    With like="cifar10" labels are CIFAR-10's numbers and monkeys are left out, so 9 classes remain (no frogs). A `side`
    that divides 96 shrinks: each pixel is then the rounded mean of a square (32: 3 x 3 pixels, CIFAR's size).
    """
    require(like in ("stl10", "cifar10"), f"STL-10: like must be stl10 or cifar10, got {like!r}.")
    divides = type(side) is int and 0 < side <= SIDE and SIDE % side == 0
    require(divides, f"STL-10: side must be a whole number that divides {SIDE}, got {side!r}.")
    source = FileSource(path)
    source.find_first(("train_X.bin", "train_y.bin", "test_X.bin", "test_y.bin"))
    for name, is_test in (("train", False), ("test", True)):
        for x, y in _read_pairs(source, name):
            kept = TO_CIFAR10[y] >= 0 if like == "cifar10" else np.full(len(y), True)
            named = TO_CIFAR10[y[kept]].astype(np.uint8) if like == "cifar10" else y
            yield Block("", add_test_column({"x": _shrink(x[kept], side), "y": named}, is_test))


def _read_pairs(source: FileSource, name: str) -> Iterator[tuple[Array, Array]]:
    """Images [n, 3, 96, 96], turned upright, and labels from 0."""
    with source.open(f"{name}_y.bin", "labels of STL-10") as file:
        y = parse_labels(
            source.get_display_path(f"{name}_y.bin"),
            np.frombuffer(file.read(), np.uint8),
            len(CLASSES),
            lowest=1,
        )
    start, images = 0, source.get_display_path(f"{name}_X.bin")
    with source.open(f"{name}_X.bin", "images of STL-10") as file:
        for rows in read_fixed_rows(images, file, 3 * SIDE * SIDE, len(y)):
            x = rows.reshape(-1, 3, SIDE, SIDE).swapaxes(2, 3)
            yield np.ascontiguousarray(x), y[start : start + len(x)]
            start += len(x)


def _shrink(images: Array, side: int) -> Array:
    if side == SIDE:
        return images
    square = SIDE // side
    means = images.reshape(-1, 3, side, square, side, square).mean(axis=(3, 5))
    return np.asarray(np.rint(means), np.uint8)
