"""Federated sets prepared as `.npz` files of plain arrays (these are small and held at once)."""

import re
from collections.abc import Iterator
from itertools import islice, pairwise
from pathlib import Path

import numpy as np

from fedtailor.data.builtin.npz import read_npz
from fedtailor.data.examples import Array
from fedtailor.data.reader_blocks import Block
from fedtailor.data.readers.files import (
    add_test_column,
    parse_labels,
    split_into_blocks,
    translate_read_errors,
)
from fedtailor.data.readers.text import Encoder, encode_characters, split_sentences
from fedtailor.errors import is_number, require

PARTS = ("train", "test")


def read_images(path: str | Path, shape: tuple[int, ...], classes: int) -> Iterator[Block]:
    """Images that nobody holds, from `x_train`, `y_train`, `x_test` and `y_test`: uint8 [n, *shape], channels last."""
    arrays = _load_arrays(path, *(f"{column}_{part}" for part in PARTS for column in "xy"))
    for is_test, part_name in enumerate(PARTS):
        x, y = arrays[f"x_{part_name}"], arrays[f"y_{part_name}"]
        came = f"got {list(x.shape)} of {x.dtype} and {list(y.shape)} of {y.dtype}"
        good = (
            x.shape[1:] == shape
            and x.dtype == np.uint8
            and y.dtype.kind in "iu"
            and y.shape == x.shape[:1] != (0,)
        )
        wanted = f"x_{part_name} and y_{part_name} must be images [n, {', '.join(map(str, shape))}] of uint8 and labels"
        require(good, f"In '{path}' {wanted}, {came}.")
        labels = parse_labels(path, y, classes)
        first = x[:, None] if x.ndim == 3 else np.moveaxis(x, -1, 1)
        for block in split_into_blocks(
            "", add_test_column({"x": first, "y": labels}, bool(is_test))
        ):
            yield Block("", block.columns | {"x": np.ascontiguousarray(block.columns["x"])})


def femnist(path: str | Path) -> Iterator[Block]:
    """FEMNIST by writer, from `images`, `labels`, `writer`, `is_test`, `is_dup` and `writer_names`.

    Images are [n, 1, 28, 28], dark on white as LEAF ships them; those marked as doubled are left out.
    """
    arrays = _load_arrays(path, "images", "labels", "writer", "is_test", "is_dup", "writer_names")
    images, names = arrays["images"], arrays["writer_names"]
    good = images.dtype == np.uint8 and images.ndim == 3
    require(
        good,
        f"'{path}' must have uint8 images [n, height, width], got {list(images.shape)} of {images.dtype}.",
    )
    for key in ("labels", "writer", "is_test", "is_dup"):
        same = arrays[key].shape == images.shape[:1]
        require(
            same,
            f"'{path}' must have one entry of {key} for each image, got {list(arrays[key].shape)}.",
        )
    _require_distinct(path, "writer_names", names)
    labels = parse_labels(path, arrays["labels"], 62)
    owners = parse_labels(path, arrays["writer"], len(names), what="writers").astype(np.int64)
    kept = np.flatnonzero(arrays["is_dup"] == 0)
    for writer, rows in _group_rows(owners[kept], kept):
        columns = {
            "x": images[rows][:, None],
            "y": labels[rows],
            "testing": arrays["is_test"][rows] != 0,
        }
        yield from split_into_blocks(str(names[writer]), columns)


def shakespeare_roles(path: str | Path, encode: Encoder = encode_characters) -> Iterator[Block]:
    """Shakespeare by role, from `text` (ASCII), `role_offsets`, `role_names` and `play_names`; a role's text is one
    snippet, its lines separated by newlines. Clients are called PLAY_ROLE.
    """
    arrays = _load_arrays(path, "text", "role_offsets", "role_names", "play_names")
    roles, plays = arrays["role_names"], arrays["play_names"]
    count = len(_check_offsets(path, "role_offsets", arrays["role_offsets"], arrays["text"])) - 1
    good = roles.shape == plays.shape == (count,)
    require(good, f"'{path}' must have one of role_names and play_names for each of {count} texts.")
    names = np.array(
        [re.sub(r"\W+", "_", f"{play}_{role}") for play, role in zip(plays, roles, strict=True)],
        np.str_,
    )
    _require_distinct(path, "roles of a play", names)
    for name, text in zip(
        names, _decode_texts(path, "ascii", arrays["text"], arrays["role_offsets"]), strict=True
    ):
        yield from split_into_blocks(str(name), encode([text]))


def stackexchange(
    path: str | Path, encode: Encoder, max_sentences: int | None = 1000
) -> Iterator[Block]:
    """Stack Exchange by user, from `text` (UTF-8), `doc_offsets`, `doc_user`, `user_site` and `user_id`.

    Texts are cut into sentences (`text.sentences`), of which each user's first `most` are encoded (None: all). Clients
    are called SITE/ID.
    """
    good = max_sentences is None or (is_number(max_sentences, integer=True) and max_sentences >= 1)
    require(
        good,
        f"Stack Exchange: most must be None or a whole number of at least 1, got {max_sentences!r}.",
    )
    arrays = _load_arrays(path, "text", "doc_offsets", "doc_user", "user_site", "user_id")
    sites, ids, offsets = arrays["user_site"], arrays["user_id"], arrays["doc_offsets"]
    documents = len(_check_offsets(path, "doc_offsets", offsets, arrays["text"])) - 1
    require(
        arrays["doc_user"].shape == (documents,),
        f"'{path}' must have one doc_user for each of {documents} texts.",
    )
    require(
        sites.shape == ids.shape and sites.ndim == 1,
        f"'{path}' must have one user_site and user_id for each user.",
    )
    names = np.array([f"{site}/{number}" for site, number in zip(sites, ids, strict=True)], np.str_)
    _require_distinct(path, "users", names)
    owners = parse_labels(path, arrays["doc_user"], len(names), what="users").astype(np.int64)
    for user, rows in _group_rows(owners, np.arange(documents)):
        spans = np.stack([offsets[rows], offsets[rows + 1]], axis=1)
        texts = (
            text for span in spans for text in _decode_texts(path, "utf-8", arrays["text"], span)
        )
        yield from split_into_blocks(
            str(names[user]),
            encode(list(islice((s for t in texts for s in split_sentences(t)), max_sentences))),
        )


def _load_arrays(path: str | Path, *needed: str) -> dict[str, Array]:
    with translate_read_errors(path, "an .npz file of plain arrays"):
        return read_npz(path, needed)


def _group_rows(owners: Array, rows: Array) -> Iterator[tuple[int, Array]]:
    """Each holder's number with its rows, in their order."""
    order = np.argsort(owners, kind="stable")
    client_ids, starts = np.unique(owners[order], return_index=True)
    yield from zip(client_ids.tolist(), np.split(rows[order], starts[1:]), strict=True)


def _require_distinct(path: str | Path, what: str, names: Array) -> None:
    good = (
        names.ndim == 1 and names.dtype.kind == "U" and 0 < len(names) == len(set(names.tolist()))
    )
    require(good, f"'{path}' must have different names as {what}.")


def _check_offsets(path: str | Path, what: str, offsets: Array, text: Array) -> Array:
    good = (
        text.ndim == offsets.ndim == 1
        and text.dtype == np.uint8
        and offsets.dtype.kind in "iu"
        and len(offsets) > 1
    )
    good = (
        good
        and offsets[0] == 0
        and offsets[-1] == len(text)
        and bool((offsets[1:] >= offsets[:-1]).all())
    )
    require(good, f"'{path}' must have {what} that rise from 0 to the length of its text.")
    return offsets


def _decode_texts(path: str | Path, encoding: str, text: Array, offsets: Array) -> Iterator[str]:
    for start, end in pairwise(offsets.tolist()):
        with translate_read_errors(path, f"texts in {encoding.upper()}"):
            found = text[start:end].tobytes().decode(encoding)
        yield found
