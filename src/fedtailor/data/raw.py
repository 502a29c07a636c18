"""Image data sets as they are, before anybody holds anything: read by name from a folder of `.npz` files."""

import os
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtailor.data.holders import Array
from fedtailor.data.npz import read_npz
from fedtailor.errors import InputError, nearest, require

VARIABLE = "FEDTAILOR_DATA"
PARTS = ("train", "test")
KEYS = tuple(f"{column}_{part}" for part in PARTS for column in "xy")
SHAPES = {"mnist": (28, 28), "cifar10": (32, 32, 3)}
CLASSES = 10


class Raw(NamedTuple):
    """All examples of a data set, its train part before its test part. Read-only: everybody gets the same arrays."""

    name: str
    x: NDArray[np.uint8]  # [n, channels, height, width]
    y: NDArray[np.int64]  # [n]
    classes: int
    scale: float  # what turns x into numbers from 0 to 1
    testing: NDArray[np.bool_]  # which examples the data set's authors set aside for testing


def folder() -> Path:
    """Where data lies: the folder that FEDTAILOR_DATA names, else `.cache/fedtailor-data` in the home folder."""
    named = os.environ.get(VARIABLE)
    return Path(named) if named else Path.home() / ".cache" / "fedtailor-data"


def raw(name: str) -> Raw:
    """The images "mnist" or "cifar10" from `folder()`, read once in a process while their file stays as it is."""
    require(name in SHAPES, f"There are no images '{name}'; {nearest(name, SHAPES)}")
    path = folder() / f"{name}.npz"
    try:
        state = path.stat()
    except OSError:
        raise InputError(f"{name}: there is no file '{path}'; {_remedy(name)}") from None
    return _read(name, path, state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=2)
def _read(name: str, path: Path, changed: int, size: int) -> Raw:
    """The data set in a file that was last changed then and has that size."""
    try:
        arrays = read_npz(path, KEYS)
    except InputError as problem:
        raise InputError(f"{name}: {str(problem).rstrip('.')}; {_remedy(name)}") from None
    for part in PARTS:
        _check(name, path, part, arrays[f"x_{part}"], arrays[f"y_{part}"])
    x = np.ascontiguousarray(np.concatenate([_channel_first(arrays[f"x_{part}"]) for part in PARTS]))
    y = np.concatenate([arrays[f"y_{part}"] for part in PARTS]).astype(np.int64)
    testing = np.arange(len(y)) >= len(arrays["y_train"])
    for column in (x, y, testing):
        column.flags.writeable = False
    return Raw(name, x, y, CLASSES, 1 / 255, testing)


def _remedy(name: str) -> str:
    shape = ", ".join(map(str, SHAPES[name]))
    return (
        f"put one there with {', '.join(KEYS)} (images uint8 [n, {shape}], labels [n] from 0 to {CLASSES - 1}), "
        f"or set {VARIABLE} to the folder that has it."
    )


def _check(name: str, path: Path, part: str, x: Array, y: Array) -> None:
    """Refuses images and labels that are not this data set's."""
    whose = f"{name}: in '{path}'"
    came = f"got {list(x.shape)} of {x.dtype} and {list(y.shape)} of {y.dtype}"
    good = x.shape[1:] == SHAPES[name] and x.dtype == np.uint8 and y.dtype.kind in "iu" and y.shape == x.shape[:1]
    require(good, f"{whose} x_{part} and y_{part} must be images and their labels, {came}; {_remedy(name)}")
    require(len(x) > 0, f"{whose} x_{part} must hold images, got none; {_remedy(name)}")
    low, high = int(y.min()), int(y.max())
    inside = 0 <= low <= high < CLASSES
    require(inside, f"{whose} y_{part} must be labels from 0 to {CLASSES - 1}, got {low} to {high}; {_remedy(name)}")


def _channel_first(images: Array) -> Array:
    """Images as [n, channels, height, width]."""
    return images[:, None] if images.ndim == 3 else np.moveaxis(images, -1, 1)
