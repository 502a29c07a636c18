"""Your own data as a folder for each client, with images in a folder for each class, or with `x.npy` and `y.npy`."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fedtailor.data.examples import Array
from fedtailor.data.reader_blocks import Block
from fedtailor.data.readers.files import (
    count_block_rows,
    parse_labels,
    split_into_blocks,
    translate_read_errors,
)
from fedtailor.errors import InputError, import_extra, require

IMAGE_SUFFIXES = {".png", ".jpg", ".jpeg"}
MODES = {1: "L", 3: "RGB"}
DEFAULT_IMAGE_BYTES = 1 << 18  # bytes that an image is taken to have before the first was seen


def read_image_folders(folder: str | Path, channels: int = 3) -> Iterator[Block]:
    """Images at CLIENT/CLASS/FILE (.png, .jpg, .jpeg), all of one size, as uint8 [n, channels, height, width].

    Labels number the names of the class folders of all clients in alphabetical order. Needs Pillow.
    """
    require(
        channels in MODES,
        f"Image folders: channels must be 1 (gray) or 3 (color), got {channels!r}.",
    )
    clients = _list_folders(Path(folder))
    names = sorted({kind.name for client in clients for kind in _list_folders(client)})
    shape: tuple[int, ...] | None = None
    for client in clients:
        paths = [
            path
            for kind in _list_folders(client)
            for path in sorted(kind.iterdir())
            if path.suffix.lower() in IMAGE_SUFFIXES
        ]
        require(
            bool(paths), f"'{client}' must have images as CLASS/FILE.png (or .jpg), but has none."
        )
        size = count_block_rows(DEFAULT_IMAGE_BYTES if shape is None else int(np.prod(shape)))
        for start in range(0, len(paths), size):
            piece = paths[start : start + size]
            images = [_read_image(path, channels) for path in piece]
            shape = shape or images[0].shape
            for path, image in zip(piece, images, strict=True):
                same = image.shape == shape
                require(
                    same,
                    f"'{path}' must be {shape[1]} x {shape[2]} pixels as the others, got {image.shape[1:]}.",
                )
            labels = [names.index(path.parent.name) for path in piece]
            yield Block(
                client.name, {"x": np.stack(images), "y": parse_labels(client, labels, len(names))}
            )


def read_array_folders(folder: str | Path, x: str = "x.npy", y: str = "y.npy") -> Iterator[Block]:
    """Arrays at CLIENT/x.npy and CLIENT/y.npy, equally long, read from disk piece by piece."""
    for client in _list_folders(Path(folder)):
        columns = {"x": _load_array(client / x), "y": _load_array(client / y)}
        lengths = [len(column) for column in columns.values()]
        require(
            len(set(lengths)) == 1, f"'{client}' must have {x} and {y} equally long, got {lengths}."
        )
        for block in split_into_blocks(client.name, columns):
            with translate_read_errors(client, "arrays"):
                copies = {name: np.array(column) for name, column in block.columns.items()}
            for name, column in copies.items():
                finite = column.dtype.kind != "f" or bool(np.isfinite(column).all())
                require(
                    finite,
                    f"'{client}' must have finite numbers, but {name} has a NaN or infinity.",
                )
            yield Block(client.name, copies)


def _list_folders(folder: Path) -> list[Path]:
    require(folder.is_dir(), f"There is no folder '{folder}'.")
    found = sorted(path for path in folder.iterdir() if path.is_dir())
    require(bool(found), f"'{folder}' must have folders in it, but has none.")
    return found


def _read_image(path: Path, channels: int) -> Array:
    pillow = import_extra("PIL.Image", "images", "Reading images")
    with translate_read_errors(path, "an image"), pillow.open(path) as opened:
        pixels = np.asarray(opened.convert(MODES[channels]))
    return pixels[None] if channels == 1 else np.moveaxis(pixels, -1, 0)


def _load_array(path: Path) -> Array:
    with translate_read_errors(path, "a .npy file of numbers"):
        found = np.load(path, mmap_mode="r", allow_pickle=False)
    if not isinstance(found, np.ndarray) or found.ndim == 0 or found.dtype.kind not in "fiub":
        raise InputError(f"'{path}' must be an array of numbers, one or more for each example.")
    return found
