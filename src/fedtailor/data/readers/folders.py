"""Users' own data as a folder for each client.

A client's folder has images in a folder for each class, or arrays in `x.npy` and `y.npy`.
"""

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

PILLOW_MODES = {1: "L", 3: "RGB"}
"""Pillow's name of the mode by the number of channels."""

ASSUMED_IMAGE_BYTES = 1 << 18
"""Size of an image for the first block, before any image has been read."""


def read_image_folders(folder: str | Path, channels: int = 3) -> Iterator[Block]:
    """Read images at CLIENT/CLASS/FILE (.png, .jpg, .jpeg) as uint8 [n, channels, height, width].

    All images must have the same size. Labels number the class names of all clients in
    alphabetical order. Needs Pillow.
    """
    require(
        channels in PILLOW_MODES,
        f"Image folders: channels must be 1 (gray) or 3 (color), got {channels!r}.",
    )
    client_folders = _list_folders(Path(folder))
    class_names = sorted(
        {
            class_folder.name
            for client_folder in client_folders
            for class_folder in _list_folders(client_folder)
        }
    )
    shape: tuple[int, ...] | None = None
    for client_folder in client_folders:
        paths = _list_images(client_folder)
        image_bytes = ASSUMED_IMAGE_BYTES if shape is None else int(np.prod(shape))
        block_rows = count_block_rows(image_bytes)
        for start in range(0, len(paths), block_rows):
            block_paths = paths[start : start + block_rows]
            images = [_read_image(path, channels) for path in block_paths]
            if shape is None:
                shape = images[0].shape
            _require_shape(block_paths, images, shape)
            labels = [class_names.index(path.parent.name) for path in block_paths]
            columns = {
                "x": np.stack(images),
                "y": parse_labels(client_folder, labels, len(class_names)),
            }
            yield Block(client_folder.name, columns)


def read_array_folders(folder: str | Path, x: str = "x.npy", y: str = "y.npy") -> Iterator[Block]:
    """Read arrays at CLIENT/x.npy and CLIENT/y.npy, which are equally long, piece by piece.

    Args:
        folder: The folder with the clients' folders.
        x: Name of the file of inputs.
        y: Name of the file of targets.
    """
    for client_folder in _list_folders(Path(folder)):
        columns = {"x": _map_array(client_folder / x), "y": _map_array(client_folder / y)}
        lengths = [len(column) for column in columns.values()]
        require(
            len(set(lengths)) == 1,
            f"'{client_folder}' must have {x} and {y} equally long, got {lengths}.",
        )
        for block in split_into_blocks(client_folder.name, columns):
            with translate_read_errors(client_folder, "arrays"):
                copies = {name: np.array(column) for name, column in block.columns.items()}
            for name, column in copies.items():
                is_finite = column.dtype.kind != "f" or bool(np.isfinite(column).all())
                require(
                    is_finite,
                    f"'{client_folder}' must have finite numbers, but {name} has a NaN or "
                    "infinity.",
                )
            yield Block(client_folder.name, copies)


def _list_folders(folder: Path) -> list[Path]:
    require(folder.is_dir(), f"There is no folder '{folder}'.")
    folders = sorted(path for path in folder.iterdir() if path.is_dir())
    require(bool(folders), f"'{folder}' must have folders in it, but has none.")
    return folders


def _list_images(client_folder: Path) -> list[Path]:
    """Return the paths of a client's images, class by class."""
    paths = []
    for class_folder in _list_folders(client_folder):
        files = sorted(class_folder.iterdir())
        paths += [path for path in files if path.suffix.lower() in IMAGE_SUFFIXES]
    has_images = bool(paths)
    require(
        has_images, f"'{client_folder}' must have images as CLASS/FILE.png (or .jpg), but has none."
    )
    return paths


def _require_shape(paths: list[Path], images: list[Array], shape: tuple[int, ...]) -> None:
    for path, image in zip(paths, images, strict=True):
        require(
            image.shape == shape,
            f"'{path}' must be {shape[1]} x {shape[2]} pixels as the others, "
            f"got {image.shape[1:]}.",
        )


def _read_image(path: Path, channels: int) -> Array:
    pillow = import_extra("PIL.Image", "images", "Reading images")
    with translate_read_errors(path, "an image"), pillow.open(path) as image:
        pixels = np.asarray(image.convert(PILLOW_MODES[channels]))
    if channels == 1:
        return pixels[None]
    return np.moveaxis(pixels, -1, 0)


def _map_array(path: Path) -> Array:
    with translate_read_errors(path, "a .npy file of numbers"):
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    # NumPy opens an .npz file as well, which is no array.
    if not isinstance(array, np.ndarray) or array.ndim == 0 or array.dtype.kind not in "fiub":
        raise InputError(f"'{path}' must be an array of numbers, one or more for each example.")
    return array
