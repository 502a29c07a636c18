"""TensorFlow Federated's sets: HDF5 files (`examples/CLIENT/FEATURE`) in a folder, or one SQLite database.

The database has a table `examples` with `client_id`, `split_name` and `serialized_example_proto`; it is published as
.sqlite.lzma, to be unpacked first. From either, clients come in the order of their names, each one's train part before
its test part. A file that is not what it was may make the HDF5 library wait for ever: compare its checksum first.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedtailor.data.blocks import Block
from fedtailor.data.holders import Array
from fedtailor.data.readers.example import parse_example
from fedtailor.data.readers.files import checked_labels, checked_pixels, equally_long, in_pieces, part, reading
from fedtailor.data.readers.text import Encoder, encode_characters
from fedtailor.errors import import_extra, is_number, require

QUERY = """SELECT client_id, split_name, serialized_example_proto FROM examples WHERE split_name IN (?, ?)
ORDER BY client_id, split_name = ?, rowid"""
AT_ONCE = 4096
KIND = "an HDF5 file of TensorFlow Federated"


class Part(NamedTuple):
    """One client's examples of one part, by feature."""

    client: str
    testing: bool
    features: dict[str, Any]


def fed_emnist(path: str | Path, digits_only: bool = False) -> Iterator[Block]:
    """Federated EMNIST by writer: images [n, 1, 28, 28] dark on white, labels 0-9, A-Z, a-z (or digits alone)."""
    stem, splits, classes = ("fed_emnist_digitsonly", "digits_only_", 10) if digits_only else ("fed_emnist", "all_", 62)
    names = _Names(stem, (f"{splits}train", f"{splits}test"))
    for client, testing, found in _parts(path, names, ("pixels", "label")):
        label = f"{path}' of '{client}"
        x, y = checked_pixels(label, found["pixels"], (1, 28, 28)), _labels(label, found["label"], classes)
        equally_long(path, f"'{client}'", x=x, y=y)
        yield from in_pieces(client, part({"x": x, "y": y}, testing))


def fed_cifar100(path: str | Path) -> Iterator[Block]:
    """Federated CIFAR-100: 500 clients `train_N` and 100 others `test_N` of 100 images each."""
    for client, testing, found in _parts(path, _Names("fed_cifar100"), ("image", "label", "coarse_label")):
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
    return _texts(path, _Names("shakespeare"), "snippets", encode, None)


def stackoverflow(
    path: str | Path, encode: Encoder, most: int | None = 1000, held_out: bool = False
) -> Iterator[Block]:
    """Federated StackOverflow by user: every sentence encoded, of each user's part the first `most` (None: all).

    `held_out` asks for the users that are in neither train nor test instead.
    """
    good = most is None or (is_number(most, whole=True) and most >= 1)
    require(good, f"StackOverflow: most must be None or a whole number of at least 1, got {most!r}.")
    names = _Names("stackoverflow", ("heldout", ""), ("held_out",)) if held_out else _Names("stackoverflow")
    return _texts(path, names, "tokens", encode, most)


def _labels(label: str, values: Any, classes: int) -> Array:
    """Labels that may come as one number a row or as rows of one."""
    column = np.asarray(values)
    return checked_labels(label, column[:, 0] if column.ndim == 2 and column.shape[1] == 1 else column, classes)


class _Names(NamedTuple):
    """What a set's files are called, and its parts: in the database and in the names of files."""

    stem: str
    splits: tuple[str, str] = ("train", "test")
    files: tuple[str, ...] = ("train", "test")


def _texts(path: str | Path, names: _Names, key: str, encode: Encoder, most: int | None) -> Iterator[Block]:
    for client, testing, found in _parts(path, names, (key,), most):
        with reading(path, f"texts in UTF-8 of '{client}'"):
            snippets = [each if isinstance(each, str) else bytes(each).decode() for each in found[key]]
        yield from in_pieces(client, part(encode(snippets), testing))


def _parts(path: str | Path, names: _Names, keys: Sequence[str], most: int | None = None) -> Iterator[Part]:
    source = Path(path)
    require(source.exists(), f"There is no file '{path}'.")
    return _hdf5(source, names, keys, most) if source.is_dir() else _sqlite(source, names, keys, most)


def _hdf5(folder: Path, names: _Names, keys: Sequence[str], most: int | None) -> Iterator[Part]:
    h5py = import_extra("h5py", "hdf5", "Reading TensorFlow Federated's .h5 files")
    groups: dict[Path, Any] = {}
    clients: set[str] = set()
    with ExitStack() as stack:
        for name in names.files:
            file = folder / f"{names.stem}_{name}.h5"
            with reading(file, KIND):
                groups[file] = stack.enter_context(h5py.File(file, "r"))["examples"]
                clients.update(groups[file])
        for client in sorted(clients):
            for testing, (file, group) in enumerate(groups.items()):
                with reading(file, KIND):
                    held = {key: group[client][key][:most] for key in keys} if client in group else None
                if held is not None:
                    yield Part(client, bool(testing), held)


def _sqlite(file: Path, names: _Names, keys: Sequence[str], most: int | None) -> Iterator[Part]:
    """Everybody's examples in one ordered pass; a large part comes in several pieces."""
    with reading(file, "an SQLite database of TensorFlow Federated"):
        opened = sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True)
        with closing(opened), closing(opened.execute(QUERY, (*names.splits, names.splits[1]))) as rows:
            found = False
            for (client, split), examples in groupby(rows, key=itemgetter(0, 1)):
                found = True
                parsed = (parse_example(raw, keys) for _, _, raw in islice(examples, most))
                while piece := list(islice(parsed, AT_ONCE)):
                    columns = {key: _column([example[key] for example in piece]) for key in keys}
                    yield Part(str(client), split == names.splits[1], columns)
            require(found, f"'{file}' must have examples of {' or '.join(filter(None, names.splits))}, but has none.")


def _column(features: Sequence[Any]) -> Any:
    """One feature of several examples: texts as a list, numbers stacked, and single numbers in a row."""
    if all(isinstance(feature, list) for feature in features):
        if any(len(feature) != 1 for feature in features):
            raise ValueError("an example must have one text")
        return [feature[0] for feature in features]
    stacked = np.stack(features)
    return stacked[:, 0] if stacked.shape[1] == 1 else stacked
