"""LEAF's JSON files, written here, read back value by value, whole and damaged."""

import json
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings

from fedtailor.data.readers import leaf, text
from fedtailor.errors import InputError
from published_formats import femnist_user, leaf_text, write_leaf
from reading import DAMAGE, by_client, damaged

RNG = np.random.default_rng(6)


def test_leaf_femnist(tmp_path: Path) -> None:
    images = RNG.integers(0, 256, (6, 28, 28), np.uint8)
    images[0, 3, 20] = 0  # a dark point in the upper right, on white
    write_leaf(
        tmp_path,
        "train",
        "all_0.json",
        {"ann": femnist_user(images[:2], [0, 61]), "bob": femnist_user(images[2:3], [10])},
    )
    write_leaf(
        tmp_path,
        "train",
        "all_1.json",
        {"cy": femnist_user(images[3:4], [36]), "nil": {"x": [], "y": []}},
    )
    write_leaf(
        tmp_path,
        "test",
        "all_0.json",
        {"cy": femnist_user(images[4:5], [5]), "ann": femnist_user(images[5:], [7])},
    )
    found = by_client(leaf.femnist(tmp_path))
    assert list(found) == ["ann", "bob", "cy"]
    np.testing.assert_array_equal(found["ann"]["x"], images[[0, 1, 5]][:, None])
    np.testing.assert_array_equal(found["cy"]["x"], images[[3, 4]][:, None])
    assert found["ann"]["x"].dtype == np.uint8
    assert found["ann"]["y"].tolist() == [0, 61, 7]
    assert found["ann"]["is_test"].tolist() == [False, False, True]
    assert found["bob"]["is_test"].tolist() == [False]


def test_leaf_split_by_user(tmp_path: Path) -> None:
    image = np.full((1, 28, 28), 255, np.uint8)
    write_leaf(tmp_path, "train", "a.json", {"ann": femnist_user(image, [1])})
    write_leaf(tmp_path, "test", "a.json", {"bob": femnist_user(image, [2])})
    found = by_client(leaf.femnist(tmp_path))
    assert {client: columns["is_test"].tolist() for client, columns in found.items()} == {
        "ann": [False],
        "bob": [True],
    }


def test_leaf_shakespeare(tmp_path: Path) -> None:
    line = (
        "To be, or not to be: that is the question: whether 'tis nobler in the mind to suffer the "
        "slings"
    )
    windows = {
        "x": [line[at : at + 80] for at in range(3)],
        "y": [line[at + 80] for at in range(3)],
    }
    write_leaf(tmp_path, "train", "a.json", {"HAMLET_HAMLET": windows})
    columns = by_client(leaf.shakespeare(tmp_path))["HAMLET_HAMLET"]
    np.testing.assert_array_equal(columns["x"][1], text.get_character_ids(line[1:81]))
    np.testing.assert_array_equal(columns["y"], text.get_character_ids(line[80:83]))
    assert columns["x"].shape == (3, 80)


IMAGE = [0.5] * 784
BAD_LEAF: list[tuple[str, str]] = [
    (leaf_text({"ann": {"x": [[0.5] * 783], "y": [1]}}), "images of 1 x 28 x 28 numbers"),
    (leaf_text({"ann": {"x": [[1.5] * 784], "y": [1]}}), "pixels from 0 to 1"),
    (leaf_text({"ann": {"x": [[float("nan")] * 784], "y": [1]}}), "pixels from 0 to 1"),
    (leaf_text({"ann": {"x": [IMAGE], "y": [62]}}), "labels from 0 to 61, got 62"),
    (leaf_text({"ann": {"x": [IMAGE], "y": [1.0]}}), "whole numbers as labels"),
    (leaf_text({"ann": {"x": [IMAGE, IMAGE], "y": [1]}}), "equally long columns"),
    (json.dumps({"user_data": {"ann": {"x": [IMAGE]}}}), "lists x and y"),
    (json.dumps({"users": []}), "must have 'user_data'"),
    (leaf_text({"ann": {"x": [IMAGE], "y": [1]}})[:-1], "expected , or }"),
    (leaf_text({"ann": {"x": [IMAGE], "y": [1]}}) + "{}", "expected the end"),
    ("[1, 2]", "expected {"),
    ("", "expected {"),
]


@pytest.mark.parametrize(("raw", "sentence"), BAD_LEAF)
def test_bad_leaf_files_are_refused_by_name(tmp_path: Path, raw: str, sentence: str) -> None:
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "some.json").write_text(raw)
    with pytest.raises(InputError, match=sentence) as caught:
        by_client(leaf.femnist(tmp_path))
    assert "some.json" in str(caught.value)


def test_other_bad_leaf_folders(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"must have a folder 'train' with .json files"):
        by_client(leaf.femnist(tmp_path))
    write_leaf(tmp_path, "train", "a.json", {"ann": {"x": ["short"], "y": ["a"]}})
    with pytest.raises(
        InputError, match=r"a.json' must have windows of 80 characters, but some of 'ann'"
    ):
        by_client(leaf.shakespeare(tmp_path))
    write_leaf(tmp_path, "train", "a.json", {"ann": {"x": [" " * 80], "y": ["ab"]}})
    with pytest.raises(InputError, match=r"a.json' must have one character as the label"):
        by_client(leaf.shakespeare(tmp_path))
    for name in ("a.json", "b.json"):
        write_leaf(tmp_path, "train", name, {"ann": {"x": [IMAGE], "y": [1]}})
    with pytest.raises(InputError, match=r"train/b.json' must not have 'ann' again"):
        by_client(leaf.femnist(tmp_path))
    for name in ("a.json", "b.json"):
        write_leaf(tmp_path, "test", name, {"ann": {"x": [IMAGE], "y": [1]}})
    with pytest.raises(InputError, match=r"test/b.json' must not have 'ann' again"):
        by_client(leaf.femnist(tmp_path))
    (tmp_path / "test" / "a.json").write_bytes('{"caf\xe9": 1}'.encode("latin-1"))
    with pytest.raises(InputError, match=r"a.json' cannot be read as a file of LEAF"):
        by_client(leaf.femnist(tmp_path))


@settings(max_examples=80, deadline=None)
@given(**DAMAGE)
def test_damaged_leaf_files(at: float, flip: int | None) -> None:
    line = {"x": ["s" * 80, " " * 80], "y": ["a", "b"]}
    with tempfile.TemporaryDirectory() as name:
        path = write_leaf(Path(name), "train", "a.json", {"ann": line, "bob": line})
        path.write_bytes(damaged(path.read_bytes(), at, flip))
        try:
            found = by_client(leaf.shakespeare(name))
        except InputError:
            return
        assert all(columns["x"].shape == (2, 80) for columns in found.values())
