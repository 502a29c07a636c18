"""Small data sets where data lies, and what is looked at in a division of them among people."""

import hashlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedtailor.data import DatasetAttributes, FederatedDataset, add_custom, list_installed
from fedtailor.data.examples import Array
from fedtailor.data.reader_blocks import Block
from fedtailor.data.sources import open_dataset
from fedtailor.data.store import StoredDataset
from stores import at_once

SHAPES = {"mnist": (28, 28), "emnist-balanced": (28, 28), "cifar10": (32, 32, 3)}
CLASSES = {"mnist": 10, "emnist-balanced": 47, "cifar10": 10}


@contextmanager
def data_folder() -> Iterator[Path]:
    """A new folder, where data lies meanwhile; nothing waits for the disk."""
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDTAILOR_DATA", name)
        patch.setattr(os, "fsync", at_once)
        yield Path(name)


def images_of(name: str, train: int = 30, test: int = 10, seed: int = 0) -> dict[str, Array]:
    """Arrays like those of a data set, with random images, no two alike, and every label about as
    often.
    """
    draws, arrays = np.random.default_rng(seed), {}
    for part, count in (("train", train), ("test", test)):
        arrays[f"x_{part}"] = draws.integers(0, 256, (count, *SHAPES[name]), np.uint8)
        arrays[f"y_{part}"] = draws.permutation(np.arange(count) % CLASSES[name]).astype(np.uint8)
    return arrays


def saved(path: Path, arrays: dict[str, Any]) -> Path:
    np.savez(path, **arrays)
    return path


def writers(count: int = 40, seed: int = 0, shape: tuple[int, int] = (28, 28)) -> dict[str, Any]:
    """Arrays like FEMNIST's: writers of 12 to 50 distinct images, a quarter of them for test."""
    draws = np.random.default_rng(seed)
    whose = np.repeat(np.arange(count), draws.integers(12, 51, count))
    total = len(whose)
    return {
        "images": draws.integers(0, 256, (total, *shape), np.uint8),
        "labels": draws.integers(0, 62, total).astype(np.uint8),
        "writer": whose.astype(np.int16),
        "is_test": (np.arange(total) % 4 == 3).astype(np.uint8),
        "is_dup": np.zeros(total, np.uint8),
        "writer_names": np.array([f"f{number:04d}" for number in range(count)]),
    }


def add_people(
    testing: Sequence[Sequence[bool]],
    name: str = "people",
    x: Array | None = None,
    **attributes: Any,
) -> StoredDataset:
    """People a, b, ... with an example for each entry, which says whether it is of the test part; x
    counts up.
    """
    sizes = [len(own) for own in testing]
    starts = np.append(0, np.cumsum(sizes))
    values = np.arange(starts[-1], dtype=np.int32)[:, None] if x is None else x
    blocks = [
        Block(
            person(number),
            {
                "x": values[start:end],
                "y": (np.arange(start, end) % 3).astype(np.uint8),
                "is_test": np.array(own, bool),
            },
        )
        for number, (own, start, end) in enumerate(
            zip(testing, starts[:-1], starts[1:], strict=True)
        )
    ]
    return add_custom(name, blocks, DatasetAttributes(**{"classes": 3} | attributes), replace=True)


def person(number: int) -> str:
    """Names whose order is not that of their numbers."""
    return f"p{9 - number % 10}{number // 10}"


def held(dataset: FederatedDataset) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """All examples in clients' hands, by number, and whose each is."""
    splits = [dataset.clients.splits[name] for name in dataset.get_disjoint_splits()]
    return np.concatenate([split.index for split in splits]), np.concatenate(
        [split.compute_owners() for split in splits]
    )


def rows_of(dataset: FederatedDataset, split: str) -> dict[str, list[int]]:
    """The rows of everybody, by name."""
    part = dataset.clients.splits[split]
    return {
        name: np.asarray(part.get_rows(number)).tolist()
        for number, name in enumerate(dataset.client_names.tolist())
    }


def group(dataset: FederatedDataset, name: str) -> list[str]:
    """The people of a group, by name."""
    return sorted(dataset.client_names[dataset.groups[name]].tolist())


def table(dataset: FederatedDataset) -> NDArray[np.int64]:
    """How many examples of each label each client has."""
    index, whose = held(dataset)
    counts = np.zeros((dataset.clients.count, dataset.classes or 0), np.int64)
    np.add.at(counts, (whose, dataset.clients.y[index]), 1)
    return counts


def contents(examples: Array) -> list[bytes]:
    return [example.tobytes() for example in examples]


def labels_of(name: str) -> dict[bytes, int]:
    """The true label of each image of a data set, by its content."""
    columns = open_dataset(name).columns
    return dict(zip(contents(columns["x"]), columns["y"].tolist(), strict=True))


def served(dataset: FederatedDataset) -> tuple[Array, Array]:
    """What the server has, which it must."""
    assert dataset.server is not None
    return dataset.server.x, dataset.server.y


def fingerprint(dataset: FederatedDataset) -> str:
    server = () if dataset.server is None else dataset.server[:2]
    splits = [part for split in dataset.clients.splits.values() for part in split]
    parts = [*dataset.clients[:2], *splits, dataset.client_names, *dataset.groups.values(), *server]
    return hashlib.sha256(
        b"".join(np.ascontiguousarray(part).tobytes() for part in parts)
    ).hexdigest()


def real(name: str) -> StoredDataset:
    """A real data set, where this machine has it."""
    if name not in list_installed():
        pytest.skip(f"{name} is not on this machine")
    return open_dataset(name)
