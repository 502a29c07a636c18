"""CIFAR-10 and CIFAR-100 in their Python (pickled) or binary batches."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from fedtailor.data.examples import Array
from fedtailor.data.reader_blocks import Block
from fedtailor.data.readers.files import (
    FileSource,
    add_test_column,
    parse_labels,
    read_fixed_rows,
    require_equal_lengths,
    split_into_blocks,
    translate_read_errors,
)
from fedtailor.data.readers.pickled import read_pickle, to_byte_array
from fedtailor.errors import InputError, require

Columns = dict[str, Array]

IMAGE_SHAPE = (3, 32, 32)
IMAGE_BYTES = 3 * 32 * 32
CIFAR10_FILES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")
CIFAR100_FILES = ("train", "test")

LABEL_COLUMNS = {10: {"y": 10}, 100: {"coarse": 20, "y": 100}}
"""Per number of classes: the columns of labels and how many values each has, in the order in which
a binary row begins with them."""

PICKLE_KEYS = {10: {"y": b"labels"}, 100: {"coarse": b"coarse_labels", "y": b"fine_labels"}}
"""Per number of classes: where a pickled batch has each column of labels."""


def cifar10(path: str | Path | Sequence[str | Path]) -> Iterator[Block]:
    """Read CIFAR-10: "x" [n, 3, 32, 32] and "y", training examples before test examples.

    `path` is an archive, a folder or a batch, or several batches.
    """
    return _read_batches(path, CIFAR10_FILES, 10)


def cifar100(path: str | Path | Sequence[str | Path]) -> Iterator[Block]:
    """Read CIFAR-100 like CIFAR-10, with fine labels as "y" and the 20 coarse ones as "coarse"."""
    return _read_batches(path, CIFAR100_FILES, 100)


def _read_batches(
    path: str | Path | Sequence[str | Path], names: tuple[str, ...], classes: int
) -> Iterator[Block]:
    """Yield the blocks of all batches at a path or at several.

    Args:
        path: An archive, a folder or a batch, or several of these.
        names: The batches that an archive or folder must have, as pickles or with ".bin".
        classes: 10 or 100.
    """
    if not isinstance(path, str | Path):
        for each_path in path:
            yield from _read_batches(each_path, names, classes)
        return
    kind = f"a batch of CIFAR-{classes}"
    is_archive = Path(path).suffix in (".gz", ".tgz", ".tar")
    if not is_archive and not Path(path).is_dir():
        with translate_read_errors(path, kind), Path(path).open("rb") as file:
            yield from _read_batch(str(path), file, Path(path).name, classes)
        return
    source = FileSource(path)
    binary_names = tuple(f"{name}.bin" for name in names)
    for name in source.find_first(names, binary_names):
        with source.open(name, kind) as file:
            yield from _read_batch(source.get_display_path(name), file, name, classes)


def _read_batch(display_path: str, file: IO[bytes], name: str, classes: int) -> Iterator[Block]:
    """Yield the blocks of a batch; its name tells the format, and whether it is the test part."""
    is_test = name.startswith("test")
    read = _read_binary if name.endswith(".bin") else _read_pickled
    for columns in read(display_path, file, classes):
        yield from split_into_blocks("", add_test_column(columns, is_test))


def _read_binary(display_path: str, file: IO[bytes], classes: int) -> Iterator[Columns]:
    """Yield the columns of rows that have one label (CIFAR-10) or two (coarse, fine), then pixels.

    The pixels of an image are all red ones, all green ones, all blue ones.
    """
    label_columns = LABEL_COLUMNS[classes]
    num_labels = len(label_columns)
    for rows in read_fixed_rows(display_path, file, num_labels + IMAGE_BYTES):
        columns = {"x": rows[:, num_labels:].reshape(-1, *IMAGE_SHAPE)}
        for position, (name, num_values) in enumerate(label_columns.items()):
            columns[name] = parse_labels(display_path, rows[:, position], num_values)
        yield columns


def _read_pickled(display_path: str, file: IO[bytes], classes: int) -> Iterator[Columns]:
    """Yield the columns of a whole batch."""
    keys = PICKLE_KEYS[classes]
    try:
        content = _read_dict(file.read())
        missing = [key.decode() for key in (b"data", *keys.values()) if key not in content]
        require(not missing, f"it has no {', '.join(missing)}")
        images = to_byte_array(content[b"data"])
    except InputError as problem:
        raise InputError(
            f"'{display_path}' is not a batch of CIFAR-{classes}: {problem}."
        ) from None
    require(
        images.ndim == 2 and images.shape[1] == IMAGE_BYTES,
        f"'{display_path}' must have images of {IMAGE_BYTES} bytes each.",
    )
    labels: Columns = {}
    for name, num_values in LABEL_COLUMNS[classes].items():
        values = content[keys[name]]
        is_list = isinstance(values, list)
        require(is_list, f"'{display_path}' must have a list of {keys[name].decode()}.")
        labels[name] = parse_labels(display_path, values, num_values)
    require_equal_lengths(display_path, "it", x=images, **labels)
    yield {"x": images.reshape(-1, *IMAGE_SHAPE)} | labels


def _read_dict(raw: bytes) -> dict[bytes, Any]:
    """Read a pickled dict; text keys become bytes, which Python 2 wrote instead."""
    content = read_pickle(raw)
    require(isinstance(content, dict), "it holds no dict")
    return {key.encode() if isinstance(key, str) else key: value for key, value in content.items()}
