"""Examples made worse on purpose: a server whose data is noisy, blurred, hidden in part, or wrongly labelled."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fedtailor.data.arrays import require_whole
from fedtailor.data.holders import Array
from fedtailor.data.partitions.dealing import require_amount
from fedtailor.errors import nearest, require

Images = NDArray[np.uint8]
OnImages = Callable[[Images, float, np.random.Generator], Images]
OnLabels = Callable[[Array, int, np.random.Generator], Array]

BLOCK = 4096  # images at a time: what is computed in floating point stays small beside what is damaged
FARTHEST = 4  # standard deviations: where a Gaussian is cut off


def damaged(
    x: Array, y: Array, classes: int, *, damage: str, amount: float, draws: np.random.Generator
) -> tuple[Array, Array]:
    """A damaged copy of examples, by one of `DAMAGES`; with amount 0 an equal one.

    Images are uint8 [n, channels, height, width]. Labels are from 0 to `classes` - 1, in any shape that begins with n;
    only they can be damaged where x is anything else.
    """
    require(damage in DAMAGES, f"There is no damage '{damage}'; {nearest(damage, DAMAGES)}")
    require_amount(damage, "amount", amount, 0, 1)
    x, y = np.asarray(x), np.asarray(y)
    came = f"got {list(x.shape)} of {x.dtype} and {list(y.shape)} of {y.dtype}"
    together = x.ndim > 0 and y.ndim > 0 and len(x) == len(y)
    require(together, f"{damage}: x and y must be equally many examples and labels, {came}.")
    if damage in LABELS:
        return x.copy(), _labels(damage, y, classes, amount, draws)
    images = x.ndim == 4 and x.dtype == np.uint8
    require(images, f"{damage}: x must be images, uint8 [n, channels, height, width], {came}.")
    if amount == 0 or x.size == 0:
        return x.copy(), y.copy()
    rows = _share(len(x), amount, draws) if damage in OF_SOME else np.arange(len(x))
    return _in_blocks(IMAGES[damage], x, rows, amount, draws), y.copy()


def _in_blocks(worse: OnImages, x: Images, rows: Array, amount: float, draws: np.random.Generator) -> Images:
    """All images, and these rows of them worse."""
    out = x.copy()
    for start in range(0, len(rows), BLOCK):
        block = rows[start : start + BLOCK]
        out[block] = worse(x[block], amount, draws)
    return out


def _share(count: int, amount: float, draws: np.random.Generator) -> NDArray[np.int64]:
    """Which ones are chosen: a share, to the nearest whole number."""
    return np.sort(draws.choice(count, round(amount * count), replace=False))


def _whole(values: Array) -> Images:
    return np.clip(np.rint(values), 0, 255).astype(np.uint8)


def noisy(x: Images, amount: float, draws: np.random.Generator) -> Images:
    """Gaussian noise on every value, with `amount` of the range from 0 to 255 as its standard deviation."""
    return _whole(x + 255 * amount * draws.standard_normal(x.shape, np.float32))


def blurred(x: Images, amount: float, _draws: np.random.Generator) -> Images:
    """A Gaussian blur, with `amount` of the shorter side as its standard deviation; edges go on outside as they are."""
    height, width = x.shape[-2:]
    deviation = amount * min(height, width)
    return _whole(_blur(height, deviation) @ x.astype(np.float32) @ _blur(width, deviation).T)


def _blur(size: int, deviation: float) -> NDArray[np.float32]:
    """The matrix [size, size] that blurs a line, with a kernel that is cut off at `FARTHEST` deviations."""
    reach = int(FARTHEST * deviation + 0.5)
    steps = np.arange(-reach, reach + 1)
    kernel = np.exp(-0.5 * (steps / deviation) ** 2)
    matrix, rows = np.zeros((size, size)), np.arange(size)[:, None]
    np.add.at(matrix, (rows, np.clip(rows + steps, 0, size - 1)), kernel / kernel.sum())
    return matrix.astype(np.float32)


def inverted(x: Images, _amount: float, _draws: np.random.Generator) -> Images:
    """Dark for light, in `amount` of the images."""
    return 255 - x


def occluded(x: Images, amount: float, draws: np.random.Generator) -> Images:
    """A rectangle of the image's proportions and `amount` of its area, at a random place, has the image's median."""
    count, channels, height, width = x.shape
    tall, wide = round(height * amount**0.5), round(width * amount**0.5)
    top, left = draws.integers(0, height - tall + 1, count), draws.integers(0, width - wide + 1, count)
    down, right = np.arange(height) - top[:, None], np.arange(width) - left[:, None]
    hidden = ((down >= 0) & (down < tall))[:, None, :, None] & ((right >= 0) & (right < wide))[:, None, None, :]
    flat = x.reshape(count, channels, -1)
    plain = np.percentile(flat, 50, axis=2, method="lower")  # of characters, this is the background
    return np.where(hidden, plain[:, :, None, None].astype(np.uint8), x)


def rotated(x: Images, _amount: float, draws: np.random.Generator) -> Images:
    """By 90, 180 or 270 degrees, at random, `amount` of the images."""
    square = x.shape[2] == x.shape[3]
    require(square, f"rotate: images must be as high as they are wide, got {x.shape[2]} x {x.shape[3]}.")
    out, turns = x.copy(), draws.integers(1, 4, len(x))
    for turn in (1, 2, 3):
        out[turns == turn] = np.rot90(x[turns == turn], turn, axes=(2, 3))
    return out


def flattened(x: Images, amount: float, _draws: np.random.Generator) -> Images:
    """Every value is moved towards its image's mean, by `amount` of the way."""
    mean = x.mean(axis=(1, 2, 3), keepdims=True, dtype=np.float32)
    return _whole(mean + (1 - amount) * (x - mean))


def _labels(damage: str, y: Array, classes: int, amount: float, draws: np.random.Generator) -> Array:
    require_whole(damage, "classes", classes, 2)
    require(y.dtype.kind in "iu", f"{damage}: labels must be whole numbers, got {y.dtype}.")
    inside = y.size == 0 or (int(y.min()) >= 0 and int(y.max()) < classes)
    require(inside, f"{damage}: labels must be from 0 to {classes - 1}, but some are not.")
    flat = y.reshape(-1).copy()
    chosen = _share(len(flat), amount, draws)
    flat[chosen] = LABELS[damage](flat[chosen], classes, draws)
    return flat.reshape(y.shape)


def wrong(labels: Array, classes: int, draws: np.random.Generator) -> Array:
    """For each label one of the other classes, all equally likely."""
    return (labels.astype(np.int64) + draws.integers(1, classes, len(labels))) % classes


def shuffled(labels: Array, _classes: int, draws: np.random.Generator) -> Array:
    """The same labels in a random order."""
    return draws.permutation(labels)


IMAGES: dict[str, OnImages] = {
    "noise": noisy,
    "blur": blurred,
    "invert": inverted,
    "occlude": occluded,
    "rotate": rotated,
    "contrast": flattened,
}
OF_SOME = ("invert", "rotate")  # the amount of these is the share of the images that they are done to
LABELS: dict[str, OnLabels] = {"wrong-labels": wrong, "shuffled-labels": shuffled}
DAMAGES: dict[str, Callable[..., Array]] = {**IMAGES, **LABELS}
"""What can be done to examples: each function says what its amount means; of labels, it is the share that is chosen."""
