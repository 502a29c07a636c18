"""Images of characters rendered from fonts, as FSL's synthetic server data."""

from collections.abc import Iterator, Sequence
from math import ceil
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtailor.data.arguments import require_int
from fedtailor.data.partition.helpers import require_in_range
from fedtailor.data.server_data.glyphs import GlyphRenderer, get_glyph_renderer, import_pillow
from fedtailor.errors import InputError, is_number, require

Image = NDArray[np.uint8]

ROTATIONS = (-20, -10, 0, 10, 20)
"""FSL's rotations, in degrees."""

POINTS = (100, 110, 120)
"""FSL's font sizes, in points."""

MIN_POINTS = 10
"""Smallest font size; of smaller ones, a figure in proportion would take much memory."""

MAX_POINTS = 1000
"""Largest font size."""

FIGURE_POINTS = 144
"""Width and height of FSL's figures: two inches, with 72 points in an inch."""

EMNIST_FILL = 24 / 28
"""Share of an image's side that the longer side of a character has in EMNIST."""

OVERSAMPLING = 8
"""Factor by which characters are drawn larger before they are resized; it only smooths them."""


class Layout(NamedTuple):
    """Sizes and rotations in which characters are rendered; the defaults are FSL's."""

    side: int = 28  # pixels of an image's sides
    rotations: Sequence[float] = ROTATIONS  # degrees, counter-clockwise
    # Font sizes in points, in a figure of two inches, which becomes the image. A character that
    # does not fit at the largest size is made smaller at all sizes.
    points: Sequence[float] = POINTS
    # Width of the round pen of built-in styles at the largest size, as a share of the image
    pen: float = 0.1
    # Share of the image's side that the longer side of each character has at the largest size,
    # other sizes being in proportion (`EMNIST_FILL` in EMNIST); None: that follows from the font
    fill: float | None = None


FSL_LAYOUT = Layout()
"""FSL's layout: 15 images of each character in one font."""


def add_lowercase(classes: Sequence[str]) -> tuple[str, ...]:
    """Return the classes with the lower case added to capitals, such as "Aa" for "A".

    Capitals whose lower case is a class of its own, or the same character, stay as they are.
    """
    names = []
    for name in classes:
        lower = name.lower()
        is_new = name.isupper() and lower != name and lower not in classes
        names.append(name + lower if is_new else name)
    return tuple(names)


def render_characters(
    classes: Sequence[str],
    layout: Layout = FSL_LAYOUT,
    *,
    fonts: Sequence[str] = ("cursive",),
    is_dark: bool = False,
    per_class: int | None = None,
    rng: np.random.Generator | None = None,
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return images of characters in all fonts, rotations and sizes, and their labels.

    The images of a class are all different; where two fonts draw a character alike, its image comes
    once. The bounding box of the ink is centered, as in EMNIST.

    Args:
        classes: The characters of each class, mostly one; the label is the position in `classes`.
        layout: Sizes and rotations.
        fonts: Built-in styles (`glyphs.STYLES`), font files, or installed families.
        is_dark: Whether characters are dark on white, as in FEMNIST, rather than white on black,
            as in MNIST and EMNIST.
        per_class: Number of images of each class, drawn at random; None: all.
        rng: Draws the images; needed unless all are returned.

    Returns:
        Images, uint8 [images, 1, side, side], and labels, [images].
    """
    _validate_options(classes, fonts, layout)
    renderers = [get_glyph_renderer(font) for font in fonts]
    images_by_class = []
    for characters in classes:
        images = _render_class(characters, renderers, layout)
        chosen = _choose_images(characters, len(images), per_class, rng)
        images_by_class.append(images[chosen])
    x = np.concatenate(images_by_class)[:, None]
    if is_dark:
        x = 255 - x
    y = np.repeat(np.arange(len(classes)), [len(images) for images in images_by_class])
    return x, y.astype(np.int64)


def _render_class(
    characters: str, renderers: Sequence[GlyphRenderer], layout: Layout
) -> NDArray[np.uint8]:
    """Return the different images of a class, in the order of their first occurrence."""
    variants: list[Image] = []
    for character in characters:
        for renderer in renderers:
            variants.extend(_render_variants(renderer, character, layout))
    images = np.stack(variants)
    _, first_positions = np.unique(images.reshape(len(images), -1), axis=0, return_index=True)
    return images[np.sort(first_positions)]


def _choose_images(
    characters: str, available: int, count: int | None, rng: np.random.Generator | None
) -> NDArray[np.int64]:
    """Return which of the `available` images of a class are used, sorted."""
    if count is None or count == available:
        return np.arange(available)
    require_int("rendered", "per_class", count, 1)
    reason = f"these fonts, rotations and points give {available} different images of"
    require(
        count < available,
        f"rendered: per_class must be at most {available}, as {reason} {characters!r}, got "
        f"{count}; name more of them.",
    )
    if rng is None:
        raise InputError(
            f"rendered: rng must be a generator where per_class is {count}, as {reason} "
            f"{characters!r}."
        )
    return np.sort(rng.choice(available, count, replace=False))


def _render_variants(renderer: GlyphRenderer, character: str, layout: Layout) -> Iterator[Image]:
    """Yield the images of a character in one font, in all rotations and sizes."""
    em = OVERSAMPLING * layout.side
    largest = max(layout.points)
    figure = FIGURE_POINTS * em / largest  # in pixels, at the largest size
    if layout.fill is None:
        pen = layout.pen * figure
    else:
        # A pen of share p around strokes of length s fills f of a figure (s + p figure) / f wide.
        stroke_length = max(renderer(character, em, 1).size)
        pen = layout.pen * (stroke_length / (layout.fill - layout.pen))
    upright = renderer(character, em, pen)
    for angle in layout.rotations:
        rotated = upright.rotate(angle, import_pillow("Image").Resampling.BICUBIC, expand=True)
        ink = rotated.crop(rotated.getbbox())
        if layout.fill is None:
            width = max(figure, *ink.size)
        else:
            width = max(ink.size) / layout.fill
        for size in layout.points:
            yield _frame_ink(ink, width * largest / size, layout.side)


def _frame_ink(ink: Any, width: float, side: int) -> Image:
    """Return the image of ink in the middle of a frame of `width` pixels, resized to `side`."""
    half = width / 2
    border = ceil(half)
    framed = ink.crop((-border, -border, ink.width + border, ink.height + border))
    x = framed.width / 2
    y = framed.height / 2
    box = (x - half, y - half, x + half, y + half)
    return np.asarray(framed.resize((side, side), import_pillow("Image").Resampling.BICUBIC, box))


def _validate_options(classes: Sequence[str], fonts: Sequence[str], layout: Layout) -> None:
    """Raise `InputError` for options that characters cannot be rendered with."""
    rotations = layout.rotations
    points = layout.points
    has_names = len(classes) > 0 and all(isinstance(name, str) and name for name in classes)
    require(
        has_names,
        f"rendered: classes must be strings of one or more characters each, got {classes!r}.",
    )
    characters = "".join(classes)
    require(
        len(set(characters)) == len(characters),
        f"rendered: a character must be in one class, once, got {classes!r}.",
    )
    require_int("rendered", "side", layout.side, OVERSAMPLING)
    has_fonts = len(fonts) > 0 and not isinstance(fonts, str)
    require(has_fonts, f"rendered: fonts must be a sequence of one or more names, got {fonts!r}.")
    has_angles = len(rotations) > 0 and all(is_number(angle) for angle in rotations)
    require(
        has_angles,
        f"rendered: rotations must be one or more numbers of degrees, got {rotations!r}.",
    )
    has_sizes = len(points) > 0
    for size in points:
        has_sizes &= is_number(size) and MIN_POINTS <= size <= MAX_POINTS
    require(
        has_sizes,
        f"rendered: points must be one or more numbers from {MIN_POINTS} to {MAX_POINTS}, got "
        f"{points!r}.",
    )
    require_in_range("rendered", "pen", layout.pen, 0.01, 0.3)
    if layout.fill is not None:
        require_in_range("rendered", "fill", layout.fill, 0.5, 1)
