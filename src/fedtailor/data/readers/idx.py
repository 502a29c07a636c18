"""MNIST, Fashion-MNIST and EMNIST: pairs of idx files, plain or gzipped, read in step."""

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple, cast

import numpy as np

from fedtailor.data.blocks import Block
from fedtailor.data.holders import Array
from fedtailor.data.readers.files import Source, checked_labels, fixed_rows, part, reading, taken
from fedtailor.errors import nearest, require

IMAGES, LABELS = 2051, 2049  # unsigned bytes, of three dimensions and of one
LARGEST_SIDE = 4096


class Variant(NamedTuple):
    """How many classes a variant of EMNIST has and at which number its labels start."""

    classes: int
    lowest: int = 0


VARIANTS = {
    "byclass": Variant(62),
    "bymerge": Variant(47),
    "balanced": Variant(47),
    "letters": Variant(26, 1),
    "digits": Variant(10),
    "mnist": Variant(10),
}
"""EMNIST's six variants. Classes are in the order 0-9, A-Z, a-z, less those merged; of `letters` a, b, c."""


def mnist(folder: str | Path) -> Iterator[Block]:
    """MNIST or Fashion-MNIST: train before test, from the four files as they are published, .gz or not."""
    source = Source(folder)
    for prefix, testing in (("train", False), ("t10k", True)):
        images, labels = _pair(source, prefix)
        for x, y in pairs(images, labels, 10):
            yield Block("", part({"x": x, "y": y}, testing))


def emnist(folder: str | Path, variant: str = "byclass") -> Iterator[Block]:
    """A variant of EMNIST: train before test, images upright (the files hold them transposed), labels from 0."""
    require(variant in VARIANTS, f"EMNIST has no variant '{variant}'; {nearest(variant, VARIANTS)}")
    source = Source(folder)
    for name, testing in (("train", False), ("test", True)):
        images, labels = _pair(source, f"emnist-{variant}-{name}")
        for x, y in pairs(images, labels, *VARIANTS[variant]):
            yield Block("", part({"x": np.ascontiguousarray(x.swapaxes(2, 3)), "y": y}, testing))


def pairs(images: str | Path, labels: str | Path, classes: int, lowest: int = 0) -> Iterator[tuple[Array, Array]]:
    """Images [n, 1, height, width] and labels from a pair of idx files, as they lie in them, piece by piece."""
    with reading(images, "an idx file of images"), _opened(images) as pictures:
        count, height, width = _header(images, pictures, IMAGES)
        sides = 0 < height <= LARGEST_SIDE and 0 < width <= LARGEST_SIDE
        require(sides, f"'{images}' must have images of 1 to {LARGEST_SIDE} pixels a side, got {height} x {width}.")
        with reading(labels, "an idx file of labels"), _opened(labels) as numbers:
            (named,) = _header(labels, numbers, LABELS)
            require(named == count, f"'{labels}' has {named} labels, but '{images}' has {count} images.")
            for rows in fixed_rows(images, pictures, height * width, count):
                raw = np.frombuffer(taken(labels, numbers, len(rows)), np.uint8)
                require(len(raw) == len(rows), f"'{labels}' is cut off: it ends before its last label.")
                yield rows.reshape(-1, 1, height, width), checked_labels(labels, raw, classes, lowest)
            require(not taken(labels, numbers, 1), f"'{labels}' must end after {count} labels, but has more.")


def _pair(source: Source, prefix: str) -> tuple[str, str]:
    """Where the images and labels of a part lie: `-idx3` or `.idx3`, gzipped or not."""
    stems = [f"{prefix}-{what}" for what in ("images", "labels")]
    choices = [
        (f"{stems[0]}{dash}idx3-ubyte{end}", f"{stems[1]}{dash}idx1-ubyte{end}") for end in ("", ".gz") for dash in "-."
    ]
    images, labels = (source.label(name) for name in source.first(*choices))
    return images, labels


def _opened(path: str | Path) -> IO[bytes]:
    if str(path).endswith(".gz"):
        return cast(IO[bytes], gzip.open(path, "rb"))
    return Path(path).open("rb")


def _header(path: str | Path, file: IO[bytes], magic: int) -> tuple[int, ...]:
    """The sizes that a file's big-endian header states, after its magic number."""
    words = 1 + magic % 256
    raw = taken(path, file, 4 * words)
    require(len(raw) == 4 * words, f"'{path}' is cut off: it ends within its header.")
    found, *sizes = np.frombuffer(raw, ">u4").tolist()
    require(found == magic, f"'{path}' must start with the idx number {magic}, got {found}; it is another file.")
    return tuple(sizes)
