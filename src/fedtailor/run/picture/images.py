"""A few people's examples as pictures, where examples are images."""

import base64
import struct
import zlib
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtailor.data.dataset import FederatedDataset
from fedtailor.data.holders import Array, Holders
from fedtailor.data.picture import Labels, are_images, main_label_order, spaced

PEOPLE, EACH = 6, 12
LOOKED_AT = 4096
"""Of a holder with more examples, so many are looked at to choose from."""
COLOURS = {1: 0, 3: 2}
"""PNG's number for grey and for red, green and blue, by the number of channels."""

Pixels = NDArray[np.uint8]


class Row(NamedTuple):
    """One holder's images."""

    name: str
    group: str
    pictures: list[str]  # as addresses that hold the image itself
    labels: list[str]  # what each shows; "" where that is not known


def rows(dataset: FederatedDataset, table: Labels) -> list[Row]:
    """Some clients' images, and the server's; nothing where examples are no images."""
    if not are_images(dataset):
        return []
    places = spaced(main_label_order(table), PEOPLE)
    people = [(dataset.clients, int(who), str(dataset.ids[who]), str(table.groups[who])) for who in table.who[places]]
    everybody = [*people, *([(dataset.server, 0, "server", "")] if dataset.server else [])]
    chosen = [_chosen(holders, who) for holders, who, _, _ in everybody]
    seen = [holders.x[some] for (holders, *_), some in zip(everybody, chosen, strict=True)]
    low, high = _range(dataset, seen)
    return [
        Row(name, group, [png(_pixels(image, low, high)) for image in images], _labels(dataset, holders, some))
        for (holders, _, name, group), some, images in zip(everybody, chosen, seen, strict=True)
    ]


def png(pixels: Pixels) -> str:
    """Pixels [height, width, 1 or 3] as the address of a PNG that holds them."""
    height, width, channels = pixels.shape
    lines = np.zeros((height, 1 + width * channels), np.uint8)  # every line begins with its filter: none
    lines[:, 1:] = pixels.reshape(height, -1)
    head = struct.pack(">IIBBBBB", width, height, 8, COLOURS[channels], 0, 0, 0)
    parts = ((b"IHDR", head), (b"IDAT", zlib.compress(lines.tobytes(), 9)), (b"IEND", b""))
    whole = b"\x89PNG\r\n\x1a\n" + b"".join(_part(kind, content) for kind, content in parts)
    return f"data:image/png;base64,{base64.b64encode(whole).decode()}"


def _part(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def _chosen(holders: Holders, who: int) -> NDArray[np.int64]:
    """Train examples, evenly spaced over the holder's labels in order."""
    own = spaced(holders.splits["train"].of(who), LOOKED_AT)
    if holders.y.ndim == 1:
        own = own[np.argsort(holders.y[own], kind="stable")]
    return spaced(own, EACH)


def _range(dataset: FederatedDataset, seen: list[Array]) -> tuple[float, float]:
    """What is shown darkest and brightest: as the scale says, or what occurs."""
    low, high = min(float(images.min()) for images in seen), max(float(images.max()) for images in seen)
    if dataset.scale != 1 and low >= 0 and high * dataset.scale <= 1:
        return 0.0, 1 / dataset.scale
    return low, max(high, low + 1e-9)


def _pixels(image: Array, low: float, high: float) -> Pixels:
    channels_last = np.moveaxis(image, 0, -1) if image.ndim == 3 else image[..., None]
    bright = (channels_last.astype(np.float64) - low) / (high - low)
    return np.rint(255 * np.clip(bright, 0, 1)).astype(np.uint8)


def _labels(dataset: FederatedDataset, holders: Holders, some: NDArray[np.int64]) -> list[str]:
    known = dataset.classes is not None and holders.y.ndim == 1
    return [str(label) for label in holders.y[some].tolist()] if known else [""] * len(some)
