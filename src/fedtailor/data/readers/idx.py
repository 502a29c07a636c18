"""MNIST, Fashion-MNIST and EMNIST: pairs of idx files, plain or gzipped, read in step."""

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple, cast

import numpy as np

from fedtailor.data.examples import Array
from fedtailor.data.reader_blocks import Block
from fedtailor.data.readers.files import (
    FileSource,
    add_test_column,
    parse_labels,
    read_bytes,
    read_fixed_rows,
    translate_read_errors,
)
from fedtailor.errors import require, suggest_name

IMAGES_MAGIC, LABELS_MAGIC = 2051, 2049  # unsigned bytes, of three dimensions and of one
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
    source = FileSource(folder)
    for prefix, is_test in (("train", False), ("t10k", True)):
        images, labels = _find_pair(source, prefix)
        for x, y in read_pairs(images, labels, 10):
            yield Block("", add_test_column({"x": x, "y": y}, is_test))


def emnist(folder: str | Path, variant: str = "byclass") -> Iterator[Block]:
    """A variant of EMNIST: train before test, images upright (the files hold them transposed), labels from 0."""
    require(
        variant in VARIANTS, f"EMNIST has no variant '{variant}'; {suggest_name(variant, VARIANTS)}"
    )
    source = FileSource(folder)
    for name, is_test in (("train", False), ("test", True)):
        images, labels = _find_pair(source, f"emnist-{variant}-{name}")
        for x, y in read_pairs(images, labels, *VARIANTS[variant]):
            yield Block(
                "", add_test_column({"x": np.ascontiguousarray(x.swapaxes(2, 3)), "y": y}, is_test)
            )


def read_pairs(
    images: str | Path, labels: str | Path, classes: int, lowest: int = 0
) -> Iterator[tuple[Array, Array]]:
    """Images [n, 1, height, width] and labels from a pair of idx files, as they lie in them, piece by piece."""
    with translate_read_errors(images, "an idx file of images"), _open_file(images) as pictures:
        count, height, width = _read_header(images, pictures, IMAGES_MAGIC)
        sides = 0 < height <= LARGEST_SIDE and 0 < width <= LARGEST_SIDE
        require(
            sides,
            f"'{images}' must have images of 1 to {LARGEST_SIDE} pixels a side, got {height} x {width}.",
        )
        with translate_read_errors(labels, "an idx file of labels"), _open_file(labels) as numbers:
            (named,) = _read_header(labels, numbers, LABELS_MAGIC)
            require(
                named == count, f"'{labels}' has {named} labels, but '{images}' has {count} images."
            )
            for rows in read_fixed_rows(images, pictures, height * width, count):
                raw = np.frombuffer(read_bytes(labels, numbers, len(rows)), np.uint8)
                require(
                    len(raw) == len(rows), f"'{labels}' is cut off: it ends before its last label."
                )
                yield rows.reshape(-1, 1, height, width), parse_labels(labels, raw, classes, lowest)
            require(
                not read_bytes(labels, numbers, 1),
                f"'{labels}' must end after {count} labels, but has more.",
            )


def _find_pair(source: FileSource, prefix: str) -> tuple[str, str]:
    """Where the images and labels of a part lie: `-idx3` or `.idx3`, gzipped or not."""
    stems = [f"{prefix}-{what}" for what in ("images", "labels")]
    choices = [
        (f"{stems[0]}{dash}idx3-ubyte{end}", f"{stems[1]}{dash}idx1-ubyte{end}")
        for end in ("", ".gz")
        for dash in "-."
    ]
    images, labels = (source.get_display_path(name) for name in source.find_first(*choices))
    return images, labels


def _open_file(path: str | Path) -> IO[bytes]:
    if str(path).endswith(".gz"):
        return cast(IO[bytes], gzip.open(path, "rb"))
    return Path(path).open("rb")


def _read_header(path: str | Path, file: IO[bytes], magic: int) -> tuple[int, ...]:
    """The sizes that a file's big-endian header states, after its magic number."""
    words = 1 + magic % 256
    raw = read_bytes(path, file, 4 * words)
    require(len(raw) == 4 * words, f"'{path}' is cut off: it ends within its header.")
    found, *sizes = np.frombuffer(raw, ">u4").tolist()
    require(
        found == magic,
        f"'{path}' must start with the idx number {magic}, got {found}; it is another file.",
    )
    return tuple(sizes)
