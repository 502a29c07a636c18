"""Damage to the server's examples: images made worse, or labels made wrong."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fedtailor.data.arguments import require_int
from fedtailor.data.examples import Array
from fedtailor.data.partition.helpers import require_in_range
from fedtailor.errors import require, suggest_name

Images = NDArray[np.uint8]
"""Images, [images, channels, height, width], with values from 0 to 255."""

ImageDamage = Callable[[Images, float, np.random.Generator], Images]
"""(images, amount, generator) -> damaged images."""

LabelDamage = Callable[[Array, int, np.random.Generator], Array]
"""(labels, number of classes, generator) -> other labels."""

BLOCK_IMAGES = 4096
"""Number of images damaged at a time, which bounds the memory for floating-point values."""

BLUR_CUTOFF = 4
"""Number of standard deviations at which a Gaussian is cut off."""


def damage_examples(
    x: Array, y: Array, classes: int, *, damage: str, amount: float, rng: np.random.Generator
) -> tuple[Array, Array]:
    """Return a damaged copy of examples; with amount 0 an equal one.

    Args:
        x: Images, uint8 [examples, channels, height, width]; or anything, if labels are damaged.
        y: Labels from 0 to `classes` - 1, [examples, ...].
        classes: Number of classes.
        damage: Name of one of `DAMAGES`.
        amount: From 0 to 1. The function of an image damage says what it means; for damage to
            labels it is the share of the labels that are changed.
        rng: Draws all that is random.
    """
    require(damage in DAMAGES, f"There is no damage '{damage}'; {suggest_name(damage, DAMAGES)}")
    require_in_range(damage, "amount", amount, 0, 1)
    x = np.asarray(x)
    y = np.asarray(y)
    shapes = f"{list(x.shape)} of {x.dtype} and {list(y.shape)} of {y.dtype}"
    is_paired = x.ndim > 0 and y.ndim > 0 and len(x) == len(y)
    require(is_paired, f"{damage}: x and y must be equally many examples and labels, got {shapes}.")
    if damage in LABEL_DAMAGES:
        return x.copy(), _damage_labels(damage, y, classes, amount, rng)
    has_images = x.ndim == 4 and x.dtype == np.uint8
    require(
        has_images,
        f"{damage}: x must be images, uint8 [n, channels, height, width], got {shapes}.",
    )
    if amount == 0 or x.size == 0:
        return x.copy(), y.copy()
    rows = np.arange(len(x))
    if damage in PER_IMAGE_DAMAGES:
        rows = _choose_rows(len(x), amount, rng)
    return _damage_in_blocks(IMAGE_DAMAGES[damage], x, rows, amount, rng), y.copy()


def _damage_in_blocks(
    damage_images: ImageDamage, x: Images, rows: Array, amount: float, rng: np.random.Generator
) -> Images:
    """Return a copy of images in which some rows are damaged."""
    damaged = x.copy()
    for start in range(0, len(rows), BLOCK_IMAGES):
        block = rows[start : start + BLOCK_IMAGES]
        damaged[block] = damage_images(x[block], amount, rng)
    return damaged


def _choose_rows(count: int, amount: float, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return a random share `amount` of the rows, to the nearest whole number of them, sorted."""
    return np.sort(rng.choice(count, round(amount * count), replace=False))


def _to_uint8(values: Array) -> Images:
    return np.clip(np.rint(values), 0, 255).astype(np.uint8)


def add_noise(x: Images, amount: float, rng: np.random.Generator) -> Images:
    """Add Gaussian noise with a standard deviation of `amount` * 255 to every value of `x`.

    `rng` draws the noise.
    """
    noise = 255 * amount * rng.standard_normal(x.shape, np.float32)
    return _to_uint8(x + noise)


def blur(x: Images, amount: float, _rng: np.random.Generator) -> Images:
    """Blur `x` by a Gaussian with a standard deviation of `amount` times the shorter side.

    Values at the edges continue outside of the image. `_rng` is not used.
    """
    height, width = x.shape[-2:]
    deviation = amount * min(height, width)
    blur_rows = _make_blur_matrix(height, deviation)
    blur_columns = _make_blur_matrix(width, deviation).T
    return _to_uint8(blur_rows @ x.astype(np.float32) @ blur_columns)


def _make_blur_matrix(size: int, deviation: float) -> NDArray[np.float32]:
    """Return the matrix that blurs a line, [size, size]."""
    reach = int(BLUR_CUTOFF * deviation + 0.5)
    steps = np.arange(-reach, reach + 1)
    kernel = np.exp(-0.5 * (steps / deviation) ** 2)
    kernel = kernel / kernel.sum()
    rows = np.arange(size)[:, None]
    columns = np.clip(rows + steps, 0, size - 1)
    matrix = np.zeros((size, size))
    np.add.at(matrix, (rows, columns), kernel)
    return matrix.astype(np.float32)


def invert(x: Images, _amount: float, _rng: np.random.Generator) -> Images:
    """Exchange dark and light.

    `x` are the chosen images, a share `_amount` of all; `_rng` is not used.
    """
    return 255 - x


def occlude(x: Images, amount: float, rng: np.random.Generator) -> Images:
    """Hide a rectangle of each image of `x` under the median of the image, by channel.

    The rectangle has the proportions of the image and `amount` of its area; `rng` draws its place.
    """
    count, channels, height, width = x.shape
    hidden_height = round(height * amount**0.5)
    hidden_width = round(width * amount**0.5)
    top = rng.integers(0, height - hidden_height + 1, count)
    left = rng.integers(0, width - hidden_width + 1, count)
    row = np.arange(height) - top[:, None]
    column = np.arange(width) - left[:, None]
    is_hidden_row = (row >= 0) & (row < hidden_height)
    is_hidden_column = (column >= 0) & (column < hidden_width)
    is_hidden = is_hidden_row[:, None, :, None] & is_hidden_column[:, None, None, :]
    values = x.reshape(count, channels, -1)
    # In images of characters, the median is the background.
    median = np.percentile(values, 50, axis=2, method="lower").astype(np.uint8)
    return np.where(is_hidden, median[:, :, None, None], x)


def rotate(x: Images, _amount: float, rng: np.random.Generator) -> Images:
    """Rotate square images by 90, 180 or 270 degrees.

    `x` are the chosen images, a share `_amount` of all; `rng` draws the rotations.
    """
    height, width = x.shape[2:]
    require(
        height == width, f"rotate: images must be as high as they are wide, got {height} x {width}."
    )
    rotated = x.copy()
    quarter_turns = rng.integers(1, 4, len(x))
    for turns in (1, 2, 3):
        is_chosen = quarter_turns == turns
        rotated[is_chosen] = np.rot90(x[is_chosen], turns, axes=(2, 3))
    return rotated


def reduce_contrast(x: Images, amount: float, _rng: np.random.Generator) -> Images:
    """Move every value of `x` towards the mean of its image, by `amount` of the difference.

    `_rng` is not used.
    """
    mean = x.mean(axis=(1, 2, 3), keepdims=True, dtype=np.float32)
    return _to_uint8(mean + (1 - amount) * (x - mean))


def _damage_labels(
    damage: str, y: Array, classes: int, amount: float, rng: np.random.Generator
) -> Array:
    """Return a copy of labels in which a random share `amount` is damaged."""
    require_int(damage, "classes", classes, 2)
    require(y.dtype.kind in "iu", f"{damage}: labels must be whole numbers, got {y.dtype}.")
    is_inside = y.size == 0 or (int(y.min()) >= 0 and int(y.max()) < classes)
    require(is_inside, f"{damage}: labels must be from 0 to {classes - 1}, but some are not.")
    labels = y.reshape(-1).copy()
    chosen = _choose_rows(len(labels), amount, rng)
    labels[chosen] = LABEL_DAMAGES[damage](labels[chosen], classes, rng)
    return labels.reshape(y.shape)


def replace_labels(labels: Array, classes: int, rng: np.random.Generator) -> Array:
    """Return another one of the `classes` for each of the `labels`; `rng` draws it uniformly."""
    return (labels.astype(np.int64) + rng.integers(1, classes, len(labels))) % classes


def shuffle_labels(labels: Array, _classes: int, rng: np.random.Generator) -> Array:
    """Return the same `labels` in a random order, which `rng` draws; `_classes` is not used."""
    return rng.permutation(labels)


IMAGE_DAMAGES: dict[str, ImageDamage] = {
    "noise": add_noise,
    "blur": blur,
    "invert": invert,
    "occlude": occlude,
    "rotate": rotate,
    "contrast": reduce_contrast,
}
"""Damage to images, by name; each function says what its amount means."""

PER_IMAGE_DAMAGES = ("invert", "rotate")
"""Damages whose amount is the share of the images that are damaged."""

LABEL_DAMAGES: dict[str, LabelDamage] = {
    "wrong-labels": replace_labels,
    "shuffled-labels": shuffle_labels,
}
"""Damage to labels, by name; the amount is the share of the labels that are damaged."""

DAMAGES: dict[str, Callable[..., Array]] = {**IMAGE_DAMAGES, **LABEL_DAMAGES}
"""All damages by name, the values of `server_damage`."""
