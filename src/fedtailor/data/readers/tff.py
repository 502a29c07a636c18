"""TensorFlow Federated's sets: HDF5 files (`examples/CLIENT/FEATURE`) in a folder.

Clients come in the order of their names, each one's train part before its test part. A file that is not what it was may
make the HDF5 library wait for ever: compare its checksum first.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedtailor.data.blocks import Block
from fedtailor.data.holders import Array
from fedtailor.data.readers.files import checked_labels, checked_pixels, equally_long, in_pieces, part, reading
from fedtailor.data.readers.text import Encoder, encode_characters
from fedtailor.errors import import_extra, is_number, require

TRAIN_AND_TEST = ("train", "test")
KIND = "an HDF5 file of TensorFlow Federated"


class Part(NamedTuple):
    """One client's examples of one part, by feature."""

    client: str
    testing: bool
    features: dict[str, Any]


def fed_emnist(path: str | Path, digits_only: bool = False) -> Iterator[Block]:
    """Federated EMNIST by writer: images [n, 1, 28, 28] dark on white, labels 0-9, A-Z, a-z (or digits alone)."""
    stem, classes = ("fed_emnist_digitsonly", 10) if digits_only else ("fed_emnist", 62)
    for client, testing, found in _parts(path, stem, ("pixels", "label")):
        label = f"{path}' of '{client}"
        x, y = checked_pixels(label, found["pixels"], (1, 28, 28)), _labels(label, found["label"], classes)
        equally_long(path, f"'{client}'", x=x, y=y)
        yield from in_pieces(client, part({"x": x, "y": y}, testing))


def fed_cifar100(path: str | Path) -> Iterator[Block]:
    """Federated CIFAR-100: 500 clients `train_N` and 100 others `test_N` of 100 images each."""
    for client, testing, found in _parts(path, "fed_cifar100", ("image", "label", "coarse_label")):
        label = f"{path}' of '{client}"
        images = np.asarray(found["image"])
        good = images.dtype.kind in "iu" and images.size == len(images) * 32 * 32 * 3
        require(good, f"'{label}' must have images of 32 x 32 x 3, got {list(images.shape)} of {images.dtype}.")
        inside = images.size == 0 or (images.min() >= 0 and images.max() <= 255)
        require(inside, f"'{label}' must have pixels from 0 to 255, but some are outside.")
        y, coarse = _labels(label, found["label"], 100), _labels(label, found["coarse_label"], 20)
        equally_long(path, f"'{client}'", x=images, y=y, coarse=coarse)
        x = np.moveaxis(images.astype(np.uint8).reshape(-1, 32, 32, 3), -1, 1)
        columns = {"x": np.ascontiguousarray(x), "y": y, "coarse": coarse}
        yield from in_pieces(f"{'test' if testing else 'train'}_{client}", part(columns, testing))


def shakespeare(path: str | Path, encode: Encoder = encode_characters) -> Iterator[Block]:
    """Federated Shakespeare by role: every speech encoded."""
    return _texts(path, "shakespeare", "snippets", encode, None)


def stackoverflow(
    path: str | Path, encode: Encoder, most: int | None = 1000, held_out: bool = False
) -> Iterator[Block]:
    """Federated StackOverflow by user: every sentence encoded, of each user's part the first `most` (None: all).

    `held_out` asks for the users that are in neither train nor test instead.
    """
    good = most is None or (is_number(most, whole=True) and most >= 1)
    require(good, f"StackOverflow: most must be None or a whole number of at least 1, got {most!r}.")
    return _texts(path, "stackoverflow", "tokens", encode, most, ("held_out",) if held_out else TRAIN_AND_TEST)


def _labels(label: str, values: Any, classes: int) -> Array:
    """Labels that may come as one number a row or as rows of one."""
    column = np.asarray(values)
    return checked_labels(label, column[:, 0] if column.ndim == 2 and column.shape[1] == 1 else column, classes)


def _texts(
    path: str | Path,
    stem: str,
    key: str,
    encode: Encoder,
    most: int | None,
    endings: tuple[str, ...] = TRAIN_AND_TEST,
) -> Iterator[Block]:
    for client, testing, found in _parts(path, stem, (key,), most, endings):
        with reading(path, f"texts in UTF-8 of '{client}'"):
            snippets = [each if isinstance(each, str) else bytes(each).decode() for each in found[key]]
        yield from in_pieces(client, part(encode(snippets), testing))


def _parts(
    path: str | Path,
    stem: str,
    keys: Sequence[str],
    most: int | None = None,
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
            with reading(file, KIND):
                groups[file] = stack.enter_context(h5py.File(file, "r"))["examples"]
                clients.update(groups[file])
        for client in sorted(clients):
            for testing, (file, group) in enumerate(groups.items()):
                with reading(file, KIND):
                    held = {key: group[client][key][:most] for key in keys} if client in group else None
                if held is not None:
                    yield Part(client, bool(testing), held)
