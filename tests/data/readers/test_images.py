"""idx, CIFAR and STL-10 files that the tests write themselves, read back value by value, whole and
damaged.
"""

import struct
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings

from fedtailor.data.readers import idx, stl10
from fedtailor.errors import InputError
from published_formats import write_idx, write_stl10
from reading import DAMAGE, archived, damaged, joined

RNG = np.random.default_rng(5)


@pytest.mark.parametrize("end", ["", ".gz"])
def test_mnist(tmp_path: Path, end: str) -> None:
    images = RNG.integers(0, 256, (5, 28, 28), np.uint8)
    write_idx(tmp_path, "train", images[:3], [7, 0, 9], end)
    write_idx(tmp_path, "t10k", images[3:], [1, 2], end)
    found = joined(idx.mnist(tmp_path))
    np.testing.assert_array_equal(found["x"], images[:, None])
    assert found["x"].dtype == found["y"].dtype == np.uint8
    assert found["y"].tolist() == [7, 0, 9, 1, 2]
    assert found["is_test"].tolist() == [False, False, False, True, True]


def test_a_large_set_comes_in_blocks(tmp_path: Path) -> None:
    images = RNG.integers(0, 256, (10_000, 2, 3), np.uint8)
    write_idx(tmp_path, "train", images, np.arange(10_000) % 10)
    write_idx(tmp_path, "t10k", images[:1], [0])
    blocks = list(idx.mnist(tmp_path))
    assert [len(block.columns["x"]) for block in blocks] == [4096, 4096, 1808, 1]
    np.testing.assert_array_equal(joined(blocks)["x"][:10_000, 0], images)


def test_emnist_is_upright_and_its_letters_start_at_0(tmp_path: Path) -> None:
    upright = np.zeros((28, 28), np.uint8)
    upright[4:24, 6] = 255  # the long stroke of an L
    upright[23, 6:16] = 200  # its foot, at the bottom to the right
    (tmp_path / "gzip").mkdir()
    for name in ("train", "test"):
        write_idx(tmp_path / "gzip", f"emnist-letters-{name}", upright.T[None], [12], ".gz")
    found = joined(idx.emnist(tmp_path, "letters"))
    np.testing.assert_array_equal(found["x"], np.stack([upright, upright])[:, None])
    assert found["y"].tolist() == [11, 11]  # L, where A is 0


@pytest.mark.parametrize(
    ("variant", "classes"), [("byclass", 62), ("bymerge", 47), ("balanced", 47), ("digits", 10)]
)
def test_the_variants_of_emnist_know_their_classes(
    tmp_path: Path, variant: str, classes: int
) -> None:
    image = np.zeros((1, 28, 28), np.uint8)
    for name in ("train", "test"):
        write_idx(tmp_path, f"emnist-{variant}-{name}", image, [classes - 1])
    assert joined(idx.emnist(tmp_path, variant))["y"].tolist() == [classes - 1] * 2
    write_idx(tmp_path, f"emnist-{variant}-test", image, [classes])
    with pytest.raises(
        InputError, match=f"test-labels.*labels from 0 to {classes - 1}, got {classes} to {classes}"
    ):
        joined(idx.emnist(tmp_path, variant))


BAD_IDX: list[tuple[Callable[[bytes], bytes], str]] = [
    (lambda raw: raw[:-1], "cut off"),
    (lambda raw: raw[:10], "cut off"),
    (lambda raw: raw + b"x", "must end after 2 examples"),
    (lambda raw: b"\x00\x00\x08\x01" + raw[4:], "must start with the idx number 2051, got 2049"),
    (lambda raw: raw[:4] + struct.pack(">I", 3) + raw[8:], "has 2 labels, but .* has 3 images"),
    (lambda raw: raw[:8] + struct.pack(">I", 1 << 31) + raw[12:], "1 to 4096 pixels a side"),
]


@pytest.mark.parametrize(("damage", "sentence"), BAD_IDX)
def test_bad_idx_files_are_refused_by_name(
    tmp_path: Path, damage: Callable[[bytes], bytes], sentence: str
) -> None:
    for prefix in ("train", "t10k"):
        write_idx(tmp_path, prefix, np.zeros((2, 3, 3), np.uint8), [0, 1])
    file = tmp_path / "train-images-idx3-ubyte"
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(InputError, match=sentence) as caught:
        joined(idx.mnist(tmp_path))
    assert "train-images-idx3-ubyte" in str(caught.value)


@pytest.mark.parametrize("file", ["t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"])
def test_the_damaged_one_of_two_gzipped_files_is_named(tmp_path: Path, file: str) -> None:
    for prefix in ("train", "t10k"):
        write_idx(tmp_path, prefix, np.zeros((2, 3, 3), np.uint8), [0, 1], ".gz")
    raw = (tmp_path / file).read_bytes()
    for length in range(len(raw)):
        (tmp_path / file).write_bytes(raw[:length])
        with pytest.raises(InputError, match=file):
            joined(idx.mnist(tmp_path))


def test_absent_idx_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"must hold the files train-images-idx3-ubyte, train-labels-idx1-ubyte or"
    ):
        joined(idx.mnist(tmp_path))
    with pytest.raises(InputError, match="There is no file"):
        joined(idx.mnist(tmp_path / "nowhere"))
    with pytest.raises(InputError, match="no variant 'leters'; did you mean letters"):
        joined(idx.emnist(tmp_path, "leters"))


def test_stl10_is_upright(tmp_path: Path) -> None:
    images = RNG.integers(0, 256, (4, 3, 96, 96), np.uint8)
    write_stl10(tmp_path / "stl10_binary", images, [9, 0, 7, 2], 3)
    archive = archived(
        tmp_path / "stl10_binary.tar.gz", (tmp_path / "stl10_binary").iterdir(), "stl10_binary"
    )
    for way in (tmp_path, tmp_path / "stl10_binary", archive):
        found = joined(stl10.stl10(way))
        np.testing.assert_array_equal(found["x"], images)
        assert found["y"].tolist() == [9, 0, 7, 2]
        assert found["is_test"].tolist() == [False, False, False, True]


def test_stl10_as_cifar10(tmp_path: Path) -> None:
    cifar_names = (
        "airplane",
        "automobile",
        "bird",
        "cat",
        "deer",
        "dog",
        "frog",
        "horse",
        "ship",
        "truck",
    )
    images = RNG.integers(0, 256, (10, 3, 96, 96), np.uint8)
    write_stl10(tmp_path, images, list(range(10)), 9)
    found = joined(stl10.stl10(tmp_path, like="cifar10", side=32))
    named = [cifar_names[label] for label in found["y"]]
    assert named == [
        "airplane",
        "bird",
        "automobile",
        "cat",
        "deer",
        "dog",
        "horse",
        "ship",
        "truck",
    ]
    assert found["x"].shape == (9, 3, 32, 32)
    square = images[8, 1, 30:33, 63:66]  # of the ship
    assert found["x"][7, 1, 10, 21] == round(float(square.mean()))


def test_bad_stl10_files(tmp_path: Path) -> None:
    write_stl10(tmp_path, np.zeros((2, 3, 96, 96), np.uint8), [0, 1], 1)
    with pytest.raises(InputError, match="side must be a whole number that divides 96, got 31"):
        joined(stl10.stl10(tmp_path, side=31))
    (tmp_path / "test_y.bin").write_bytes(b"\x00")
    with pytest.raises(InputError, match=r"test_y.bin' must have labels from 1 to 10, got 0"):
        joined(stl10.stl10(tmp_path))
    (tmp_path / "train_y.bin").write_bytes(b"\x01\x01")
    with pytest.raises(InputError, match=r"train_X.bin' is cut off"):
        joined(stl10.stl10(tmp_path))
    (tmp_path / "train_y.bin").write_bytes(b"")
    with pytest.raises(InputError, match=r"train_X.bin' must end after 0 examples"):
        joined(stl10.stl10(tmp_path))


@pytest.mark.parametrize("end", ["", ".gz"])
@pytest.mark.parametrize("file", ["images-idx3", "labels-idx1"])
@settings(max_examples=60, deadline=None)
@given(**DAMAGE)
def test_damaged_idx_files(end: str, file: str, at: float, flip: int | None) -> None:
    with tempfile.TemporaryDirectory() as name:
        for prefix in ("train", "t10k"):
            write_idx(
                Path(name), prefix, np.arange(8, dtype=np.uint8).reshape(2, 2, 2), [0, 1], end
            )
        path = Path(name) / f"t10k-{file}-ubyte{end}"
        path.write_bytes(damaged(path.read_bytes(), at, flip))
        try:
            found = joined(idx.mnist(name))
        except InputError:
            return
        assert found["x"].shape[:2] == (4, 1)
        assert found["y"].max() < 10
        if end:  # gzip's checksum notices everything that matters
            np.testing.assert_array_equal(found["x"].ravel(), [*range(8)] * 2)
            assert found["y"].tolist() == [0, 1, 0, 1]
