"""Server data from elsewhere: characters rendered from fonts, or examples of another data set."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedtailor.data.arguments import require_bool, resolve_count
from fedtailor.data.examples import Array
from fedtailor.data.server_data.holdout import draw_balanced
from fedtailor.data.server_data.rendered import (
    EMNIST_FILL,
    Layout,
    add_lowercase,
    render_characters,
)
from fedtailor.data.server_data.source import Examples
from fedtailor.data.sources import open_dataset
from fedtailor.data.store import StoredDataset
from fedtailor.errors import InputError, require

Words = str | Sequence[str]
"""Words, or one string of them with commas between."""

Numbers = str | float | Sequence[float]
"""Numbers, a single one, or a string of them with commas between."""


def render_examples(
    data: StoredDataset,
    amount: float,
    rng: np.random.Generator,
    *,
    server_fonts: Words = "cursive",
    server_rotations: Numbers = "-20,-10,0,10,20",
    server_points: Numbers = "100,110,120",
    server_fill: bool = False,
) -> Examples:
    """Return rendered characters of the data set's classes, equally many of each.

    Args:
        data: Data set of the clients.
        amount: Number of examples (int), or their share of those of the data set (float).
        rng: Draws the examples.
        server_fonts: Styles, font files or installed fonts, with commas between.
        server_rotations: Rotations in degrees, with commas between.
        server_points: Font sizes in points, with commas between.
        server_fill: Whether characters fill as much of their images as those of EMNIST.
    """
    require_bool(data.name, "server_fill", server_fill)
    labels = data.attributes.labels
    has_characters = bool(labels) and all(len(label) == 1 for label in labels)
    require(
        has_characters,
        f"{data.name}: classes must be characters to be rendered, but are not; choose another "
        "server_from.",
    )
    shape = data.columns["x"].shape[1:]
    is_square_and_gray = len(shape) == 3 and shape[0] == 1 and shape[1] == shape[2]
    require(
        is_square_and_gray,
        f"{data.name}: examples must be square and gray for rendered characters, got "
        f"{list(shape)}.",
    )
    count = resolve_count(data.name, amount, data.num_rows)
    layout = Layout(
        side=shape[1],
        rotations=_parse_numbers("server_rotations", server_rotations),
        points=_parse_numbers("server_points", server_points),
        fill=EMNIST_FILL if server_fill else None,
    )
    x, y = render_characters(
        add_lowercase(labels),
        layout,
        fonts=_parse_words("server_fonts", server_fonts),
        is_dark=data.attributes.is_dark,
        per_class=-(-count // len(labels)),
        rng=rng,
    )
    rows = draw_balanced(data.name, y, min(count, len(y)), rng)
    return x[rows], y[rows].astype(data.columns["y"].dtype)


def get_own_examples(data: StoredDataset, amount: float, rng: np.random.Generator) -> Examples:
    """Return all examples that a data set has for the server; the amount is without effect.

    Args:
        data: Data set of the clients, which must have such examples.
        amount: Not used.
        rng: Not used.
    """
    require(
        bool(data.server_columns),
        f"{data.name}: server_from=own needs examples that the data set has for the server, but "
        "it has none; choose another server_from.",
    )
    return np.asarray(data.server_columns["x"]), np.asarray(data.server_columns["y"])


def draw_from_other_set(
    data: StoredDataset, amount: float, rng: np.random.Generator, *, server_set: str = ""
) -> Examples:
    """Return images of another data set in the form of this one, equally many of each class.

    Classes correspond by name; examples of other classes are left out.

    Args:
        data: Data set of the clients.
        amount: Number of examples (int), or their share of those of `data` (float).
        rng: Draws the examples.
        server_set: Name of the other data set, which must have been added.
    """
    has_name = isinstance(server_set, str) and server_set != ""
    require(
        has_name,
        f"{data.name}: server_from=set needs the name of another data set as server_set.",
    )
    other = open_dataset(server_set)
    label_map = _map_labels(data, other)
    mapped_y = label_map[other.columns["y"]]
    usable_rows = np.flatnonzero(mapped_y >= 0)
    count = resolve_count(data.name, amount, data.num_rows)
    require(
        count <= len(usable_rows),
        f"{data.name}: server must be at most the {len(usable_rows)} examples that {server_set} "
        f"has of its classes, got {amount}.",
    )
    rows = usable_rows[draw_balanced(data.name, mapped_y[usable_rows], count, rng)]
    return _match_images(data, other, rows), mapped_y[rows].astype(data.columns["y"].dtype)


def hash_other_set(*, server_set: str = "") -> str:
    """Return the hash of the other data set's content, or "" if it is not named."""
    has_name = isinstance(server_set, str) and server_set != ""
    return open_dataset(server_set).content_hash if has_name else ""


def _map_labels(data: StoredDataset, other: StoredDataset) -> NDArray[np.int64]:
    """Return for each class of another data set the class of that name, or -1, [other classes]."""
    labels = data.attributes.labels
    other_labels = other.attributes.labels
    classes = [labels.index(label) if label in labels else -1 for label in other_labels]
    label_map = np.array(classes, np.int64)
    if not (label_map >= 0).any():
        others = "have no names"
        if other_labels:
            others = f"are {', '.join(other_labels[:5])} and so on"
        raise InputError(
            f"{data.name}: server_set must have classes of the same names, but those of "
            f"{other.name} {others}."
        )
    return label_map


def _match_images(data: StoredDataset, other: StoredDataset, rows: NDArray[np.int64]) -> Array:
    """Return images of another data set, reduced to this one's size and with its polarity."""
    x = other.columns["x"][rows]
    shape = data.columns["x"].shape[1:]
    other_shape = x.shape[1:]
    has_same_channels = len(other_shape) == len(shape) == 3 and other_shape[0] == shape[0]
    can_reduce = (
        has_same_channels and other_shape[1] % shape[1] == 0 and other_shape[2] % shape[2] == 0
    )
    if not can_reduce:
        raise InputError(
            f"{data.name}: images of {other.name} must have sides that are multiples of those of "
            f"{list(shape)}, got {list(other_shape)}; choose another server_set."
        )
    channels, height, width = shape
    cell_height = other_shape[1] // height
    cell_width = other_shape[2] // width
    if cell_height > 1 or cell_width > 1:
        cells = x.reshape(len(x), channels, height, cell_height, width, cell_width)
        x = np.rint(cells.mean(axis=(3, 5))).astype(np.uint8)
    has_same_polarity = data.attributes.is_dark == other.attributes.is_dark
    return np.asarray(x if has_same_polarity else 255 - x)


def _parse_words(option: str, value: Words) -> list[str]:
    if isinstance(value, str):
        return [part.strip() for part in value.split(",")]
    require(
        isinstance(value, Sequence), f"{option} must be words with commas between, got {value!r}."
    )
    return [str(part) for part in value]


def _parse_numbers(option: str, value: Numbers) -> list[float]:
    parts: Sequence[object] = [value]
    if isinstance(value, str):
        parts = _parse_words(option, value)
    elif isinstance(value, Sequence):
        parts = value
    try:
        return [float(str(part)) for part in parts]
    except ValueError:
        raise InputError(f"{option} must be numbers with commas between, got {value!r}.") from None
