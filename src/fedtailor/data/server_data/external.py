"""Server data from elsewhere: characters rendered from fonts, or examples of another data set."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtailor.data.arguments import resolve_count
from fedtailor.data.examples import Array
from fedtailor.data.server_data.holdout import draw_balanced
from fedtailor.data.server_data.rendered import EMNIST_FILL, add_lowercase, render_characters
from fedtailor.data.sources import open_dataset
from fedtailor.data.store import StoredDataset
from fedtailor.errors import InputError, require

Examples = tuple[Array, Array]


def make_external_examples(
    data: StoredDataset, options: dict[str, Any], rng: np.random.Generator
) -> Examples | None:
    """Return the server's examples (x, y), or None if they are of the data set itself.

    Args:
        data: Data set of the clients, whose classes and shapes the examples have.
        options: All options that apply; `server_from` and those that begin with it are used.
        rng: Draws the examples.
    """
    if options["server_from"] == "rendered":
        return _render_examples(data, options, rng)
    if options["server_from"] == "set":
        return _draw_from_other_set(data, options, rng)
    return None


def _render_examples(
    data: StoredDataset, options: dict[str, Any], rng: np.random.Generator
) -> Examples:
    """Return rendered characters of the data set's classes, equally many of each."""
    labels = data.attributes.get("labels", [])
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
    count = _count_server_examples(data, options)
    x, y = render_characters(
        add_lowercase(labels),
        side=shape[1],
        fonts=_parse_words(options["server_fonts"]),
        rotations=_parse_numbers("server_rotations", options["server_rotations"]),
        points=_parse_numbers("server_points", options["server_points"]),
        fill=EMNIST_FILL if options["server_fill"] else None,
        dark=bool(data.attributes.get("dark")),
        per_class=-(-count // len(labels)),
        rng=rng,
    )
    rows = draw_balanced(data.name, y, min(count, len(y)), rng)
    return x[rows], y[rows].astype(data.columns["y"].dtype)


def _draw_from_other_set(
    data: StoredDataset, options: dict[str, Any], rng: np.random.Generator
) -> Examples:
    """Return images of another data set in the form of this one, equally many of each class.

    Classes correspond by name; examples of other classes are left out.
    """
    other_name = options["server_set"]
    require(
        bool(other_name),
        f"{data.name}: server_from=set needs the name of another data set as server_set.",
    )
    other = open_dataset(other_name)
    label_map = _map_labels(data, other)
    mapped_y = label_map[other.columns["y"]]
    usable_rows = np.flatnonzero(mapped_y >= 0)
    count = _count_server_examples(data, options)
    require(
        count <= len(usable_rows),
        f"{data.name}: server must be at most the {len(usable_rows)} examples that {other_name} "
        f"has of its classes, got {options['server']}.",
    )
    rows = usable_rows[draw_balanced(data.name, mapped_y[usable_rows], count, rng)]
    return _match_images(data, other, rows), mapped_y[rows].astype(data.columns["y"].dtype)


def _map_labels(data: StoredDataset, other: StoredDataset) -> NDArray[np.int64]:
    """Return for each class of another data set the class of that name, or -1, [other classes]."""
    labels = data.attributes.get("labels", [])
    other_labels = other.attributes.get("labels", [])
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
    is_dark = bool(data.attributes.get("dark"))
    is_other_dark = bool(other.attributes.get("dark"))
    return np.asarray(x if is_dark == is_other_dark else 255 - x)


def _count_server_examples(data: StoredDataset, options: dict[str, Any]) -> int:
    """Return the number of server examples; a share is one of all examples of the data set."""
    return resolve_count(data.name, options["server"], data.num_rows)


def _parse_words(value: Any) -> list[str]:
    """Return words from a list of them, or from a string with commas between them."""
    if isinstance(value, str):
        return [part.strip() for part in value.split(",")]
    return [str(part) for part in value]


def _parse_numbers(option: str, value: Any) -> list[float]:
    """Return numbers from a list of them, a single one, or a string with commas between them."""
    parts = value if isinstance(value, str | list | tuple) else [value]
    try:
        return [float(part) for part in _parse_words(parts)]
    except ValueError:
        raise InputError(f"{option} must be numbers with commas between, got {value!r}.") from None
