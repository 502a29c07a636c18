"""Writers of files in published formats: CIFAR, idx, STL-10, LEAF and TFF's HDF5."""

import gzip
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedtailor.data.examples import Array

RNG = np.random.default_rng(5)


def python2_pickle(batch: dict[str, Any]) -> bytes:
    """A batch as the published files have it: protocol 2 of Python 2, whose strings are bytes."""

    def text(value: bytes) -> bytes:
        return b"T" + struct.pack("<I", len(value)) + value

    def whole(value: int) -> bytes:
        return b"J" + struct.pack("<i", value)

    def array(value: Array) -> bytes:
        made = (
            b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n("
            + whole(0)
            + b"t"
            + text(b"b")
            + b"tR"
        )
        kind = b"cnumpy\ndtype\n(" + text(b"u1") + whole(0) + whole(1) + b"tR("
        kind += whole(3) + text(b"|") + b"NNN" + whole(-1) + whole(-1) + whole(0) + b"tb"
        shape = b"(" + b"".join(whole(size) for size in value.shape) + b"t"
        return made + b"(" + whole(1) + shape + kind + b"\x89" + text(value.tobytes()) + b"tb"

    def entry(value: Any) -> bytes:
        if isinstance(value, list):
            return (
                b"]("
                + b"".join(text(v) if isinstance(v, bytes) else whole(v) for v in value)
                + b"e"
            )
        return array(value) if isinstance(value, np.ndarray) else text(value)

    return (
        b"\x80\x02}("
        + b"".join(text(key.encode()) + entry(value) for key, value in batch.items())
        + b"u."
    )


def batch10(count: int) -> dict[str, Any]:
    images = RNG.integers(0, 256, (count, 3072), np.uint8)
    labels = RNG.integers(0, 10, count).tolist()
    return {
        "batch_label": b"some batch",
        "labels": labels,
        "data": images,
        "filenames": [b"a.png"] * count,
    }


def write_cifar10(folder: Path, dump: Callable[[dict[str, Any]], bytes]) -> tuple[Array, list[int]]:
    """Six batches of two images each in a new folder; all images and labels in the order train,
    test.
    """
    folder.mkdir()
    images, labels = [], []
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        batch = batch10(2)
        (folder / name).write_bytes(dump(batch))
        binary = b"".join(
            bytes([label]) + row.tobytes()
            for label, row in zip(batch["labels"], batch["data"], strict=True)
        )
        (folder / f"{name}.bin").write_bytes(binary)
        images.append(batch["data"])
        labels += batch["labels"]
    return np.concatenate(images).reshape(-1, 3, 32, 32), labels


def idx_bytes(array: Array) -> bytes:
    return (
        struct.pack(f">{1 + array.ndim}I", 2048 + array.ndim, *array.shape)
        + array.astype(np.uint8).tobytes()
    )


def write_idx(folder: Path, prefix: str, images: Array, labels: Any, end: str = "") -> None:
    for what, array in (("images-idx3", images), ("labels-idx1", np.asarray(labels))):
        raw = idx_bytes(array)
        (folder / f"{prefix}-{what}-ubyte{end}").write_bytes(gzip.compress(raw) if end else raw)


def write_stl10(folder: Path, images: Array, labels: list[int], train: int) -> None:
    """Images [n, 3, 96, 96] as STL-10 has them: each channel column by column."""
    folder.mkdir(exist_ok=True)
    for name, at in (("train", slice(0, train)), ("test", slice(train, None))):
        (folder / f"{name}_X.bin").write_bytes(images[at].swapaxes(2, 3).tobytes())
        (folder / f"{name}_y.bin").write_bytes(bytes(label + 1 for label in labels[at]))


def leaf_text(users: dict[str, dict[str, list[Any]]]) -> str:
    sizes = [len(data["y"]) for data in users.values()]
    return json.dumps({"users": list(users), "num_samples": sizes, "user_data": users})


def write_leaf(folder: Path, part: str, name: str, users: dict[str, dict[str, list[Any]]]) -> Path:
    (folder / part).mkdir(exist_ok=True)
    path = folder / part / name
    path.write_text(leaf_text(users))
    return path


def femnist_user(images: Array, labels: list[int]) -> dict[str, list[Any]]:
    return {"x": (images.reshape(-1, 784) / 255).tolist(), "y": labels}


def write_hdf5(path: Path, clients: dict[str, dict[str, Any]]) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        for client, features in clients.items():
            for name, values in features.items():
                kind = h5py.string_dtype("ascii") if isinstance(values, list) else None
                file.create_dataset(f"examples/{client}/{name}", data=values, dtype=kind)
