"""Server data that comes from elsewhere: characters rendered from fonts, or another data set with the same classes."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtailor.data.arrays import how_many
from fedtailor.data.holders import Array
from fedtailor.data.server.drawing import classes
from fedtailor.data.server.rendered import EMNIST_FILL, both_cases, rendered
from fedtailor.data.sets import stored
from fedtailor.data.store import Stored
from fedtailor.errors import InputError, require

Examples = tuple[Array, Array]


def made_elsewhere(data: Stored, options: dict[str, Any], draws: np.random.Generator) -> Examples | None:
    """The server's examples, if they are not of the data set itself."""
    kinds = {"rendered": _rendered, "set": _other}
    make = kinds.get(options["server_from"])
    return None if make is None else make(data, options, draws)


def _rendered(data: Stored, options: dict[str, Any], draws: np.random.Generator) -> Examples:
    """Characters of the set's classes, as many of each."""
    labels, shape = data.attributes.get("labels", []), data.columns["x"].shape[1:]
    characters = bool(labels) and all(len(label) == 1 for label in labels)
    require(
        characters, f"{data.name}: its classes are no characters that could be rendered; choose another server_from."
    )
    square = len(shape) == 3 and shape[0] == 1 and shape[1] == shape[2]
    require(square, f"{data.name}: rendered characters are square and grey, but its examples are {list(shape)}.")
    count = _count(data, options)
    x, y = rendered(
        both_cases(labels),
        side=shape[1],
        fonts=_words(options["server_fonts"]),
        rotations=_numbers("server_rotations", options["server_rotations"]),
        points=_numbers("server_points", options["server_points"]),
        fill=EMNIST_FILL if options["server_fill"] else None,
        dark=bool(data.attributes.get("dark")),
        per_class=-(-count // len(labels)),
        draws=draws,
    )
    chosen = classes(data.name, y, min(count, len(y)), draws)
    return x[chosen], y[chosen].astype(data.columns["y"].dtype)


def _other(data: Stored, options: dict[str, Any], draws: np.random.Generator) -> Examples:
    """Examples of another set whose classes are called as some of this one's, as many of each, made to look alike."""
    name = options["server_set"]
    require(bool(name), f"{data.name}: server_from=set needs the name of another data set as server_set.")
    other = stored(name)
    ours, theirs = (each.attributes.get("labels", []) for each in (data, other))
    place = np.array([ours.index(label) if label in ours else -1 for label in theirs], np.int64)
    called = f"which are {', '.join(theirs[:5])}, ..." if theirs else "which have no names."
    require(bool((place >= 0).any()), f"{data.name}: no class is called as one of {name}'s, {called}")
    mapped = place[other.columns["y"]]
    usable = np.flatnonzero(mapped >= 0)
    count = _count(data, options)
    short = f"{name} has {len(usable)} that fit"
    require(count <= len(usable), f"{data.name}: server must be at most what {short}, got {options['server']}.")
    rows = usable[classes(data.name, mapped[usable], count, draws)]
    return _alike(data, other, rows), mapped[rows].astype(data.columns["y"].dtype)


def _alike(data: Stored, other: Stored, rows: NDArray[np.int64]) -> Array:
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


def _count(data: Stored, options: dict[str, Any]) -> int:
    return how_many(data.name, options["server"], data.rows)


def _words(given: Any) -> list[str]:
    """Several words: a list of them, or one text with commas."""
    return [part.strip() for part in given.split(",")] if isinstance(given, str) else [str(part) for part in given]


def _numbers(what: str, given: Any) -> list[float]:
    """Several numbers: a list of them, one, or a text with commas."""
    try:
        return [float(part) for part in _words(given if isinstance(given, str | list | tuple) else [given])]
    except ValueError:
        raise InputError(f"{what} must be numbers with commas between, got {given!r}.") from None
