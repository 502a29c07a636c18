"""idx, CIFAR and STL-10 files that the tests write themselves, read back value by value, whole and damaged."""

import gzip
import io
import pickle
import struct
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtailor.data.blocks import Block
from fedtailor.data.holders import Array
from fedtailor.data.readers import cifar, idx, pickled, stl10
from fedtailor.errors import InputError

RNG = np.random.default_rng(5)


def joined(blocks: Iterable[Block]) -> dict[str, Array]:
    """All blocks of a set without clients, end to end."""
    found = list(blocks)
    assert all(block.client == "" for block in found)
    return {name: np.concatenate([block.columns[name] for block in found]) for name in found[0].columns}


def idx_bytes(array: Array) -> bytes:
    return struct.pack(f">{1 + array.ndim}I", 2048 + array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


def write_idx(folder: Path, prefix: str, images: Array, labels: Any, end: str = "") -> None:
    for what, array in (("images-idx3", images), ("labels-idx1", np.asarray(labels))):
        raw = idx_bytes(array)
        (folder / f"{prefix}-{what}-ubyte{end}").write_bytes(gzip.compress(raw) if end else raw)


@pytest.mark.parametrize("end", ["", ".gz"])
def test_mnist(tmp_path: Path, end: str) -> None:
    images = RNG.integers(0, 256, (5, 28, 28), np.uint8)
    write_idx(tmp_path, "train", images[:3], [7, 0, 9], end)
    write_idx(tmp_path, "t10k", images[3:], [1, 2], end)
    found = joined(idx.mnist(tmp_path))
    np.testing.assert_array_equal(found["x"], images[:, None])
    assert found["x"].dtype == found["y"].dtype == np.uint8
    assert found["y"].tolist() == [7, 0, 9, 1, 2]
    assert found["testing"].tolist() == [False, False, False, True, True]


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


@pytest.mark.parametrize(("variant", "classes"), [("byclass", 62), ("bymerge", 47), ("balanced", 47), ("digits", 10)])
def test_the_variants_of_emnist_know_their_classes(tmp_path: Path, variant: str, classes: int) -> None:
    image = np.zeros((1, 28, 28), np.uint8)
    for name in ("train", "test"):
        write_idx(tmp_path, f"emnist-{variant}-{name}", image, [classes - 1])
    assert joined(idx.emnist(tmp_path, variant))["y"].tolist() == [classes - 1] * 2
    write_idx(tmp_path, f"emnist-{variant}-test", image, [classes])
    with pytest.raises(InputError, match=f"test-labels.*labels from 0 to {classes - 1}, got {classes} to {classes}"):
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
def test_bad_idx_files_are_refused_by_name(tmp_path: Path, damage: Callable[[bytes], bytes], sentence: str) -> None:
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
    with pytest.raises(InputError, match=r"must hold the files train-images-idx3-ubyte, train-labels-idx1-ubyte or"):
        joined(idx.mnist(tmp_path))
    with pytest.raises(InputError, match="There is no file"):
        joined(idx.mnist(tmp_path / "nowhere"))
    with pytest.raises(InputError, match="no variant 'leters'; did you mean letters"):
        joined(idx.emnist(tmp_path, "leters"))


def python2_pickle(batch: dict[str, Any]) -> bytes:
    """A batch as the published files have it: protocol 2 of Python 2, whose strings are bytes."""

    def text(value: bytes) -> bytes:
        return b"T" + struct.pack("<I", len(value)) + value

    def whole(value: int) -> bytes:
        return b"J" + struct.pack("<i", value)

    def array(value: Array) -> bytes:
        made = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(" + whole(0) + b"t" + text(b"b") + b"tR"
        kind = b"cnumpy\ndtype\n(" + text(b"u1") + whole(0) + whole(1) + b"tR("
        kind += whole(3) + text(b"|") + b"NNN" + whole(-1) + whole(-1) + whole(0) + b"tb"
        shape = b"(" + b"".join(whole(size) for size in value.shape) + b"t"
        return made + b"(" + whole(1) + shape + kind + b"\x89" + text(value.tobytes()) + b"tb"

    def entry(value: Any) -> bytes:
        if isinstance(value, list):
            return b"](" + b"".join(text(v) if isinstance(v, bytes) else whole(v) for v in value) + b"e"
        return array(value) if isinstance(value, np.ndarray) else text(value)

    return b"\x80\x02}(" + b"".join(text(key.encode()) + entry(value) for key, value in batch.items()) + b"u."


def python3_pickle(protocol: int) -> Callable[[dict[str, Any]], bytes]:
    return lambda batch: pickle.dumps(batch, protocol)


PICKLES = [python2_pickle, *(python3_pickle(protocol) for protocol in (2, 3, 4, 5))]


def batch10(count: int) -> dict[str, Any]:
    images = RNG.integers(0, 256, (count, 3072), np.uint8)
    labels = RNG.integers(0, 10, count).tolist()
    return {"batch_label": b"some batch", "labels": labels, "data": images, "filenames": [b"a.png"] * count}


def write_cifar10(folder: Path, dump: Callable[[dict[str, Any]], bytes]) -> tuple[Array, list[int]]:
    """Six batches of two images each in a new folder; all images and labels in the order train, test."""
    folder.mkdir()
    images, labels = [], []
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        batch = batch10(2)
        (folder / name).write_bytes(dump(batch))
        binary = b"".join(
            bytes([label]) + row.tobytes() for label, row in zip(batch["labels"], batch["data"], strict=True)
        )
        (folder / f"{name}.bin").write_bytes(binary)
        images.append(batch["data"])
        labels += batch["labels"]
    return np.concatenate(images).reshape(-1, 3, 32, 32), labels


def archived(path: Path, files: Iterable[Path], inside: str) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for file in files:
            archive.add(file, f"{inside}/{file.name}")
    return path


@pytest.mark.parametrize("dump", PICKLES)
def test_cifar10_in_all_its_wrappings(tmp_path: Path, dump: Callable[[dict[str, Any]], bytes]) -> None:
    images, labels = write_cifar10(tmp_path / "batches", dump)
    files = sorted((tmp_path / "batches").iterdir(), reverse=True)  # not the canonical order
    binaries = [file for file in files if file.suffix]
    singles = [tmp_path / "batches" / name for name in cifar.TEN]
    ways: list[Any] = [
        tmp_path,  # one folder above
        archived(tmp_path / "cifar-10-python.tar.gz", set(files) - set(binaries), "cifar-10-batches-py"),
        archived(tmp_path / "cifar-10-binary.tar.gz", binaries, "cifar-10-batches-bin"),
        singles,
    ]
    for way in ways:
        found = joined(cifar.cifar10(way))
        np.testing.assert_array_equal(found["x"], images)
        assert found["y"].tolist() == labels
        assert found["y"].dtype == np.uint8
        assert found["testing"].tolist() == [False] * 10 + [True] * 2
    for file in set(files) - set(binaries):
        file.unlink()
    np.testing.assert_array_equal(joined(cifar.cifar10(tmp_path / "batches"))["x"], images)  # binary files alone


def test_cifar100_keeps_the_coarse_labels(tmp_path: Path) -> None:
    images = RNG.integers(0, 256, (4, 3072), np.uint8)
    fine, coarse = [99, 0, 45, 7], [19, 4, 0, 11]
    rows = np.concatenate([np.array([coarse, fine], np.uint8).T, images], axis=1)
    (tmp_path / "python").mkdir()
    (tmp_path / "binary").mkdir()
    for name, at in (("train", slice(0, 3)), ("test", slice(3, 4))):
        batch = {"data": images[at], "fine_labels": fine[at], "coarse_labels": coarse[at], "filenames": []}
        (tmp_path / "python" / name).write_bytes(python2_pickle(batch))
        (tmp_path / "binary" / f"{name}.bin").write_bytes(rows[at].tobytes())
    for folder in ("python", "binary"):
        found = joined(cifar.cifar100(tmp_path / folder))
        np.testing.assert_array_equal(found["x"].reshape(4, -1), images)
        assert (found["y"].tolist(), found["coarse"].tolist()) == (fine, coarse)
        assert found["testing"].tolist() == [False, False, False, True]


@pytest.mark.parametrize("protocol", [2, 5])
def test_images_may_lie_column_by_column(tmp_path: Path, protocol: int) -> None:
    batch = batch10(3)
    batch["data"] = np.asfortranarray(batch["data"])
    (tmp_path / "test_batch").write_bytes(pickle.dumps(batch, protocol))
    found = joined(cifar.cifar10(tmp_path / "test_batch"))
    np.testing.assert_array_equal(found["x"].reshape(3, -1), batch["data"])


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return Path("was_run").touch, ()


@pytest.mark.parametrize("held", [Evil(), {"data": Evil(), "labels": [1]}, {"labels": [Evil()]}])
@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_cannot_run_anything(
    tmp_path: Path, held: object, protocol: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("data_batch_1").write_bytes(pickle.dumps(held, protocol))
    with pytest.raises(InputError, match=r"'data_batch_1' is no batch of CIFAR-10: it (names|uses) .*not need"):
        joined(cifar.cifar10("data_batch_1"))
    assert not Path("was_run").exists()


def test_a_pickle_cannot_ask_for_much_memory() -> None:
    with pytest.raises(InputError, match="numbers more things than it can hold"):
        pickled.read_pickle(b"\x80\x02}r\xff\xff\xff\x7f.")


BAD_BATCHES: list[tuple[Any, str]] = [
    ([1, 2], "holds no dict"),
    ({"data": np.zeros((1, 3072), np.uint8)}, "it has no labels"),
    ({"data": np.zeros((1, 3072)), "labels": [0]}, "not of unsigned bytes"),
    ({"data": np.zeros((1, 3071), np.uint8), "labels": [0]}, "images of 3072 bytes"),
    ({"data": np.zeros((2, 3072), np.uint8), "labels": [0]}, "equally long columns"),
    ({"data": np.zeros((1, 3072), np.uint8), "labels": [10]}, "labels from 0 to 9, got 10 to 10"),
    ({"data": np.zeros((1, 3072), np.uint8), "labels": ["cat"]}, "whole numbers as labels"),
    ({"data": [1], "labels": [0]}, "something else in place of an array"),
    ({"data": np.zeros((1, 3072), np.uint8), "labels": 3}, "a list of labels"),
]


@pytest.mark.parametrize(("batch", "sentence"), BAD_BATCHES)
def test_bad_batches_are_refused_by_name(tmp_path: Path, batch: Any, sentence: str) -> None:
    (tmp_path / "data_batch_1").write_bytes(pickle.dumps(batch, 4))
    with pytest.raises(InputError, match=sentence) as caught:
        joined(cifar.cifar10(tmp_path / "data_batch_1"))
    assert "data_batch_1" in str(caught.value)


def test_other_bad_cifar_files(tmp_path: Path) -> None:
    (tmp_path / "test_batch.bin").write_bytes(bytes(3073 * 2 - 1))
    with pytest.raises(InputError, match=r"test_batch.bin' is cut off"):
        joined(cifar.cifar10(tmp_path / "test_batch.bin"))
    (tmp_path / "some.tar.gz").write_bytes(gzip.compress(b"no archive"))
    with pytest.raises(InputError, match=r"some.tar.gz' cannot be read as a folder or a .tar.gz archive"):
        joined(cifar.cifar10(tmp_path / "some.tar.gz"))
    with pytest.raises(InputError, match="There is no file"):
        joined(cifar.cifar10(tmp_path / "data_batch_3"))
    with pytest.raises(InputError, match=r"must hold the files train, test or train.bin, test.bin"):
        joined(cifar.cifar100(tmp_path))


def write_stl10(folder: Path, images: Array, labels: list[int], train: int) -> None:
    """Images [n, 3, 96, 96] as STL-10 has them: each channel column by column."""
    folder.mkdir(exist_ok=True)
    for name, at in (("train", slice(0, train)), ("test", slice(train, None))):
        (folder / f"{name}_X.bin").write_bytes(images[at].swapaxes(2, 3).tobytes())
        (folder / f"{name}_y.bin").write_bytes(bytes(label + 1 for label in labels[at]))


def test_stl10_is_upright(tmp_path: Path) -> None:
    images = RNG.integers(0, 256, (4, 3, 96, 96), np.uint8)
    write_stl10(tmp_path / "stl10_binary", images, [9, 0, 7, 2], 3)
    archive = archived(tmp_path / "stl10_binary.tar.gz", (tmp_path / "stl10_binary").iterdir(), "stl10_binary")
    for way in (tmp_path, tmp_path / "stl10_binary", archive):
        found = joined(stl10.stl10(way))
        np.testing.assert_array_equal(found["x"], images)
        assert found["y"].tolist() == [9, 0, 7, 2]
        assert found["testing"].tolist() == [False, False, False, True]


def test_stl10_as_cifar10(tmp_path: Path) -> None:
    cifar_names = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
    images = RNG.integers(0, 256, (10, 3, 96, 96), np.uint8)
    write_stl10(tmp_path, images, list(range(10)), 9)
    found = joined(stl10.stl10(tmp_path, like="cifar10", side=32))
    named = [cifar_names[label] for label in found["y"]]
    assert named == ["airplane", "bird", "automobile", "cat", "deer", "dog", "horse", "ship", "truck"]
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


def damaged(raw: bytes, at: float, flip: int | None) -> bytes:
    """Bytes cut off at a place, or with some bits flipped there."""
    place = int(at * len(raw))
    return raw[:place] if flip is None else raw[:place] + bytes([raw[place] ^ flip]) + raw[place + 1 :]


def good_or_refused(blocks: Iterator[Block], shape: tuple[int, ...], classes: int) -> dict[str, Array] | None:
    """Either proper images and labels or a sentence; any other exception fails the test."""
    try:
        found = joined(blocks)
    except InputError:
        return None
    assert found["x"].dtype == np.uint8
    assert found["x"].shape[1:] == shape
    assert found["y"].max() < classes
    assert len(found["x"]) == len(found["y"]) == len(found["testing"])
    return found


DAMAGE = {"at": st.floats(0, 1, exclude_max=True), "flip": st.none() | st.integers(1, 255)}


@pytest.mark.parametrize("end", ["", ".gz"])
@pytest.mark.parametrize("file", ["images-idx3", "labels-idx1"])
@settings(max_examples=60, deadline=None)
@given(**DAMAGE)
def test_damaged_idx_files(end: str, file: str, at: float, flip: int | None) -> None:
    with tempfile.TemporaryDirectory() as name:
        for prefix in ("train", "t10k"):
            write_idx(Path(name), prefix, np.arange(8, dtype=np.uint8).reshape(2, 2, 2), [0, 1], end)
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


BATCH = batch10(1)


@pytest.mark.parametrize("dump", PICKLES)
@settings(max_examples=60, deadline=None)
@given(**DAMAGE, words=st.booleans())
def test_damaged_pickles(dump: Callable[[dict[str, Any]], bytes], at: float, flip: int | None, words: bool) -> None:
    raw = dump(BATCH)
    if words:  # nearly all bytes are pixels; hit the words around them as well
        start = raw.index(BATCH["data"].tobytes()[:1]) if dump is not python2_pickle else 200
        at = at * min(400, start + 200) / len(raw)
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "data_batch_1"
        path.write_bytes(damaged(raw, at, flip))
        good_or_refused(cifar.cifar10(path), (3, 32, 32), 10)


@settings(max_examples=60, deadline=None)
@given(**DAMAGE)
def test_damaged_archives(at: float, flip: int | None) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name in cifar.HUNDRED:
            member = tarfile.TarInfo(f"cifar-100-binary/{name}.bin")
            member.size = 3074
            archive.addfile(member, io.BytesIO(bytes(3074)))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cifar-100-binary.tar.gz"
        path.write_bytes(damaged(packed.getvalue(), at, flip))
        found = good_or_refused(cifar.cifar100(path), (3, 32, 32), 100)
        assert found is None or (len(found["x"]) == 2 and not any(found[name].any() for name in ("x", "y", "coarse")))
