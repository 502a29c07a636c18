"""STL-10: color images of 96 x 96 pixels in column-major binary files, optionally like CIFAR-10."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fedtailor.data.examples import Array
from fedtailor.data.reader_blocks import Block
from fedtailor.data.readers.files import FileSource, add_test_column, parse_labels, read_fixed_rows
from fedtailor.errors import require

CLASSES = ("airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck")
SIDE = 96

TO_CIFAR10 = np.array([0, 2, 1, 3, 4, 5, 7, -1, 8, 9])
"""The CIFAR-10 label of each STL-10 label; -1 for monkeys, which CIFAR-10 does not have."""


def stl10(path: str | Path, like: str = "stl10", side: int = SIDE) -> Iterator[Block]:
    """Read the labeled images: training examples before test examples, labels from 0.

    Args:
        path: The folder or archive `stl10_binary`.
        like: "stl10", or "cifar10" for CIFAR-10's labels without the monkeys: 9 classes, as STL-10
            has no frogs.
        side: Height and width of the images, which divides 96. A smaller image's pixels are the
            rounded means of squares (3 x 3 pixels for CIFAR-10's side of 32).
    """
    require(like in ("stl10", "cifar10"), f"STL-10: like must be stl10 or cifar10, got {like!r}.")
    is_divisor = type(side) is int and 0 < side <= SIDE and SIDE % side == 0
    require(is_divisor, f"STL-10: side must be a whole number that divides {SIDE}, got {side!r}.")
    source = FileSource(path)
    source.find_first(("train_X.bin", "train_y.bin", "test_X.bin", "test_y.bin"))
    for part in ("train", "test"):
        for images, labels in _read_pairs(source, part):
            if like == "cifar10":
                cifar10_labels = TO_CIFAR10[labels]
                is_shared = cifar10_labels >= 0
                images = images[is_shared]
                labels = cifar10_labels[is_shared].astype(np.uint8)
            columns = {"x": _shrink(images, side), "y": labels}
            yield Block("", add_test_column(columns, is_test=part == "test"))


def _read_pairs(source: FileSource, part: str) -> Iterator[tuple[Array, Array]]:
    """Yield upright images [n, 3, 96, 96] with their labels [n] from 0, piece by piece."""
    labels_file = f"{part}_y.bin"
    with source.open(labels_file, "labels of STL-10") as file:
        raw_labels = np.frombuffer(file.read(), np.uint8)
        labels_path = source.get_display_path(labels_file)
        labels = parse_labels(labels_path, raw_labels, len(CLASSES), lowest=1)
    images_file = f"{part}_X.bin"
    images_path = source.get_display_path(images_file)
    start = 0
    with source.open(images_file, "images of STL-10") as file:
        for rows in read_fixed_rows(images_path, file, 3 * SIDE * SIDE, len(labels)):
            images = rows.reshape(-1, 3, SIDE, SIDE).swapaxes(2, 3)
            end = start + len(images)
            yield np.ascontiguousarray(images), labels[start:end]
            start = end


def _shrink(images: Array, side: int) -> Array:
    if side == SIDE:
        return images
    factor = SIDE // side
    squares = images.reshape(-1, 3, side, factor, side, factor)
    return np.asarray(np.rint(squares.mean(axis=(3, 5))), np.uint8)
