"""TensorFlow Federated's HDF5 files."""

import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from fedtailor.data.examples import Array
from fedtailor.data.reader_blocks import Block
from fedtailor.data.readers import text, tff
from fedtailor.errors import InputError
from published_formats import write_hdf5
from reading import by_client

RNG = np.random.default_rng(6)


WRITERS = {
    "train": {"f0_2": ([0, 61], [1, 2]), "f0_1": ([3], [3])},
    "test": {"f0_2": ([4], [4]), "f0_3": ([5], [5])},
}  # by part and writer: labels, and how dark every pixel is


def pixels(grey: int) -> Array:
    return (np.full((28, 28), grey) / 255).astype(np.float32)


def check_emnist(blocks: Iterable[Block]) -> None:
    found = by_client(blocks)
    assert list(found) == ["f0_1", "f0_2", "f0_3"]
    assert found["f0_2"]["x"].shape == (3, 1, 28, 28)
    assert found["f0_2"]["x"][:, 0, 9, 9].tolist() == [1, 2, 4]
    assert found["f0_2"]["y"].tolist() == [0, 61, 4]
    assert found["f0_2"]["is_test"].tolist() == [False, False, True]
    assert found["f0_3"]["is_test"].tolist() == [True]
    assert found["f0_2"]["y"].dtype == found["f0_2"]["x"].dtype == np.uint8


def test_fed_emnist_from_hdf5(tmp_path: Path) -> None:
    for part, writers in WRITERS.items():
        clients = {
            name: {
                "pixels": np.stack([pixels(grey) for grey in greys]),
                "label": np.array(labels, np.int32),
            }
            for name, (labels, greys) in writers.items()
        }
        write_hdf5(tmp_path / f"fed_emnist_{part}.h5", clients)
    check_emnist(tff.fed_emnist(tmp_path))
    with pytest.raises(InputError, match=r"There is no file '.*fed_emnist_digitsonly_train.h5'"):
        by_client(tff.fed_emnist(tmp_path, digits_only=True))


def test_fed_cifar100_from_hdf5(tmp_path: Path) -> None:
    images = RNG.integers(0, 256, (2, 32, 32, 3), np.uint8)
    for part, image in zip(("train", "test"), images, strict=True):
        features = {"image": image[None], "label": np.array([99]), "coarse_label": np.array([[19]])}
        write_hdf5(tmp_path / f"fed_cifar100_{part}.h5", {"0": features})
    found = by_client(tff.fed_cifar100(tmp_path))
    assert list(found) == ["train_0", "test_0"]  # different people, though both are called 0
    np.testing.assert_array_equal(found["train_0"]["x"][0, 1], images[0, :, :, 1])
    np.testing.assert_array_equal(found["test_0"]["x"][0, 2], images[1, :, :, 2])
    assert (found["test_0"]["y"].tolist(), found["test_0"]["coarse"].tolist()) == ([99], [19])


SPEECHES = {
    "train": {"LEAR": ["Howl, howl!", "Never."]},
    "test": {"LEAR": ["Pray you, undo this button."]},
}


def check_shakespeare(blocks: Iterable[Block]) -> None:
    columns = by_client(blocks)["LEAR"]
    expected = text.encode_characters([*SPEECHES["train"]["LEAR"], *SPEECHES["test"]["LEAR"]])
    np.testing.assert_array_equal(columns["x"], expected["x"])
    np.testing.assert_array_equal(columns["y"], expected["y"])
    assert columns["is_test"].tolist() == [False, False, True]


def test_shakespeare_from_hdf5(tmp_path: Path) -> None:
    for part, roles in SPEECHES.items():
        write_hdf5(
            tmp_path / f"shakespeare_{part}.h5",
            {role: {"snippets": said} for role, said in roles.items()},
        )
    check_shakespeare(tff.shakespeare(tmp_path))


POSTS = {"train": ["the cat sat", "a cat", "the"], "test": ["sat"], "heldout": ["cat cat"]}
KNOWN = text.make_vocabulary(["the", "cat", "sat"])
ENCODE = partial(text.encode_words, vocabulary=KNOWN, length=3)


def test_stackoverflow_from_hdf5(tmp_path: Path) -> None:
    for part, posts in POSTS.items():
        name = "held_out" if part == "heldout" else part
        write_hdf5(tmp_path / f"stackoverflow_{name}.h5", {"00000009": {"tokens": posts}})
    found = by_client(tff.stackoverflow(tmp_path, ENCODE, max_sentences=2))["00000009"]
    assert found["x"].tolist() == [[5, 1, 2], [5, 4, 2], [5, 3, 6]]
    assert found["y"].tolist() == [[1, 2, 3], [4, 2, 6], [3, 6, 0]]
    assert found["is_test"].tolist() == [False, False, True]
    assert (
        len(by_client(tff.stackoverflow(tmp_path, ENCODE, max_sentences=None))["00000009"]["x"])
        == 4
    )
    held_out = by_client(tff.stackoverflow(tmp_path, ENCODE, held_out=True))["00000009"]
    assert (held_out["x"].tolist(), held_out["is_test"].tolist()) == ([[5, 2, 2]], [False])
    with pytest.raises(
        InputError, match="max_sentences must be None or a whole number of at least 1, got 0"
    ):
        tff.stackoverflow(tmp_path, ENCODE, max_sentences=0)


def test_bad_hdf5_files(tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    path = tmp_path / "shakespeare_train.h5"
    with pytest.raises(InputError, match="There is no file"):
        by_client(tff.shakespeare(tmp_path / "none"))
    path.write_bytes(b"not HDF5")
    with pytest.raises(
        InputError, match=r"must be a folder with shakespeare_train.h5 and shakespeare_test.h5, but"
    ):
        by_client(tff.shakespeare(path))
    with pytest.raises(InputError, match=r"shakespeare_train.h5' cannot be read as an HDF5 file"):
        by_client(tff.shakespeare(tmp_path))
    for part in ("train", "test"):
        write_hdf5(tmp_path / f"shakespeare_{part}.h5", {"x": {"other": [b"a"]}})
    with pytest.raises(InputError, match=r"shakespeare_train.h5' cannot be read as an HDF5 file"):
        by_client(tff.shakespeare(tmp_path))
    for part in ("train", "test"):
        write_hdf5(tmp_path / f"shakespeare_{part}.h5", {"x": {"snippets": np.array([b"caf\xe9"])}})
    with pytest.raises(InputError, match="cannot be read as texts in UTF-8 of 'x'"):
        by_client(tff.shakespeare(tmp_path))
    whole = path.read_bytes()
    for length in range(0, len(whole), 97):
        path.write_bytes(whole[:length])
        with pytest.raises(InputError, match="shakespeare_"):
            by_client(tff.shakespeare(tmp_path))


def test_without_h5py_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(
        InputError, match=r"needs the package h5py: pip install 'fedtailor\[hdf5\]'"
    ):
        by_client(tff.shakespeare(tmp_path))
