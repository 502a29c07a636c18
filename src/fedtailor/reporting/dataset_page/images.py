"""A few people's examples as pictures, where examples are images."""

import base64
import struct
import zlib
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtailor.data.dataset import FederatedDataset
from fedtailor.data.examples import Array, ClientExamples
from fedtailor.data.label_table import LabelTable, has_images, sort_by_main_label, subsample_evenly

NUM_CLIENTS, IMAGES_PER_CLIENT = 6, 12
MAX_CANDIDATES = 4096
"""Of a holder with more examples, so many are looked at to choose from."""
PNG_COLOR_TYPES = {1: 0, 3: 2}
"""PNG's number for gray and for red, green and blue, by the number of channels."""

Pixels = NDArray[np.uint8]


class ImageRow(NamedTuple):
    """One holder's images."""

    name: str
    group: str
    pictures: list[str]  # as addresses that hold the image itself
    labels: list[str]  # what each shows; "" where that is not known


def build_image_rows(dataset: FederatedDataset, table: LabelTable) -> list[ImageRow]:
    """Some clients' images, and the server's; nothing where examples are no images."""
    if not has_images(dataset):
        return []
    positions = subsample_evenly(sort_by_main_label(table), NUM_CLIENTS)
    clients = [
        (
            dataset.clients,
            int(client_id),
            str(dataset.client_names[client_id]),
            str(table.groups[client_id]),
        )
        for client_id in table.client_ids[positions]
    ]
    owners = [*clients, *([(dataset.server, 0, "server", "")] if dataset.server else [])]
    chosen_indices = [_select_examples(examples, client_id) for examples, client_id, _, _ in owners]
    image_stacks = [
        examples.x[indices] for (examples, *_), indices in zip(owners, chosen_indices, strict=True)
    ]
    low, high = _get_pixel_range(dataset, image_stacks)
    return [
        ImageRow(
            name,
            group,
            [encode_png(_to_pixels(image, low, high)) for image in images],
            _list_labels(dataset, examples, indices),
        )
        for (examples, _, name, group), indices, images in zip(
            owners, chosen_indices, image_stacks, strict=True
        )
    ]


def encode_png(pixels: Pixels) -> str:
    """Pixels [height, width, 1 or 3] as the address of a PNG that holds them."""
    height, width, channels = pixels.shape
    lines = np.zeros(
        (height, 1 + width * channels), np.uint8
    )  # every line begins with its filter: none
    lines[:, 1:] = pixels.reshape(height, -1)
    head = struct.pack(">IIBBBBB", width, height, 8, PNG_COLOR_TYPES[channels], 0, 0, 0)
    parts = ((b"IHDR", head), (b"IDAT", zlib.compress(lines.tobytes(), 9)), (b"IEND", b""))
    content_bytes = b"\x89PNG\r\n\x1a\n" + b"".join(
        _make_chunk(kind, content) for kind, content in parts
    )
    return f"data:image/png;base64,{base64.b64encode(content_bytes).decode()}"


def _make_chunk(kind: bytes, content: bytes) -> bytes:
    return (
        struct.pack(">I", len(content))
        + kind
        + content
        + struct.pack(">I", zlib.crc32(kind + content))
    )


def _select_examples(examples: ClientExamples, client_id: int) -> NDArray[np.int64]:
    """Train examples, evenly spaced over the holder's labels in order."""
    indices = subsample_evenly(examples.splits["train"].get_rows(client_id), MAX_CANDIDATES)
    if examples.y.ndim == 1:
        indices = indices[np.argsort(examples.y[indices], kind="stable")]
    return subsample_evenly(indices, IMAGES_PER_CLIENT)


def _get_pixel_range(dataset: FederatedDataset, image_stacks: list[Array]) -> tuple[float, float]:
    """What is shown darkest and brightest: as the scale says, or what occurs."""
    low, high = (
        min(float(images.min()) for images in image_stacks),
        max(float(images.max()) for images in image_stacks),
    )
    if dataset.scale != 1 and low >= 0 and high * dataset.scale <= 1:
        return 0.0, 1 / dataset.scale
    return low, max(high, low + 1e-9)


def _to_pixels(image: Array, low: float, high: float) -> Pixels:
    channels_last = np.moveaxis(image, 0, -1) if image.ndim == 3 else image[..., None]
    bright = (channels_last.astype(np.float64) - low) / (high - low)
    return np.rint(255 * np.clip(bright, 0, 1)).astype(np.uint8)


def _list_labels(
    dataset: FederatedDataset, examples: ClientExamples, indices: NDArray[np.int64]
) -> list[str]:
    has_labels = dataset.classes is not None and examples.y.ndim == 1
    return (
        [str(label) for label in examples.y[indices].tolist()]
        if has_labels
        else [""] * len(indices)
    )
