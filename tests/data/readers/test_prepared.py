"""Federated sets prepared as .npz files: small ones written here, and the real ones where they are
at hand.
"""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from divided import images_of, saved
from fedtailor.data.examples import Array
from fedtailor.data.readers import prepared, text
from fedtailor.errors import InputError
from reading import by_client, joined

RNG = np.random.default_rng(6)
SHARED = os.environ.get("FEDTAILOR_SHARED", "")
real = pytest.mark.skipif(
    not SHARED, reason="FEDTAILOR_SHARED names no folder with the prepared files"
)
KNOWN = text.make_vocabulary(["the", "cat", "sat"])
ENCODE = partial(text.encode_words, vocabulary=KNOWN, length=3)


def write_femnist(path: Path, **changes: Any) -> Array:
    images = np.arange(5 * 9, dtype=np.uint8).reshape(5, 3, 3)
    arrays: dict[str, Any] = {
        "images": images,
        "labels": np.array([0, 61, 2, 3, 4], np.uint8),
        "writer": np.array([1, 0, 1, 1, 0], np.int16),
        "is_test": np.array([0, 0, 1, 0, 1], np.uint8),
        "is_dup": np.array([0, 0, 0, 1, 0], np.uint8),
        "writer_names": np.array(["ann", "bob"]),
    }
    np.savez(path, **(arrays | changes))
    return images


def test_prepared_femnist(tmp_path: Path) -> None:
    images = write_femnist(tmp_path / "f.npz")
    found = by_client(prepared.femnist(tmp_path / "f.npz"))
    assert list(found) == ["ann", "bob"]
    np.testing.assert_array_equal(found["bob"]["x"], images[[0, 2]][:, None])
    assert (found["bob"]["y"].tolist(), found["bob"]["is_test"].tolist()) == ([0, 2], [False, True])
    assert found["ann"]["y"].tolist() == [61, 4]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"images": np.zeros((5, 9), np.uint8)}, "uint8 images"),
        ({"labels": np.array([0, 62, 2, 3, 4])}, "labels from 0 to 61, got 0 to 62"),
        ({"labels": np.zeros(4, np.uint8)}, "one entry of labels for each image"),
        ({"writer": np.array([0, 0, 0, 0, 2])}, "writers from 0 to 1, got 0 to 2"),
        ({"writer_names": np.array(["ann", "ann"])}, "different names as writer_names"),
    ],
)
def test_bad_prepared_femnist(tmp_path: Path, changes: dict[str, Any], sentence: str) -> None:
    write_femnist(tmp_path / "f.npz", **changes)
    with pytest.raises(InputError, match=sentence) as caught:
        by_client(prepared.femnist(tmp_path / "f.npz"))
    assert "f.npz" in str(caught.value)


def change(arrays: dict[str, Array], key: str, made: Callable[[Array], Any]) -> dict[str, Array]:
    return arrays | {key: np.asarray(made(arrays[key]))}


@pytest.mark.parametrize(("name", "shape"), [("mnist", (28, 28)), ("cifar10", (32, 32, 3))])
def test_prepared_images_get_their_channels_first(
    tmp_path: Path, name: str, shape: tuple[int, ...]
) -> None:
    arrays = images_of(name, 30, 10)
    blocks = list(prepared.read_images(saved(tmp_path / "some.npz", arrays), shape, 10))
    assert all(block.columns["x"].flags.c_contiguous for block in blocks)
    found, images = joined(blocks), np.concatenate([arrays["x_train"], arrays["x_test"]])
    assert found["x"].shape == (40, 3 if name == "cifar10" else 1, *shape[:2])
    for channel in range(found["x"].shape[1]):
        np.testing.assert_array_equal(
            found["x"][:, channel], images if name == "mnist" else images[..., channel]
        )
    np.testing.assert_array_equal(found["y"], [*arrays["y_train"], *arrays["y_test"]])
    np.testing.assert_array_equal(found["is_test"], [False] * 30 + [True] * 10)
    assert [str(found[column].dtype) for column in ("x", "y", "is_test")] == [
        "uint8",
        "uint8",
        "bool",
    ]


BAD_IMAGES: list[tuple[str, Callable[[Array], Any], str]] = [
    (
        "x_train",
        lambda x: x[:, 1:],
        r"x_train and y_train must be images \[n, 28, 28\] .*, got \[30, 27, 28\] of uint8",
    ),
    (
        "x_test",
        lambda x: x / 255,
        r"x_test and y_test must be images .*, got \[10, 28, 28\] of float64",
    ),
    ("x_test", lambda x: x[0, 0, 0], r"x_test and y_test must be images .*, got \[\] of uint8"),
    ("x_test", lambda x: x[:0], r"x_test and y_test must be images .*, got \[0, 28, 28\] of uint8"),
    ("y_train", lambda y: y[:-1], r"x_train and y_train must be images .* and \[29\] of uint8"),
    (
        "y_train",
        lambda y: y[:, None],
        r"x_train and y_train must be images .* and \[30, 1\] of uint8",
    ),
    ("y_test", lambda y: y / 1, "x_test and y_test must be images .* of float64"),
    ("y_test", lambda y: y + 1, "labels from 0 to 9, got 1 to 10"),
    ("y_test", lambda y: y.astype(int) - 1, "labels from 0 to 9, got -1 to 8"),
    ("y_test", lambda y: [{}] * len(y), r"cannot be read as an \.npz file of plain arrays"),
]


@pytest.mark.parametrize(
    ("key", "made", "sentence"), BAD_IMAGES, ids=[f"{i}" for i in range(len(BAD_IMAGES))]
)
def test_bad_prepared_images(
    tmp_path: Path, key: str, made: Callable[[Array], Any], sentence: str
) -> None:
    path = saved(tmp_path / "some.npz", change(images_of("mnist"), key, made))
    with pytest.raises(InputError, match=sentence) as caught:
        joined(prepared.read_images(path, (28, 28), 10))
    assert f"'{path}'" in str(caught.value)


def test_missing_and_damaged_prepared_images(tmp_path: Path) -> None:
    path, arrays = tmp_path / "some.npz", images_of("mnist")
    with pytest.raises(InputError, match="There is no file"):
        joined(prepared.read_images(path, (28, 28), 10))
    empty = arrays | {"x_test": arrays["x_test"][:0], "y_test": arrays["y_test"][:0]}
    with pytest.raises(InputError, match="x_test and y_test must be images"):
        joined(prepared.read_images(saved(path, empty), (28, 28), 10))
    arrays.pop("y_test")
    with pytest.raises(
        InputError,
        match="must hold arrays x_train, y_train, x_test, y_test, but has only x_train, y",
    ):
        joined(prepared.read_images(saved(path, arrays), (28, 28), 10))
    whole = saved(path, images_of("mnist")).read_bytes()
    for content in (
        whole[: len(whole) // 2],
        b"",
        b"no archive at all",
        whole[:2000] + b"?" + whole[2001:],
    ):
        path.write_bytes(content)
        with pytest.raises(
            InputError, match=r"some.npz' cannot be read as an \.npz file of plain arrays"
        ):
            joined(prepared.read_images(path, (28, 28), 10))


def bytes_of(raw: str, encoding: str = "utf-8") -> Array:
    return np.frombuffer(raw.encode(encoding), np.uint8)


def test_prepared_roles(tmp_path: Path) -> None:
    path = tmp_path / "roles.npz"
    arrays: dict[str, Any] = {
        "text": bytes_of("Ay.\nNo.\nHo!\n"),
        "role_offsets": np.array([0, 8, 12]),
    }
    names: dict[str, Any] = {
        "role_names": np.array(["FOOL", "FOOL"]),
        "play_names": np.array(["KING LEAR", "ALL'S WELL"]),
    }
    np.savez(path, **arrays, **names)
    found = by_client(
        prepared.shakespeare_roles(path, partial(text.encode_next_character, length=2))
    )
    assert list(found) == ["KING_LEAR_FOOL", "ALL_S_WELL_FOOL"]
    np.testing.assert_array_equal(
        found["KING_LEAR_FOOL"]["y"], text.get_character_ids("Ay.\nNo.\n")
    )
    np.savez(path, **(arrays | {"role_offsets": np.array([0, 8, 13])}), **names)
    with pytest.raises(InputError, match=r"roles.npz' must have role_offsets that rise from 0"):
        by_client(prepared.shakespeare_roles(path))
    np.savez(path, **(arrays | {"text": bytes_of("\xc4y.\nNo.\nHo!\n", "latin-1")}), **names)
    with pytest.raises(InputError, match=r"roles.npz' cannot be read as texts in ASCII"):
        by_client(prepared.shakespeare_roles(path))
    np.savez(
        path, **arrays, role_names=np.array(["FOOL", "FOOL"]), play_names=np.array(["LEAR", "LEAR"])
    )
    with pytest.raises(InputError, match="different names"):
        by_client(prepared.shakespeare_roles(path))


def test_prepared_stackexchange(tmp_path: Path) -> None:
    path = tmp_path / "users.npz"
    documents = ["The cat. A caf\u00e9!", "Sat", "the CAT"]
    np.savez(
        path,
        text=bytes_of("".join(documents)),
        doc_offsets=np.cumsum([0, *(len(document.encode()) for document in documents)]),
        doc_user=np.array([1, 0, 1]),
        user_site=np.array(["cats", "dogs"]),
        user_id=np.array([7, 7]),
    )
    found = by_client(prepared.stackexchange(path, ENCODE, max_sentences=None))
    assert list(found) == ["cats/7", "dogs/7"]
    assert found["dogs/7"]["x"].tolist() == [[5, 1, 2], [5, 4, 4], [5, 1, 2]]
    assert found["dogs/7"]["y"].tolist() == [[1, 2, 4], [4, 4, 4], [1, 2, 6]]
    assert len(by_client(prepared.stackexchange(path, ENCODE, max_sentences=2))["dogs/7"]["x"]) == 2


@real
def test_the_prepared_files() -> None:
    folder = Path(SHARED)
    writers = by_client(prepared.femnist(folder / "femnist.npz"))
    assert len(writers) == 300
    assert (
        sum(len(columns["x"]) for columns in writers.values()) == 46_258 - 300
    )  # one doubled image of each writer
    roles = by_client(prepared.shakespeare_roles(folder / "shakespeare_roles.npz"))
    assert len(roles) == 1_155
    assert not any((columns["x"] == text.UNK).any() for columns in roles.values())
    known = text.read_vocabulary(folder / "stackexchange_vocab.txt.gz", 9_996)
    users = by_client(
        prepared.stackexchange(
            folder / "stackexchange_users.npz", partial(text.encode_words, vocabulary=known)
        )
    )
    assert len(users) == 2_106
    assert max(len(columns["x"]) for columns in users.values()) == 1_000
