"""Examples made worse on purpose: a server whose data is noisy, blurred, hidden in part, or wrongly labeled."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fedtailor.data.arguments import require_int
from fedtailor.data.examples import Array
from fedtailor.data.partition.helpers import require_in_range
from fedtailor.errors import require, suggest_name

Images = NDArray[np.uint8]
ImageDamage = Callable[[Images, float, np.random.Generator], Images]
LabelDamage = Callable[[Array, int, np.random.Generator], Array]

BLOCK_IMAGES = (
    4096  # images at a time: what is computed in floating point stays small beside what is damaged
)
BLUR_CUTOFF = 4  # standard deviations: where a Gaussian is cut off


def damage_examples(
    x: Array, y: Array, classes: int, *, damage: str, amount: float, rng: np.random.Generator
) -> tuple[Array, Array]:
    """A damaged copy of examples, by one of `DAMAGES`; with amount 0 an equal one.

    Images are uint8 [n, channels, height, width]. Labels are from 0 to `classes` - 1, in any shape that begins with n;
    only they can be damaged where x is anything else.
    """
    require(damage in DAMAGES, f"There is no damage '{damage}'; {suggest_name(damage, DAMAGES)}")
    require_in_range(damage, "amount", amount, 0, 1)
    x, y = np.asarray(x), np.asarray(y)
    came = f"got {list(x.shape)} of {x.dtype} and {list(y.shape)} of {y.dtype}"
    together = x.ndim > 0 and y.ndim > 0 and len(x) == len(y)
    require(together, f"{damage}: x and y must be equally many examples and labels, {came}.")
    if damage in LABEL_DAMAGES:
        return x.copy(), _damage_labels(damage, y, classes, amount, rng)
    images = x.ndim == 4 and x.dtype == np.uint8
    require(images, f"{damage}: x must be images, uint8 [n, channels, height, width], {came}.")
    if amount == 0 or x.size == 0:
        return x.copy(), y.copy()
    rows = _choose_rows(len(x), amount, rng) if damage in PER_IMAGE_DAMAGES else np.arange(len(x))
    return _damage_in_blocks(IMAGE_DAMAGES[damage], x, rows, amount, rng), y.copy()


def _damage_in_blocks(
    damage_images: ImageDamage, x: Images, rows: Array, amount: float, rng: np.random.Generator
) -> Images:
    """All images, and these rows of them worse."""
    out = x.copy()
    for start in range(0, len(rows), BLOCK_IMAGES):
        block = rows[start : start + BLOCK_IMAGES]
        out[block] = damage_images(x[block], amount, rng)
    return out


def _choose_rows(count: int, amount: float, rng: np.random.Generator) -> NDArray[np.int64]:
    """Which ones are chosen: a share, to the nearest whole number."""
    return np.sort(rng.choice(count, round(amount * count), replace=False))


def _to_uint8(values: Array) -> Images:
    return np.clip(np.rint(values), 0, 255).astype(np.uint8)


def add_noise(x: Images, amount: float, rng: np.random.Generator) -> Images:
    """Gaussian noise on every value, with `amount` of the range from 0 to 255 as its standard deviation."""
    return _to_uint8(x + 255 * amount * rng.standard_normal(x.shape, np.float32))


def blur(x: Images, amount: float, _rng: np.random.Generator) -> Images:
    """A Gaussian blur, with `amount` of the shorter side as its standard deviation; edges go on outside as they are."""
    height, width = x.shape[-2:]
    deviation = amount * min(height, width)
    return _to_uint8(
        _make_blur_matrix(height, deviation)
        @ x.astype(np.float32)
        @ _make_blur_matrix(width, deviation).T
    )


def _make_blur_matrix(size: int, deviation: float) -> NDArray[np.float32]:
    """The matrix [size, size] that blurs a line, with a kernel that is cut off at `BLUR_CUTOFF` deviations."""
    reach = int(BLUR_CUTOFF * deviation + 0.5)
    steps = np.arange(-reach, reach + 1)
    kernel = np.exp(-0.5 * (steps / deviation) ** 2)
    matrix, rows = np.zeros((size, size)), np.arange(size)[:, None]
    np.add.at(matrix, (rows, np.clip(rows + steps, 0, size - 1)), kernel / kernel.sum())
    return matrix.astype(np.float32)


def invert(x: Images, _amount: float, _rng: np.random.Generator) -> Images:
    """Dark for light, in `amount` of the images."""
    return 255 - x


def occlude(x: Images, amount: float, rng: np.random.Generator) -> Images:
    """A rectangle of the image's proportions and `amount` of its area, at a random place, has the image's median."""
    count, channels, height, width = x.shape
    tall, wide = round(height * amount**0.5), round(width * amount**0.5)
    top, left = rng.integers(0, height - tall + 1, count), rng.integers(0, width - wide + 1, count)
    down, right = np.arange(height) - top[:, None], np.arange(width) - left[:, None]
    hidden = ((down >= 0) & (down < tall))[:, None, :, None] & ((right >= 0) & (right < wide))[
        :, None, None, :
    ]
    flat = x.reshape(count, channels, -1)
    plain = np.percentile(flat, 50, axis=2, method="lower")  # of characters, this is the background
    return np.where(hidden, plain[:, :, None, None].astype(np.uint8), x)


def rotate(x: Images, _amount: float, rng: np.random.Generator) -> Images:
    """By 90, 180 or 270 degrees, at random, `amount` of the images."""
    square = x.shape[2] == x.shape[3]
    require(
        square, f"rotate: images must be as high as they are wide, got {x.shape[2]} x {x.shape[3]}."
    )
    out, turns = x.copy(), rng.integers(1, 4, len(x))
    for turn in (1, 2, 3):
        out[turns == turn] = np.rot90(x[turns == turn], turn, axes=(2, 3))
    return out


def reduce_contrast(x: Images, amount: float, _rng: np.random.Generator) -> Images:
    """Every value is moved towards its image's mean, by `amount` of the way."""
    mean = x.mean(axis=(1, 2, 3), keepdims=True, dtype=np.float32)
    return _to_uint8(mean + (1 - amount) * (x - mean))


def _damage_labels(
    damage: str, y: Array, classes: int, amount: float, rng: np.random.Generator
) -> Array:
    require_int(damage, "classes", classes, 2)
    require(y.dtype.kind in "iu", f"{damage}: labels must be whole numbers, got {y.dtype}.")
    inside = y.size == 0 or (int(y.min()) >= 0 and int(y.max()) < classes)
    require(inside, f"{damage}: labels must be from 0 to {classes - 1}, but some are not.")
    flat = y.reshape(-1).copy()
    chosen = _choose_rows(len(flat), amount, rng)
    flat[chosen] = LABEL_DAMAGES[damage](flat[chosen], classes, rng)
    return flat.reshape(y.shape)


def replace_labels(labels: Array, classes: int, rng: np.random.Generator) -> Array:
    """For each label one of the other classes, all equally likely."""
    return (labels.astype(np.int64) + rng.integers(1, classes, len(labels))) % classes


def shuffle_labels(labels: Array, _classes: int, rng: np.random.Generator) -> Array:
    """The same labels in a random order."""
    return rng.permutation(labels)


IMAGE_DAMAGES: dict[str, ImageDamage] = {
    "noise": add_noise,
    "blur": blur,
    "invert": invert,
    "occlude": occlude,
    "rotate": rotate,
    "contrast": reduce_contrast,
}
PER_IMAGE_DAMAGES = (
    "invert",
    "rotate",
)  # the amount of these is the share of the images that they are done to
LABEL_DAMAGES: dict[str, LabelDamage] = {
    "wrong-labels": replace_labels,
    "shuffled-labels": shuffle_labels,
}
DAMAGES: dict[str, Callable[..., Array]] = {**IMAGE_DAMAGES, **LABEL_DAMAGES}
"""What can be done to examples: each function says what its amount means; of labels, it is the share that is chosen."""
