"""Images of a few clients and of the server, where examples are images."""

import base64
import struct
import zlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtailor.data.dataset import FederatedDataset
from fedtailor.data.examples import Array, ClientExamples
from fedtailor.data.label_table import LabelTable, has_images, sort_by_main_label, subsample_evenly

NUM_CLIENTS = 6
IMAGES_PER_CLIENT = 12
MAX_CANDIDATES = 4096
"""Of an owner with more examples, this many are read to choose from."""
PNG_COLOR_TYPES = {1: 0, 3: 2}
"""PNG's numbers for gray and RGB, by the number of channels."""
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
MIN_RANGE = 1e-9
"""Smallest range of pixel values, so that images of one color can be scaled."""

Pixels = NDArray[np.uint8]


class ImageRow(NamedTuple):
    """Images of a client, or of the server, whose group is ""."""

    name: str
    group: str
    sources: list[str]  # data URLs that hold the images
    labels: list[str]  # of each image; "" where it has none


class _Selection(NamedTuple):
    """Examples of an owner that are shown."""

    name: str
    group: str
    examples: ClientExamples
    rows: NDArray[np.int64]
    images: Array


def build_image_rows(dataset: FederatedDataset, table: LabelTable) -> list[ImageRow]:
    """Return images of some clients and of the server; none where examples are not images."""
    if not has_images(dataset):
        return []
    selections = _select_clients(dataset, table)
    if dataset.server is not None:
        selections.append(_select_images("server", "", dataset.server, 0))
    low, high = _get_pixel_range(dataset, [selection.images for selection in selections])
    image_rows = []
    for selection in selections:
        sources = [encode_png(_to_pixels(image, low, high)) for image in selection.images]
        labels = _list_labels(dataset, selection)
        image_rows.append(ImageRow(selection.name, selection.group, sources, labels))
    return image_rows


def _select_clients(dataset: FederatedDataset, table: LabelTable) -> list[_Selection]:
    """Return some clients, evenly spaced in order of group and main label."""
    positions = subsample_evenly(sort_by_main_label(table), NUM_CLIENTS)
    selections = []
    for client_id in table.client_ids[positions].tolist():
        name = str(dataset.client_names[client_id])
        group = str(table.groups[client_id])
        selections.append(_select_images(name, group, dataset.clients, client_id))
    return selections


def _select_images(name: str, group: str, examples: ClientExamples, client_id: int) -> _Selection:
    """Return train examples of an owner, evenly spaced in order of their labels."""
    rows = subsample_evenly(examples.splits["train"].get_rows(client_id), MAX_CANDIDATES)
    if examples.y.ndim == 1:
        rows = rows[np.argsort(examples.y[rows], kind="stable")]
    rows = subsample_evenly(rows, IMAGES_PER_CLIENT)
    return _Selection(name, group, examples, rows, examples.x[rows])


def encode_png(pixels: Pixels) -> str:
    """Return a data URL with a PNG of pixels [height, width, 1 or 3]."""
    height, width, channels = pixels.shape
    # Each line begins with the number of its filter; 0 is none.
    lines = np.zeros((height, 1 + width * channels), np.uint8)
    lines[:, 1:] = pixels.reshape(height, -1)
    bit_depth = 8
    color_type = PNG_COLOR_TYPES[channels]
    header = struct.pack(">IIBBBBB", width, height, bit_depth, color_type, 0, 0, 0)
    chunks = [
        _make_png_chunk(b"IHDR", header),
        _make_png_chunk(b"IDAT", zlib.compress(lines.tobytes(), level=9)),
        _make_png_chunk(b"IEND", b""),
    ]
    png = PNG_SIGNATURE + b"".join(chunks)
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


def _make_png_chunk(kind: bytes, content: bytes) -> bytes:
    length = struct.pack(">I", len(content))
    checksum = struct.pack(">I", zlib.crc32(kind + content))
    return length + kind + content + checksum


def _get_pixel_range(
    dataset: FederatedDataset, image_stacks: Sequence[Array]
) -> tuple[float, float]:
    """Return the values shown as black and as white: those of the data's scale, or the extremes."""
    low = min(float(images.min()) for images in image_stacks)
    high = max(float(images.max()) for images in image_stacks)
    is_scaled_to_one = dataset.scale != 1 and low >= 0 and high * dataset.scale <= 1
    if is_scaled_to_one:
        return 0.0, 1 / dataset.scale
    return low, max(high, low + MIN_RANGE)


def _to_pixels(image: Array, low: float, high: float) -> Pixels:
    """Return pixels [height, width, channels] of an image [(channels,) height, width]."""
    if image.ndim == 3:
        channels_last = np.moveaxis(image, 0, -1)
    else:
        channels_last = image[..., None]
    brightness = (channels_last.astype(np.float64) - low) / (high - low)
    return np.rint(255 * np.clip(brightness, 0, 1)).astype(np.uint8)


def _list_labels(dataset: FederatedDataset, selection: _Selection) -> list[str]:
    has_labels = dataset.classes is not None and selection.examples.y.ndim == 1
    if not has_labels:
        return [""] * len(selection.rows)
    return [str(label) for label in selection.examples.y[selection.rows].tolist()]
