from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedtailor.data.holders import Array
from fedtailor.data.raw import SHAPES, folder, raw
from fedtailor.errors import InputError

REAL = {"mnist": (60_000, 10_000), "cifar10": (50_000, 10_000)}


def images_of(name: str, train: int = 30, test: int = 10, seed: int = 0) -> dict[str, Array]:
    """Arrays like those of a data set, with random images, no two alike, and every label about as often."""
    draws, arrays = np.random.default_rng(seed), {}
    for part, count in (("train", train), ("test", test)):
        arrays[f"x_{part}"] = draws.integers(0, 256, (count, *SHAPES[name]), np.uint8)
        arrays[f"y_{part}"] = draws.permutation(np.arange(count) % 10).astype(np.uint8)
    return arrays


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder where data is looked for."""
    monkeypatch.setenv("FEDTAILOR_DATA", str(tmp_path))
    return tmp_path


def test_the_folder_is_named_or_in_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("FEDTAILOR_DATA", str(tmp_path / "here"))
    assert folder() == tmp_path / "here"
    monkeypatch.delenv("FEDTAILOR_DATA")
    assert folder() == tmp_path / ".cache" / "fedtailor-data"


def test_mnist_gets_a_channel(place: Path) -> None:
    arrays = images_of("mnist")
    np.savez_compressed(place / "mnist.npz", **arrays)  # type: ignore[arg-type]
    data = raw("mnist")
    assert data.x.shape == (40, 1, 28, 28)
    np.testing.assert_array_equal(data.x[:30, 0], arrays["x_train"])
    np.testing.assert_array_equal(data.x[30:, 0], arrays["x_test"])
    np.testing.assert_array_equal(data.y, [*arrays["y_train"], *arrays["y_test"]])
    np.testing.assert_array_equal(data.testing, [False] * 30 + [True] * 10)
    assert [str(column.dtype) for column in (data.x, data.y, data.testing)] == ["uint8", "int64", "bool"]
    assert (data.name, data.classes, data.scale) == ("mnist", 10, 1 / 255)


def test_cifar_channels_come_first_in_memory_too(place: Path) -> None:
    arrays = images_of("cifar10")
    np.savez(place / "cifar10.npz", **arrays)  # type: ignore[arg-type]
    data = raw("cifar10")
    assert data.x.shape == (40, 3, 32, 32)
    assert data.x.flags.c_contiguous
    for channel in range(3):
        np.testing.assert_array_equal(data.x[:30, channel], arrays["x_train"][..., channel])


def test_a_file_is_read_once_until_it_changes_and_nobody_can_write_into_it(place: Path) -> None:
    np.savez(place / "mnist.npz", **images_of("mnist"))  # type: ignore[arg-type]
    data = raw("mnist")
    assert raw("mnist").x is data.x
    for column in (data.x, data.y, data.testing):
        with pytest.raises(ValueError, match="read-only"):
            column[0] = 0
    np.savez(place / "mnist.npz", **images_of("mnist", train=20))  # type: ignore[arg-type]
    assert len(raw("mnist").x) == 30


def without(key: str) -> Callable[[dict[str, Array]], dict[str, Array]]:
    return lambda arrays: {name: array for name, array in arrays.items() if name != key}


def changed(key: str, change: Callable[[Array], Any]) -> Callable[[dict[str, Array]], dict[str, Array]]:
    return lambda arrays: arrays | {key: np.asarray(change(arrays[key]))}


BAD: list[tuple[Callable[[dict[str, Array]], dict[str, Array]], str]] = [
    (without("y_test"), "must hold arrays x_train, y_train, x_test, y_test, but has only x_train, y_train, x_test"),
    (changed("x_train", lambda x: x[:, 1:]), r"x_train and y_train must be images .*, got \[30, 27, 28\] of uint8"),
    (changed("x_test", lambda x: x / 255), r"x_test and y_test must be images .*, got \[10, 28, 28\] of float64"),
    (changed("x_test", lambda x: x[0, 0, 0]), r"x_test and y_test must be images .*, got \[\] of uint8"),
    (changed("y_train", lambda y: y[:-1]), r"x_train and y_train must be images .* and \[29\] of uint8"),
    (changed("y_train", lambda y: y[:, None]), r"x_train and y_train must be images .* and \[30, 1\] of uint8"),
    (changed("y_test", lambda y: y / 1), "x_test and y_test must be images .* of float64"),
    (changed("y_test", lambda y: y + 1), "y_test must be labels from 0 to 9, got 1 to 10"),
    (changed("y_test", lambda y: y.astype(int) - 1), "y_test must be labels from 0 to 9, got -1 to 8"),
    (lambda arrays: arrays | {"x_test": arrays["x_test"][:0], "y_test": arrays["y_test"][:0]}, "must hold images"),
]


@pytest.mark.parametrize(("change", "sentence"), BAD, ids=[f"{i}" for i in range(len(BAD))])
def test_a_foreign_file_is_refused_with_its_name_and_what_to_do(
    place: Path, change: Callable[[dict[str, Array]], dict[str, Array]], sentence: str
) -> None:
    np.savez(place / "mnist.npz", **change(images_of("mnist")))  # type: ignore[arg-type]
    with pytest.raises(InputError, match=sentence) as refused:
        raw("mnist")
    assert_helpful(refused.value, place)


def assert_helpful(refused: InputError, place: Path) -> None:
    said = str(refused)
    assert said.startswith("mnist: ")
    assert f"'{place / 'mnist.npz'}'" in said
    assert "put one there with x_train, y_train, x_test, y_test" in said
    assert said.endswith("or set FEDTAILOR_DATA to the folder that has it.")
    assert "\n" not in said


def test_a_missing_a_damaged_and_another_kind_of_file_are_refused_helpfully(place: Path) -> None:
    path = place / "mnist.npz"
    with pytest.raises(InputError, match="there is no file") as refused:
        raw("mnist")
    assert_helpful(refused.value, place)
    np.savez(path, **images_of("mnist"))  # type: ignore[arg-type]
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], b"", b"no archive at all", whole[:2000] + b"?" + whole[2001:]):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"cannot be read as an \.npz file of plain arrays") as refused:
            raw("mnist")
        assert_helpful(refused.value, place)


def test_pickled_objects_are_refused(place: Path) -> None:
    np.savez(place / "mnist.npz", **images_of("mnist") | {"y_test": np.array([{}] * 10)})  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"cannot be read as an \.npz file of plain arrays"):
        raw("mnist")


def test_other_names_are_refused() -> None:
    with pytest.raises(InputError, match=r"There are no images 'cifar'; did you mean cifar10\?"):
        raw("cifar")


@pytest.mark.parametrize("name", REAL)
def test_the_real_data_have_their_known_counts(name: str) -> None:
    if not (folder() / f"{name}.npz").exists():
        pytest.skip(f"{name} is not on this machine")
    data = raw(name)
    assert ((~data.testing).sum(), data.testing.sum()) == REAL[name]
    if name == "cifar10":
        assert (np.bincount(data.y) == 6000).all()
        assert (np.bincount(data.y[data.testing]) == 1000).all()
    else:
        np.testing.assert_array_equal(np.bincount(data.y), [6903, 7877, 6990, 7141, 6824, 6313, 6876, 7293, 6825, 6958])
