"""TensorFlow Federated's sets: HDF5 files (`examples/CLIENT/FEATURE`) in a folder.

Clients come in the order of their names, each one's train part before its test part. A file that is not what it was may
make the HDF5 library wait for ever: compare its checksum first.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedtailor.data.examples import Array
from fedtailor.data.reader_blocks import Block
from fedtailor.data.readers.files import (
    add_test_column,
    parse_labels,
    parse_pixels,
    require_equal_lengths,
    split_into_blocks,
    translate_read_errors,
)
from fedtailor.data.readers.text import Encoder, encode_characters
from fedtailor.errors import import_extra, is_number, require

TRAIN_AND_TEST = ("train", "test")
KIND = "an HDF5 file of TensorFlow Federated"


class Part(NamedTuple):
    """One client's examples of one part, by feature."""

    client: str
    is_test: bool
    features: dict[str, Any]


def fed_emnist(path: str | Path, digits_only: bool = False) -> Iterator[Block]:
    """Federated EMNIST by writer: images [n, 1, 28, 28] dark on white, labels 0-9, A-Z, a-z (or digits alone)."""
    stem, classes = ("fed_emnist_digitsonly", 10) if digits_only else ("fed_emnist", 62)
    for client, is_test, found in _read_parts(path, stem, ("pixels", "label")):
        label = f"{path}' of '{client}"
        x, y = (
            parse_pixels(label, found["pixels"], (1, 28, 28)),
            _parse_labels(label, found["label"], classes),
        )
        require_equal_lengths(path, f"'{client}'", x=x, y=y)
        yield from split_into_blocks(client, add_test_column({"x": x, "y": y}, is_test))


def fed_cifar100(path: str | Path) -> Iterator[Block]:
    """Federated CIFAR-100: 500 clients `train_N` and 100 others `test_N` of 100 images each."""
    for client, is_test, found in _read_parts(
        path, "fed_cifar100", ("image", "label", "coarse_label")
    ):
        label = f"{path}' of '{client}"
        images = np.asarray(found["image"])
        good = images.dtype.kind in "iu" and images.size == len(images) * 32 * 32 * 3
        require(
            good,
            f"'{label}' must have images of 32 x 32 x 3, got {list(images.shape)} of {images.dtype}.",
        )
        inside = images.size == 0 or (images.min() >= 0 and images.max() <= 255)
        require(inside, f"'{label}' must have pixels from 0 to 255, but some are outside.")
        y, coarse = (
            _parse_labels(label, found["label"], 100),
            _parse_labels(label, found["coarse_label"], 20),
        )
        require_equal_lengths(path, f"'{client}'", x=images, y=y, coarse=coarse)
        x = np.moveaxis(images.astype(np.uint8).reshape(-1, 32, 32, 3), -1, 1)
        columns = {"x": np.ascontiguousarray(x), "y": y, "coarse": coarse}
        yield from split_into_blocks(
            f"{'test' if is_test else 'train'}_{client}", add_test_column(columns, is_test)
        )


def shakespeare(path: str | Path, encode: Encoder = encode_characters) -> Iterator[Block]:
    """Federated Shakespeare by role: every speech encoded."""
    return _read_texts(path, "shakespeare", "snippets", encode, None)


def stackoverflow(
    path: str | Path, encode: Encoder, max_sentences: int | None = 1000, held_out: bool = False
) -> Iterator[Block]:
    """Federated StackOverflow by user: every sentence encoded, of each user's part the first `most` (None: all).

    `held_out` asks for the users that are in neither train nor test instead.
    """
    good = max_sentences is None or (is_number(max_sentences, integer=True) and max_sentences >= 1)
    require(
        good,
        f"StackOverflow: most must be None or a whole number of at least 1, got {max_sentences!r}.",
    )
    return _read_texts(
        path,
        "stackoverflow",
        "tokens",
        encode,
        max_sentences,
        ("held_out",) if held_out else TRAIN_AND_TEST,
    )


def _parse_labels(label: str, values: Any, classes: int) -> Array:
    """Labels that may come as one number a row or as rows of one."""
    column = np.asarray(values)
    return parse_labels(
        label, column[:, 0] if column.ndim == 2 and column.shape[1] == 1 else column, classes
    )


def _read_texts(
    path: str | Path,
    stem: str,
    key: str,
    encode: Encoder,
    max_sentences: int | None,
    endings: tuple[str, ...] = TRAIN_AND_TEST,
) -> Iterator[Block]:
    for client, is_test, found in _read_parts(path, stem, (key,), max_sentences, endings):
        with translate_read_errors(path, f"texts in UTF-8 of '{client}'"):
            snippets = [
                each if isinstance(each, str) else bytes(each).decode() for each in found[key]
            ]
        yield from split_into_blocks(client, add_test_column(encode(snippets), is_test))


def _read_parts(
    path: str | Path,
    stem: str,
    keys: Sequence[str],
    max_examples: int | None = None,
    endings: tuple[str, ...] = TRAIN_AND_TEST,
) -> Iterator[Part]:
    """Yield every client's parts from the files `STEM_ENDING.h5` of a folder."""
    source = Path(path)
    require(source.exists(), f"There is no file '{path}'.")
    files = [source / f"{stem}_{ending}.h5" for ending in endings]
    wanted = " and ".join(file.name for file in files)
    require(source.is_dir(), f"'{path}' must be a folder with {wanted}, but is a file.")
    h5py = import_extra("h5py", "hdf5", "Reading TensorFlow Federated's .h5 files")
    groups: dict[Path, Any] = {}
    clients: set[str] = set()
    with ExitStack() as stack:
        for file in files:
            with translate_read_errors(file, KIND):
                groups[file] = stack.enter_context(h5py.File(file, "r"))["examples"]
                clients.update(groups[file])
        for client in sorted(clients):
            for is_test, (file, group) in enumerate(groups.items()):
                with translate_read_errors(file, KIND):
                    held = (
                        {key: group[client][key][:max_examples] for key in keys}
                        if client in group
                        else None
                    )
                if held is not None:
                    yield Part(client, bool(is_test), held)
