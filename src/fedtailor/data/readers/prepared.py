"""Federated data sets prepared as `.npz` files of plain arrays, which are in RAM as a whole."""

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
from fedtailor.data.readers.text import (
    Encoder,
    encode_characters,
    require_sentence_limit,
    split_sentences,
)
from fedtailor.errors import require

PARTS = ("train", "test")


def read_images(path: str | Path, shape: tuple[int, ...], classes: int) -> Iterator[Block]:
    """Read images that belong to no client, training examples before test examples.

    Args:
        path: File with `x_train`, `y_train`, `x_test` and `y_test`.
        shape: Shape of an image in the file, [height, width] or [height, width, channels].
        classes: Number of classes; labels are less.
    """
    arrays = _load_arrays(path, "x_train", "y_train", "x_test", "y_test")
    for part in PARTS:
        images = arrays[f"x_{part}"]
        raw_labels = arrays[f"y_{part}"]
        is_images = images.shape[1:] == shape and images.dtype == np.uint8 and len(images) > 0
        is_labels = raw_labels.dtype.kind in "iu" and raw_labels.shape == images.shape[:1]
        shape_text = ", ".join(map(str, shape))
        require(
            is_images and is_labels,
            f"In '{path}' x_{part} and y_{part} must be images [n, {shape_text}] of uint8 and "
            f"labels, got {list(images.shape)} of {images.dtype} and "
            f"{list(raw_labels.shape)} of {raw_labels.dtype}.",
        )
        labels = parse_labels(path, raw_labels, classes)
        channel_first = images[:, None] if images.ndim == 3 else np.moveaxis(images, -1, 1)
        columns = add_test_column({"x": channel_first, "y": labels}, is_test=part == "test")
        for block in split_into_blocks("", columns):
            contiguous = np.ascontiguousarray(block.columns["x"])
            yield Block("", block.columns | {"x": contiguous})


def femnist(path: str | Path) -> Iterator[Block]:
    """Read FEMNIST by writer, without the images that are marked as duplicates.

    Images are [n, 1, 28, 28], dark on white, as LEAF has them. The file has `images`, `labels`,
    `writer`, `is_test`, `is_dup` and `writer_names`.
    """
    arrays = _load_arrays(path, "images", "labels", "writer", "is_test", "is_dup", "writer_names")
    images = arrays["images"]
    writer_names = arrays["writer_names"]
    require(
        images.dtype == np.uint8 and images.ndim == 3,
        f"'{path}' must have uint8 images [n, height, width], "
        f"got {list(images.shape)} of {images.dtype}.",
    )
    for key in ("labels", "writer", "is_test", "is_dup"):
        require(
            arrays[key].shape == images.shape[:1],
            f"'{path}' must have one entry of {key} for each image, got {list(arrays[key].shape)}.",
        )
    _require_distinct(path, "writer_names", writer_names)
    labels = parse_labels(path, arrays["labels"], 62)
    owners = _parse_owners(path, arrays["writer"], len(writer_names), "writers")
    kept = np.flatnonzero(arrays["is_dup"] == 0)
    if len(kept) < len(images):
        yield Block("", {}, num_dropped=len(images) - len(kept))
    for writer, rows in _group_rows(owners[kept], kept):
        columns = {
            "x": images[rows][:, None],
            "y": labels[rows],
            "is_test": arrays["is_test"][rows] != 0,
        }
        yield from split_into_blocks(str(writer_names[writer]), columns)


def shakespeare_roles(path: str | Path, encode: Encoder = encode_characters) -> Iterator[Block]:
    """Read Shakespeare by role; clients are called PLAY_ROLE.

    The file has `text` (ASCII), `role_offsets`, `role_names` and `play_names`. The text of a role
    is one snippet, with newlines between its lines.
    """
    arrays = _load_arrays(path, "text", "role_offsets", "role_names", "play_names")
    role_names = arrays["role_names"]
    play_names = arrays["play_names"]
    text = arrays["text"]
    offsets = arrays["role_offsets"]
    _require_offsets(path, "role_offsets", offsets, text)
    count = len(offsets) - 1
    require(
        role_names.shape == play_names.shape == (count,),
        f"'{path}' must have one of role_names and play_names for each of {count} texts.",
    )
    client_names = [
        re.sub(r"\W+", "_", f"{play}_{role}")
        for play, role in zip(play_names, role_names, strict=True)
    ]
    _require_distinct(path, "roles of a play", np.array(client_names, np.str_))
    texts = _decode_texts(path, "ascii", text, offsets)
    for name, role_text in zip(client_names, texts, strict=True):
        yield from split_into_blocks(name, encode([role_text]))


def stackexchange(
    path: str | Path, encode: Encoder, max_sentences: int | None = 1000
) -> Iterator[Block]:
    """Read Stack Exchange by user; clients are called SITE/ID.

    Args:
        path: File with `text` (UTF-8), `doc_offsets`, `doc_user`, `user_site` and `user_id`.
        encode: Encoder of the sentences that `text.split_sentences` returns.
        max_sentences: Number of each user's first sentences that are encoded; None: all.
    """
    require_sentence_limit("Stack Exchange", max_sentences)
    arrays = _load_arrays(path, "text", "doc_offsets", "doc_user", "user_site", "user_id")
    sites = arrays["user_site"]
    user_ids = arrays["user_id"]
    text = arrays["text"]
    offsets = arrays["doc_offsets"]
    _require_offsets(path, "doc_offsets", offsets, text)
    num_documents = len(offsets) - 1
    require(
        arrays["doc_user"].shape == (num_documents,),
        f"'{path}' must have one doc_user for each of {num_documents} texts.",
    )
    require(
        sites.shape == user_ids.shape and sites.ndim == 1,
        f"'{path}' must have one user_site and user_id for each user.",
    )
    client_names = [f"{site}/{user_id}" for site, user_id in zip(sites, user_ids, strict=True)]
    _require_distinct(path, "users", np.array(client_names, np.str_))
    owners = _parse_owners(path, arrays["doc_user"], len(client_names), "users")
    for user, documents in _group_rows(owners, np.arange(num_documents)):
        spans = np.stack([offsets[documents], offsets[documents + 1]], axis=1)
        sentences = islice(_iter_sentences(path, text, spans), max_sentences)
        yield from split_into_blocks(client_names[user], encode(list(sentences)))


def _iter_sentences(path: str | Path, text: Array, spans: Array) -> Iterator[str]:
    """Yield the sentences of texts from their begins and ends [texts, 2]."""
    for span in spans:
        for document in _decode_texts(path, "utf-8", text, span):
            yield from split_sentences(document)


def _load_arrays(path: str | Path, *needed: str) -> dict[str, Array]:
    with translate_read_errors(path, "an .npz file of plain arrays"):
        return read_npz(path, needed)


def _parse_owners(path: str | Path, owners: Array, num_clients: int, noun: str) -> Array:
    """Return the client of every row as int64; the error calls clients by `noun`."""
    return parse_labels(path, owners, num_clients, noun=noun).astype(np.int64)


def _group_rows(owners: Array, rows: Array) -> Iterator[tuple[int, Array]]:
    """Yield each client of `owners`, ascending, with its entries of `rows` in their order."""
    order = np.argsort(owners, kind="stable")
    clients, starts = np.unique(owners[order], return_index=True)
    yield from zip(clients.tolist(), np.split(rows[order], starts[1:]), strict=True)


def _require_distinct(path: str | Path, noun: str, names: Array) -> None:
    is_list_of_names = names.ndim == 1 and names.dtype.kind == "U" and len(names) > 0
    require(
        is_list_of_names and len(set(names.tolist())) == len(names),
        f"'{path}' must have different names as {noun}.",
    )


def _require_offsets(path: str | Path, noun: str, offsets: Array, text: Array) -> None:
    """Refuse offsets that do not divide the bytes of a text into one or more parts."""
    is_text = text.ndim == 1 and text.dtype == np.uint8
    is_offsets = offsets.ndim == 1 and offsets.dtype.kind in "iu" and len(offsets) > 1
    message = f"'{path}' must have {noun} that rise from 0 to the length of its text."
    require(is_text and is_offsets, message)
    require(offsets[0] == 0 and offsets[-1] == len(text), message)
    require(bool((offsets[1:] >= offsets[:-1]).all()), message)


def _decode_texts(path: str | Path, encoding: str, text: Array, offsets: Array) -> Iterator[str]:
    """Yield the parts of a text between consecutive offsets."""
    for start, end in pairwise(offsets.tolist()):
        with translate_read_errors(path, f"texts in {encoding.upper()}"):
            decoded = text[start:end].tobytes().decode(encoding)
        yield decoded
