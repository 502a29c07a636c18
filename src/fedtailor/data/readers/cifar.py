"""CIFAR-10 and CIFAR-100 in their Python (pickled) or binary batches: an archive, a folder, or single files."""

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

IMAGE_BYTES = 3 * 32 * 32
CIFAR10_FILES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")
CIFAR100_FILES = ("train", "test")
LABEL_COLUMNS = {
    10: {"y": 10},
    100: {"coarse": 20, "y": 100},
}  # of a binary row in that order, with how many classes
PICKLE_KEYS = {10: {"y": b"labels"}, 100: {"coarse": b"coarse_labels", "y": b"fine_labels"}}
KIND = "a batch of CIFAR-{}"


def cifar10(path: str | Path | Sequence[str | Path]) -> Iterator[Block]:
    """CIFAR-10: "x" [n, 3, 32, 32] and "y"; train before test. One path (archive, folder, batch) or several batches."""
    return _read_batches(path, CIFAR10_FILES, 10)


def cifar100(path: str | Path | Sequence[str | Path]) -> Iterator[Block]:
    """CIFAR-100: the same with fine labels as "y" and the 20 coarse ones as "coarse"."""
    return _read_batches(path, CIFAR100_FILES, 100)


def _read_batches(
    path: str | Path | Sequence[str | Path], names: tuple[str, ...], classes: int
) -> Iterator[Block]:
    if not isinstance(path, str | Path):
        for each in path:
            yield from _read_batches(each, names, classes)
    elif Path(path).is_dir() or Path(path).suffix in (".gz", ".tgz", ".tar"):
        source = FileSource(path)
        for name in source.find_first(names, tuple(f"{name}.bin" for name in names)):
            with source.open(name, KIND.format(classes)) as file:
                yield from _read_batch(source.get_display_path(name), file, name, classes)
    else:
        with translate_read_errors(path, KIND.format(classes)), Path(path).open("rb") as file:
            yield from _read_batch(str(path), file, Path(path).name, classes)


def _read_batch(display_path: str, file: IO[bytes], name: str, classes: int) -> Iterator[Block]:
    """The blocks of one batch, of its test part if its name says so."""
    pieces = (
        _read_binary(display_path, file, classes)
        if name.endswith(".bin")
        else [_read_pickled(display_path, file, classes)]
    )
    for columns in pieces:
        yield from split_into_blocks("", add_test_column(columns, name.startswith("test")))


def _read_binary(display_path: str, file: IO[bytes], classes: int) -> Iterator[dict[str, Array]]:
    """Rows of one label (CIFAR-10) or two (coarse, fine), then red, green and blue."""
    kinds = LABEL_COLUMNS[classes]
    for rows in read_fixed_rows(display_path, file, len(kinds) + IMAGE_BYTES):
        labels = {
            name: parse_labels(display_path, rows[:, at], most)
            for at, (name, most) in enumerate(kinds.items())
        }
        yield {"x": rows[:, len(kinds) :].reshape(-1, 3, 32, 32)} | labels


def _read_pickled(display_path: str, file: IO[bytes], classes: int) -> dict[str, Array]:
    try:
        content = read_pickle(file.read())
        require(isinstance(content, dict), "it holds no dict")
        content = {_to_bytes(key): value for key, value in content.items()}
        missing = [
            key.decode() for key in (b"data", *PICKLE_KEYS[classes].values()) if key not in content
        ]
        require(not missing, f"it has no {', '.join(missing)}")
        images = to_byte_array(content[b"data"])
    except InputError as problem:
        raise InputError(f"'{display_path}' is no batch of CIFAR-{classes}: {problem}.") from None
    require(
        images.ndim == 2 and images.shape[1] == IMAGE_BYTES,
        f"'{display_path}' must have images of {IMAGE_BYTES} bytes each.",
    )
    for key in PICKLE_KEYS[classes].values():
        require(
            isinstance(content[key], list), f"'{display_path}' must have a list of {key.decode()}."
        )
    labels = {
        name: parse_labels(display_path, content[PICKLE_KEYS[classes][name]], most)
        for name, most in LABEL_COLUMNS[classes].items()
    }
    require_equal_lengths(display_path, "it", x=images, **labels)
    return {"x": images.reshape(-1, 3, 32, 32)} | labels


def _to_bytes(key: Any) -> Any:
    """A key as bytes: Python 2 wrote bytes where Python 3 writes text."""
    return key.encode() if isinstance(key, str) else key
