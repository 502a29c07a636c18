"""Characters rendered from fonts, as FSL's synthetic server data: any classes, any styles."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtailor.data.arguments import require_int
from fedtailor.data.examples import Array
from fedtailor.data.partition.helpers import require_in_range
from fedtailor.data.server_data.glyphs import GlyphRenderer, get_glyph_renderer, import_pillow
from fedtailor.errors import InputError, is_number, require

ROTATIONS = (-20, -10, 0, 10, 20)
POINTS = (100, 110, 120)
FIGURE_POINTS = 144  # points: FSL's figures are two inches wide and high, and a point is 1/72 inch
EMNIST_FILL = 24 / 28
OVERSAMPLING = 8  # times as many pixels before resizing; the figure is measured in inches, so this sets smoothness alone


def add_lowercase(classes: Sequence[str]) -> tuple[str, ...]:
    """Classes with the lower case beside every capital, "A" as "Aa", except where the lower case is a class itself."""
    return tuple(
        name + name.lower() if name.isupper() and name.lower() not in (*classes, name) else name
        for name in classes
    )


def render_characters(
    classes: Sequence[str],
    *,
    side: int = 28,
    fonts: Sequence[str] = ("cursive",),
    rotations: Sequence[float] = ROTATIONS,
    points: Sequence[float] = POINTS,
    pen: float = 0.1,
    fill: float | None = None,
    dark: bool = False,
    per_class: int | None = None,
    rng: np.random.Generator | None = None,
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images uint8 [n, 1, side, side] and labels of characters, in all fonts, rotations and sizes.

    A class is a string of the characters that stand for it, mostly one; its label is its place among the classes. Its
    images are all different: every combination (once, where fonts share a character), or `per_class` of these, drawn at
    random. The defaults are FSL's, with 15 images for a character. A font is one of `faces.STYLES`, a font file, or an
    installed family. Rotations are in degrees, counter-clockwise.

    Sizes are points in a figure of two inches, which becomes the image. A character that does not fit at its largest is
    made smaller at all sizes. With `fill`, all characters are equally large instead: at the largest size, the longer
    side of a character is that share of the image (in EMNIST it is `EMNIST_FILL`), and other sizes are in proportion.
    The bounding box of the ink is in the middle, as in EMNIST. The built-in styles are drawn with a round pen that is
    `pen` of the image wide at the largest size. White on black, as in MNIST and EMNIST; `dark` is as in FEMNIST.
    """
    _validate_options(classes, side, fonts, rotations, points, pen, fill)
    faces, images, labels = [get_glyph_renderer(font) for font in fonts], [], []
    for label, characters in enumerate(classes):
        every = _drop_duplicate_images(
            image
            for character, ink in product(characters, faces)
            for image in _render_variants(ink, character, side, rotations, points, pen, fill)
        )
        images.append(every[_choose_images(characters, len(every), per_class, rng)])
        labels += [label] * len(images[-1])
    x = np.concatenate(images)[:, None]
    return 255 - x if dark else x, np.array(labels, np.int64)


def _drop_duplicate_images(images: Iterable[NDArray[np.uint8]]) -> NDArray[np.uint8]:
    """Images without those that equal an earlier one."""
    every = np.stack(list(images))
    return every[np.sort(np.unique(every.reshape(len(every), -1), axis=0, return_index=True)[1])]


def _choose_images(
    characters: str, available: int, count: int | None, rng: np.random.Generator | None
) -> Array:
    """Which of a class's images are taken, in their order."""
    if count is None or count == available:
        return np.arange(available)
    require_int("rendered", "per_class", count, 1)
    most = f"these fonts, rotations and points give {available} different images of {characters!r}"
    require(
        count < available,
        f"rendered: per_class must be at most {available}, as {most}, got {count}; name more of them.",
    )
    if rng is None:
        raise InputError(
            f"rendered: draws must be a generator where per_class is {count}, as {most}."
        )
    return np.sort(rng.choice(available, count, replace=False))


def _render_variants(
    ink: GlyphRenderer,
    character: str,
    side: int,
    rotations: Sequence[float],
    points: Sequence[float],
    pen: float,
    fill: float | None,
) -> Iterator[NDArray[np.uint8]]:
    """A character in one font, in all rotations and sizes."""
    em, largest = OVERSAMPLING * side, max(points)
    figure = FIGURE_POINTS * em / largest  # in pixels, at the largest size
    # A pen of share p around strokes of length s fills f of a figure that is (s + p figure) / f wide.
    thick = pen * (figure if fill is None else max(ink(character, em, 1).size) / (fill - pen))
    upright = ink(character, em, thick)
    for angle in rotations:
        turned = upright.rotate(angle, import_pillow("Image").Resampling.BICUBIC, expand=True)
        turned = turned.crop(turned.getbbox())
        wide = max(figure, *turned.size) if fill is None else max(turned.size) / fill
        for size in points:
            yield _frame_ink(turned, wide * largest / size, side)


def _frame_ink(ink: Any, width: float, side: int) -> NDArray[np.uint8]:
    """Ink in the middle of a frame so many pixels wide, which becomes an image."""
    border, half = ceil(width / 2), width / 2
    room = ink.crop((-border, -border, ink.width + border, ink.height + border))
    x, y = room.width / 2, room.height / 2
    box = (x - half, y - half, x + half, y + half)
    return np.asarray(room.resize((side, side), import_pillow("Image").Resampling.BICUBIC, box))


def _validate_options(
    classes: Sequence[str],
    side: int,
    fonts: Sequence[str],
    rotations: Sequence[float],
    points: Sequence[float],
    pen: float,
    fill: float | None,
) -> None:
    """Refuses what cannot be rendered."""
    all_there = len(classes) > 0 and all(isinstance(name, str) and name for name in classes)
    require(
        all_there,
        f"rendered: classes must be strings of one or more characters each, got {classes!r}.",
    )
    every = "".join(classes)
    require(
        len(set(every)) == len(every),
        f"rendered: a character must be in one class, once, got {classes!r}.",
    )
    require_int("rendered", "side", side, OVERSAMPLING)
    named = len(fonts) > 0 and not isinstance(fonts, str)
    require(named, f"rendered: fonts must be a sequence of one or more names, got {fonts!r}.")
    turns = len(rotations) > 0 and all(map(is_number, rotations))
    require(
        turns, f"rendered: rotations must be one or more numbers of degrees, got {rotations!r}."
    )
    sizes = len(points) > 0 and all(is_number(size) and size > 0 for size in points)
    require(sizes, f"rendered: points must be one or more positive numbers, got {points!r}.")
    require_in_range("rendered", "pen", pen, 0.01, 0.3)
    if fill is not None:
        require_in_range("rendered", "fill", fill, 0.5, 1)
