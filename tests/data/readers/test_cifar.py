"""CIFAR's batches, pickled and binary, that the tests write themselves, read back value by value,
whole and damaged.
"""

import gzip
import io
import pickle
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtailor.data.readers import cifar, pickled
from fedtailor.errors import InputError
from published_formats import batch10, python2_pickle, write_cifar10
from reading import DAMAGE, archived, damaged, good_or_refused, joined

RNG = np.random.default_rng(5)


def python3_pickle(protocol: int) -> Callable[[dict[str, Any]], bytes]:
    return lambda batch: pickle.dumps(batch, protocol)


PICKLES = [python2_pickle, *(python3_pickle(protocol) for protocol in (2, 3, 4, 5))]


@pytest.mark.parametrize("dump", PICKLES)
def test_cifar10_in_all_its_wrappings(
    tmp_path: Path, dump: Callable[[dict[str, Any]], bytes]
) -> None:
    images, labels = write_cifar10(tmp_path / "batches", dump)
    files = sorted((tmp_path / "batches").iterdir(), reverse=True)  # not the canonical order
    binaries = [file for file in files if file.suffix]
    singles = [tmp_path / "batches" / name for name in cifar.CIFAR10_FILES]
    ways: list[Any] = [
        tmp_path,  # one folder above
        archived(
            tmp_path / "cifar-10-python.tar.gz", set(files) - set(binaries), "cifar-10-batches-py"
        ),
        archived(tmp_path / "cifar-10-binary.tar.gz", binaries, "cifar-10-batches-bin"),
        singles,
    ]
    for way in ways:
        found = joined(cifar.cifar10(way))
        np.testing.assert_array_equal(found["x"], images)
        assert found["y"].tolist() == labels
        assert found["y"].dtype == np.uint8
        assert found["is_test"].tolist() == [False] * 10 + [True] * 2
    for file in set(files) - set(binaries):
        file.unlink()
    np.testing.assert_array_equal(
        joined(cifar.cifar10(tmp_path / "batches"))["x"], images
    )  # binary files alone


def test_cifar100_keeps_the_coarse_labels(tmp_path: Path) -> None:
    images = RNG.integers(0, 256, (4, 3072), np.uint8)
    fine, coarse = [99, 0, 45, 7], [19, 4, 0, 11]
    rows = np.concatenate([np.array([coarse, fine], np.uint8).T, images], axis=1)
    (tmp_path / "python").mkdir()
    (tmp_path / "binary").mkdir()
    for name, at in (("train", slice(0, 3)), ("test", slice(3, 4))):
        batch = {
            "data": images[at],
            "fine_labels": fine[at],
            "coarse_labels": coarse[at],
            "filenames": [],
        }
        (tmp_path / "python" / name).write_bytes(python2_pickle(batch))
        (tmp_path / "binary" / f"{name}.bin").write_bytes(rows[at].tobytes())
    for folder in ("python", "binary"):
        found = joined(cifar.cifar100(tmp_path / folder))
        np.testing.assert_array_equal(found["x"].reshape(4, -1), images)
        assert (found["y"].tolist(), found["coarse"].tolist()) == (fine, coarse)
        assert found["is_test"].tolist() == [False, False, False, True]


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
    with pytest.raises(
        InputError, match=r"'data_batch_1' is not a batch of CIFAR-10: it (names|uses) .*not need"
    ):
        joined(cifar.cifar10("data_batch_1"))
    assert not Path("was_run").exists()


def test_a_pickle_cannot_ask_for_much_memory() -> None:
    with pytest.raises(InputError, match="numbers more objects than it can hold"):
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
    with pytest.raises(
        InputError, match=r"some.tar.gz' cannot be read as a folder or a .tar.gz archive"
    ):
        joined(cifar.cifar10(tmp_path / "some.tar.gz"))
    with pytest.raises(InputError, match="There is no file"):
        joined(cifar.cifar10(tmp_path / "data_batch_3"))
    with pytest.raises(InputError, match=r"must hold the files train, test or train.bin, test.bin"):
        joined(cifar.cifar100(tmp_path))


BATCH = batch10(1)


@pytest.mark.parametrize("dump", PICKLES)
@settings(max_examples=60, deadline=None)
@given(**DAMAGE, words=st.booleans())
def test_damaged_pickles(
    dump: Callable[[dict[str, Any]], bytes], at: float, flip: int | None, words: bool
) -> None:
    raw = dump(BATCH)
    if words:  # nearly all bytes are pixels; hit the words around them as well
        start = raw.index(BATCH["data"].tobytes()[:1]) if dump is not python2_pickle else 200
        at = at * min(400, start + 200) / len(raw)
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "data_batch_1"
        path.write_bytes(damaged(raw, at, flip))
        found = good_or_refused(cifar.cifar10(path), (3, 32, 32), 10)
        assert found is None or (len(found["x"]) == 1 and not found["is_test"].any())


@settings(max_examples=60, deadline=None)
@given(**DAMAGE)
def test_damaged_archives(at: float, flip: int | None) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name in cifar.CIFAR100_FILES:
            member = tarfile.TarInfo(f"cifar-100-binary/{name}.bin")
            member.size = 3074
            archive.addfile(member, io.BytesIO(bytes(3074)))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cifar-100-binary.tar.gz"
        path.write_bytes(damaged(packed.getvalue(), at, flip))
        found = good_or_refused(cifar.cifar100(path), (3, 32, 32), 100)
        assert found is None or (
            len(found["x"]) == 2 and not any(found[name].any() for name in ("x", "y", "coarse"))
        )
