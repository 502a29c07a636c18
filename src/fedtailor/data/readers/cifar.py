"""CIFAR-10 and CIFAR-100 in their Python (pickled) or binary batches: an archive, a folder, or single files."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from fedtailor.data.blocks import Block
from fedtailor.data.holders import Array
from fedtailor.data.readers.files import Source, checked_labels, equally_long, fixed_rows, in_pieces, part, reading
from fedtailor.data.readers.pickled import bytes_array, read_pickle
from fedtailor.errors import InputError, require

PIXELS = 3 * 32 * 32
TEN = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")
HUNDRED = ("train", "test")
LABELS = {10: {"y": 10}, 100: {"coarse": 20, "y": 100}}  # of a binary row in that order, with how many classes
KEYS = {10: {"y": b"labels"}, 100: {"coarse": b"coarse_labels", "y": b"fine_labels"}}
KIND = "a batch of CIFAR-{}"


def cifar10(path: str | Path | Sequence[str | Path]) -> Iterator[Block]:
    """CIFAR-10: "x" [n, 3, 32, 32] and "y"; train before test. One path (archive, folder, batch) or several batches."""
    return _read(path, TEN, 10)


def cifar100(path: str | Path | Sequence[str | Path]) -> Iterator[Block]:
    """CIFAR-100: the same with fine labels as "y" and the 20 coarse ones as "coarse"."""
    return _read(path, HUNDRED, 100)


def _read(path: str | Path | Sequence[str | Path], names: tuple[str, ...], classes: int) -> Iterator[Block]:
    if not isinstance(path, str | Path):
        for each in path:
            yield from _read(each, names, classes)
    elif Path(path).is_dir() or Path(path).suffix in (".gz", ".tgz", ".tar"):
        source = Source(path)
        for name in source.first(names, tuple(f"{name}.bin" for name in names)):
            with source.open(name, KIND.format(classes)) as file:
                yield from _batch(source.label(name), file, name, classes)
    else:
        with reading(path, KIND.format(classes)), Path(path).open("rb") as file:
            yield from _batch(str(path), file, Path(path).name, classes)


def _batch(label: str, file: IO[bytes], name: str, classes: int) -> Iterator[Block]:
    """The blocks of one batch, of its test part if its name says so."""
    pieces = _binary(label, file, classes) if name.endswith(".bin") else [_pickled(label, file, classes)]
    for columns in pieces:
        yield from in_pieces("", part(columns, name.startswith("test")))


def _binary(label: str, file: IO[bytes], classes: int) -> Iterator[dict[str, Array]]:
    """Rows of one label (CIFAR-10) or two (coarse, fine), then red, green and blue."""
    kinds = LABELS[classes]
    for rows in fixed_rows(label, file, len(kinds) + PIXELS):
        labels = {name: checked_labels(label, rows[:, at], most) for at, (name, most) in enumerate(kinds.items())}
        yield {"x": rows[:, len(kinds) :].reshape(-1, 3, 32, 32)} | labels


def _pickled(label: str, file: IO[bytes], classes: int) -> dict[str, Array]:
    try:
        held = read_pickle(file.read())
        require(isinstance(held, dict), "it holds no dict")
        held = {_name(key): value for key, value in held.items()}
        missing = [key.decode() for key in (b"data", *KEYS[classes].values()) if key not in held]
        require(not missing, f"it has no {', '.join(missing)}")
        images = bytes_array(held[b"data"])
    except InputError as problem:
        raise InputError(f"'{label}' is no batch of CIFAR-{classes}: {problem}.") from None
    require(images.ndim == 2 and images.shape[1] == PIXELS, f"'{label}' must have images of {PIXELS} bytes each.")
    for key in KEYS[classes].values():
        require(isinstance(held[key], list), f"'{label}' must have a list of {key.decode()}.")
    labels = {name: checked_labels(label, held[KEYS[classes][name]], most) for name, most in LABELS[classes].items()}
    equally_long(label, "it", x=images, **labels)
    return {"x": images.reshape(-1, 3, 32, 32)} | labels


def _name(key: Any) -> Any:
    """A key as bytes: Python 2 wrote bytes where Python 3 writes text."""
    return key.encode() if isinstance(key, str) else key
