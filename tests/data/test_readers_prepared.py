"""Federated sets prepared as .npz files: small ones written here, and the real ones where they are at hand."""

import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedtailor.data.holders import Array
from fedtailor.data.readers import prepared, text
from fedtailor.errors import InputError
from reading import by_client

RNG = np.random.default_rng(6)
SHARED = os.environ.get("FEDTAILOR_SHARED", "")
real = pytest.mark.skipif(not SHARED, reason="FEDTAILOR_SHARED names no folder with the prepared files")
KNOWN = text.vocabulary(["the", "cat", "sat"])
ENCODE = partial(text.encode_words, known=KNOWN, length=3)


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
    assert (found["bob"]["y"].tolist(), found["bob"]["testing"].tolist()) == ([0, 2], [False, True])
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


def bytes_of(raw: str, encoding: str = "utf-8") -> Array:
    return np.frombuffer(raw.encode(encoding), np.uint8)


def test_prepared_roles(tmp_path: Path) -> None:
    path = tmp_path / "roles.npz"
    arrays: dict[str, Any] = {"text": bytes_of("Ay.\nNo.\nHo!\n"), "role_offsets": np.array([0, 8, 12])}
    names: dict[str, Any] = {
        "role_names": np.array(["FOOL", "FOOL"]),
        "play_names": np.array(["KING LEAR", "ALL'S WELL"]),
    }
    np.savez(path, **arrays, **names)
    found = by_client(prepared.shakespeare_roles(path, partial(text.encode_next, length=2)))
    assert list(found) == ["KING_LEAR_FOOL", "ALL_S_WELL_FOOL"]
    np.testing.assert_array_equal(found["KING_LEAR_FOOL"]["y"], text.character_ids("Ay.\nNo.\n"))
    np.savez(path, **(arrays | {"role_offsets": np.array([0, 8, 13])}), **names)
    with pytest.raises(InputError, match=r"roles.npz' must have role_offsets that rise from 0"):
        by_client(prepared.shakespeare_roles(path))
    np.savez(path, **(arrays | {"text": bytes_of("\xc4y.\nNo.\nHo!\n", "latin-1")}), **names)
    with pytest.raises(InputError, match=r"roles.npz' cannot be read as texts in ASCII"):
        by_client(prepared.shakespeare_roles(path))
    np.savez(path, **arrays, role_names=np.array(["FOOL", "FOOL"]), play_names=np.array(["LEAR", "LEAR"]))
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
    found = by_client(prepared.stackexchange(path, ENCODE, most=None))
    assert list(found) == ["cats/7", "dogs/7"]
    assert found["dogs/7"]["x"].tolist() == [[5, 1, 2], [5, 4, 4], [5, 1, 2]]
    assert found["dogs/7"]["y"].tolist() == [[1, 2, 4], [4, 4, 4], [1, 2, 6]]
    assert len(by_client(prepared.stackexchange(path, ENCODE, most=2))["dogs/7"]["x"]) == 2


@real
def test_the_prepared_files() -> None:
    folder = Path(SHARED)
    writers = by_client(prepared.femnist(folder / "femnist.npz"))
    assert len(writers) == 300
    assert sum(len(columns["x"]) for columns in writers.values()) == 46_258 - 300  # one doubled image of each writer
    roles = by_client(prepared.shakespeare_roles(folder / "shakespeare_roles.npz"))
    assert len(roles) == 1_155
    assert not any((columns["x"] == text.OTHER).any() for columns in roles.values())
    known = text.read_vocabulary(folder / "stackexchange_vocab.txt.gz", 9_996)
    users = by_client(
        prepared.stackexchange(folder / "stackexchange_users.npz", partial(text.encode_words, known=known))
    )
    assert len(users) == 2_106
    assert max(len(columns["x"]) for columns in users.values()) == 1_000
