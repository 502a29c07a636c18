"""Server data that comes from elsewhere: characters rendered from fonts, or another data set with the same classes."""

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
    """The server's examples, if they are not of the data set itself."""
    kinds = {"rendered": _render_examples, "set": _draw_from_other_set}
    make = kinds.get(options["server_from"])
    return None if make is None else make(data, options, rng)


def _render_examples(
    data: StoredDataset, options: dict[str, Any], rng: np.random.Generator
) -> Examples:
    """Characters of the set's classes, as many of each."""
    labels, shape = data.attributes.get("labels", []), data.columns["x"].shape[1:]
    characters = bool(labels) and all(len(label) == 1 for label in labels)
    require(
        characters,
        f"{data.name}: its classes are no characters that could be rendered; choose another server_from.",
    )
    square = len(shape) == 3 and shape[0] == 1 and shape[1] == shape[2]
    require(
        square,
        f"{data.name}: rendered characters are square and gray, but its examples are {list(shape)}.",
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
    chosen = draw_balanced(data.name, y, min(count, len(y)), rng)
    return x[chosen], y[chosen].astype(data.columns["y"].dtype)


def _draw_from_other_set(
    data: StoredDataset, options: dict[str, Any], rng: np.random.Generator
) -> Examples:
    """Examples of another set whose classes are called as some of this one's, as many of each, made to look alike."""
    name = options["server_set"]
    require(
        bool(name),
        f"{data.name}: server_from=set needs the name of another data set as server_set.",
    )
    other = open_dataset(name)
    labels, other_labels = (each.attributes.get("labels", []) for each in (data, other))
    label_map = np.array(
        [labels.index(label) if label in labels else -1 for label in other_labels], np.int64
    )
    called = (
        f"which are {', '.join(other_labels[:5])}, ..." if other_labels else "which have no names."
    )
    require(
        bool((label_map >= 0).any()),
        f"{data.name}: no class is called as one of {name}'s, {called}",
    )
    mapped = label_map[other.columns["y"]]
    usable = np.flatnonzero(mapped >= 0)
    count = _count_server_examples(data, options)
    short = f"{name} has {len(usable)} that fit"
    require(
        count <= len(usable),
        f"{data.name}: server must be at most what {short}, got {options['server']}.",
    )
    rows = usable[draw_balanced(data.name, mapped[usable], count, rng)]
    return _match_images(data, other, rows), mapped[rows].astype(data.columns["y"].dtype)


def _match_images(data: StoredDataset, other: StoredDataset, rows: NDArray[np.int64]) -> Array:
    """Another set's images in this one's size, with its background."""
    x, shape = other.columns["x"][rows], data.columns["x"].shape[1:]
    came = x.shape[1:]
    square = len(came) == len(shape) == 3 and came[0] == shape[0]
    fits = square and came[1] % shape[1] == 0 and came[2] % shape[2] == 0
    if not fits:
        raise InputError(
            f"{data.name}: images of {list(came)} as {other.name} has cannot be made {list(shape)} as these."
        )
    tall, wide = came[1] // shape[1], came[2] // shape[2]
    if (tall, wide) != (1, 1):
        means = x.reshape(len(x), shape[0], shape[1], tall, shape[2], wide).mean(axis=(3, 5))
        x = np.rint(means).astype(np.uint8)
    differs = bool(data.attributes.get("dark")) != bool(other.attributes.get("dark"))
    return np.asarray(255 - x if differs else x)


def _count_server_examples(data: StoredDataset, options: dict[str, Any]) -> int:
    return resolve_count(data.name, options["server"], data.num_rows)


def _parse_words(value: Any) -> list[str]:
    """Several words: a list of them, or one text with commas."""
    return (
        [part.strip() for part in value.split(",")]
        if isinstance(value, str)
        else [str(part) for part in value]
    )


def _parse_numbers(option: str, value: Any) -> list[float]:
    """Several numbers: a list of them, one, or a text with commas."""
    try:
        return [
            float(part)
            for part in _parse_words(value if isinstance(value, str | list | tuple) else [value])
        ]
    except ValueError:
        raise InputError(f"{option} must be numbers with commas between, got {value!r}.") from None
