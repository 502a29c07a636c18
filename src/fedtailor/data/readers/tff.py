"""TensorFlow Federated's data sets: a folder of HDF5 files, which have `examples/CLIENT/FEATURE`.

Clients come in the order of their names, the train part of each before its test part. The HDF5
library may hang on a damaged file: compare a file's checksum before you read it.
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
    format_location,
    parse_labels,
    parse_pixels,
    require_equal_lengths,
    split_into_blocks,
    translate_read_errors,
)
from fedtailor.data.readers.text import Encoder, encode_characters, require_sentence_limit
from fedtailor.errors import import_extra, require

TRAIN_AND_TEST = ("train", "test")
KIND = "an HDF5 file of TensorFlow Federated"


class Part(NamedTuple):
    """The examples of one client in one file, by feature."""

    client: str
    is_test: bool
    features: dict[str, Any]


def fed_emnist(path: str | Path, digits_only: bool = False) -> Iterator[Block]:
    """Read federated EMNIST by writer: images [n, 1, 28, 28], dark on white.

    Labels are 0-9, A-Z, a-z, or digits alone, which are in files of their own.
    """
    if digits_only:
        stem = "fed_emnist_digitsonly"
        classes = 10
    else:
        stem = "fed_emnist"
        classes = 62
    for client, is_test, features in _read_parts(path, stem, ("pixels", "label")):
        location = format_location(path, client)
        x = parse_pixels(location, features["pixels"], (1, 28, 28))
        y = _parse_labels(location, features["label"], classes)
        require_equal_lengths(path, f"'{client}'", x=x, y=y)
        yield from split_into_blocks(client, add_test_column({"x": x, "y": y}, is_test))


def fed_cifar100(path: str | Path) -> Iterator[Block]:
    """Read federated CIFAR-100: 100 images each of clients `train_N` (500) and `test_N` (100).

    In the files, different clients of the two parts have the same names.
    """
    parts = _read_parts(path, "fed_cifar100", ("image", "label", "coarse_label"))
    for client, is_test, features in parts:
        location = format_location(path, client)
        images = _parse_images(location, features["image"])
        y = _parse_labels(location, features["label"], 100)
        coarse = _parse_labels(location, features["coarse_label"], 20)
        require_equal_lengths(path, f"'{client}'", x=images, y=y, coarse=coarse)
        columns = {"x": images, "y": y, "coarse": coarse}
        part_name = "test" if is_test else "train"
        yield from split_into_blocks(f"{part_name}_{client}", add_test_column(columns, is_test))


def shakespeare(path: str | Path, encode: Encoder = encode_characters) -> Iterator[Block]:
    """Read federated Shakespeare by role; each of a role's speeches is a snippet."""
    return _read_texts(path, "shakespeare", "snippets", encode)


def stackoverflow(
    path: str | Path, encode: Encoder, max_sentences: int | None = 1000, held_out: bool = False
) -> Iterator[Block]:
    """Read federated StackOverflow by user.

    Args:
        path: Folder with the files.
        encode: Encoder, which gets each user's sentences.
        max_sentences: Number of first sentences that are encoded of each user in each part; None:
            all.
        held_out: Whether to read the users that are in neither train nor test instead of these.
    """
    require_sentence_limit("StackOverflow", max_sentences)
    endings = ("held_out",) if held_out else TRAIN_AND_TEST
    return _read_texts(path, "stackoverflow", "tokens", encode, max_sentences, endings)


def _parse_images(location: str, values: Any) -> Array:
    """Check pixels from 0 to 255, channels last, and return them as uint8 [n, 3, 32, 32]."""
    images = np.asarray(values)
    is_images = images.dtype.kind in "iu" and images.size == len(images) * 32 * 32 * 3
    require(
        is_images,
        f"'{location}' must have images of 32 x 32 x 3, "
        f"got {list(images.shape)} of {images.dtype}.",
    )
    is_inside = images.size == 0 or (images.min() >= 0 and images.max() <= 255)
    require(is_inside, f"'{location}' must have pixels from 0 to 255, but some are outside.")
    channel_last = images.astype(np.uint8).reshape(-1, 32, 32, 3)
    return np.ascontiguousarray(np.moveaxis(channel_last, -1, 1))


def _parse_labels(location: str, values: Any, classes: int) -> Array:
    """Check labels [n] or [n, 1] and return them as `parse_labels` does."""
    labels = np.asarray(values)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    return parse_labels(location, labels, classes)


def _read_texts(
    path: str | Path,
    stem: str,
    key: str,
    encode: Encoder,
    max_texts: int | None = None,
    endings: tuple[str, ...] = TRAIN_AND_TEST,
) -> Iterator[Block]:
    """Yield the blocks of encoded texts, which are the feature `key`; see `_read_parts`."""
    for client, is_test, features in _read_parts(path, stem, (key,), max_texts, endings):
        with translate_read_errors(path, f"texts in UTF-8 of '{client}'"):
            texts = [
                text if isinstance(text, str) else bytes(text).decode() for text in features[key]
            ]
        yield from split_into_blocks(client, add_test_column(encode(texts), is_test))


def _read_parts(
    path: str | Path,
    stem: str,
    keys: Sequence[str],
    max_examples: int | None = None,
    endings: tuple[str, ...] = TRAIN_AND_TEST,
) -> Iterator[Part]:
    """Yield every client's parts from the files `STEM_ENDING.h5` of a folder.

    Args:
        path: Folder with the files.
        stem: Beginning of the files' names.
        keys: Features to read.
        max_examples: Number of first examples that are read of each part; None: all.
        endings: Ends of the files' names; all but the first are of the test part.
    """
    folder = Path(path)
    require(folder.exists(), f"There is no file '{path}'.")
    files = [folder / f"{stem}_{ending}.h5" for ending in endings]
    names = " and ".join(file.name for file in files)
    require(folder.is_dir(), f"'{path}' must be a folder with {names}, but is a file.")
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
                    if client not in group:
                        continue
                    features = {key: group[client][key][:max_examples] for key in keys}
                yield Part(client, bool(is_test), features)
