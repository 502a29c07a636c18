"""MNIST, Fashion-MNIST and EMNIST: pairs of idx files, of images and of labels, gzipped or not."""

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

# A magic number's last byte is the number of dimensions, the one before it the type: unsigned byte.
IMAGES_MAGIC = 0x0803
LABELS_MAGIC = 0x0801

MAX_SIDE = 4096


class Variant(NamedTuple):
    """The labels of a variant of EMNIST: how many classes, and the number of the first one."""

    classes: int
    lowest: int = 0


VARIANTS = {
    "byclass": Variant(62),
    "bymerge": Variant(47),
    "balanced": Variant(47),
    "letters": Variant(26, lowest=1),
    "digits": Variant(10),
    "mnist": Variant(10),
}
"""The six variants of EMNIST.

Classes are in the order 0-9, A-Z, a-z, without those that are merged; `letters` has a, b, c, ...
"""


def mnist(folder: str | Path) -> Iterator[Block]:
    """Read MNIST or Fashion-MNIST from its four files: training before test examples."""
    source = FileSource(folder)
    for prefix in ("train", "t10k"):
        image_path, label_path = _find_pair(source, prefix)
        for images, labels in read_pairs(image_path, label_path, 10):
            columns = {"x": images, "y": labels}
            yield Block("", add_test_column(columns, is_test=prefix == "t10k"))


def emnist(folder: str | Path, variant: str = "byclass") -> Iterator[Block]:
    """Read a variant of EMNIST: training before test examples, images upright, labels from 0."""
    require(
        variant in VARIANTS, f"EMNIST has no variant '{variant}'; {suggest_name(variant, VARIANTS)}"
    )
    classes, lowest = VARIANTS[variant]
    source = FileSource(folder)
    for part in ("train", "test"):
        image_path, label_path = _find_pair(source, f"emnist-{variant}-{part}")
        for transposed, labels in read_pairs(image_path, label_path, classes, lowest):
            images = np.ascontiguousarray(transposed.swapaxes(2, 3))
            columns = {"x": images, "y": labels}
            yield Block("", add_test_column(columns, is_test=part == "test"))


def read_pairs(
    image_path: str | Path, label_path: str | Path, classes: int, lowest: int = 0
) -> Iterator[tuple[Array, Array]]:
    """Yield images [n, 1, height, width], as they are in the file, with their labels [n] from 0.

    Both files are read together, piece by piece.

    Args:
        image_path: idx file of images.
        label_path: idx file with the label of each image.
        classes: Number of classes.
        lowest: Label of the first class in the file.
    """
    with (
        translate_read_errors(image_path, "an idx file of images"),
        _open_file(image_path) as image_file,
    ):
        count, height, width = _read_header(image_path, image_file, IMAGES_MAGIC)
        require(
            0 < height <= MAX_SIDE and 0 < width <= MAX_SIDE,
            f"'{image_path}' must have images of 1 to {MAX_SIDE} pixels a side, "
            f"got {height} x {width}.",
        )
        with (
            translate_read_errors(label_path, "an idx file of labels"),
            _open_file(label_path) as label_file,
        ):
            (num_labels,) = _read_header(label_path, label_file, LABELS_MAGIC)
            require(
                num_labels == count,
                f"'{label_path}' has {num_labels} labels, but '{image_path}' has {count} images.",
            )
            for rows in read_fixed_rows(image_path, image_file, height * width, count):
                raw_labels = read_bytes(label_path, label_file, len(rows))
                require(
                    len(raw_labels) == len(rows),
                    f"'{label_path}' is cut off: it ends before its last label.",
                )
                label_bytes = np.frombuffer(raw_labels, np.uint8)
                labels = parse_labels(label_path, label_bytes, classes, lowest)
                yield rows.reshape(-1, 1, height, width), labels
            has_more = bool(read_bytes(label_path, label_file, 1))
            require(not has_more, f"'{label_path}' must end after {count} labels, but has more.")


def _find_pair(source: FileSource, prefix: str) -> tuple[str, str]:
    """Return the paths of the images and labels of a part: `-idx3` or `.idx3`, gzipped or not."""
    choices = []
    for suffix in ("", ".gz"):
        for separator in ("-", "."):
            images = f"{prefix}-images{separator}idx3-ubyte{suffix}"
            labels = f"{prefix}-labels{separator}idx1-ubyte{suffix}"
            choices.append((images, labels))
    image_name, label_name = source.find_first(*choices)
    return source.get_display_path(image_name), source.get_display_path(label_name)


def _open_file(path: str | Path) -> IO[bytes]:
    if str(path).endswith(".gz"):
        return cast(IO[bytes], gzip.open(path, "rb"))
    return Path(path).open("rb")


def _read_header(path: str | Path, file: IO[bytes], magic: int) -> tuple[int, ...]:
    """Read a header, which is a magic number and the size of each dimension, and return the sizes.

    All of these are big-endian integers of 4 bytes.
    """
    num_dimensions = magic & 0xFF
    header_bytes = 4 * (1 + num_dimensions)
    content = read_bytes(path, file, header_bytes)
    require(len(content) == header_bytes, f"'{path}' is cut off: it ends within its header.")
    file_magic, *sizes = np.frombuffer(content, ">u4").tolist()
    require(
        file_magic == magic,
        f"'{path}' must start with the idx number {magic}, got {file_magic}; it is another file.",
    )
    return tuple(sizes)
