from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedtailor.data import from_arrays, from_npz
from fedtailor.data.builtin.npz import read_npz
from fedtailor.errors import InputError


def arrays() -> dict[str, Any]:
    draws = np.random.default_rng(0)
    return {
        "x": draws.normal(size=(60, 3)),
        "y": draws.integers(0, 2, 60),
        "client": np.arange(60) % 6,
    }


def test_a_file_is_what_its_arrays_are(tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", **arrays())
    made, direct = (
        from_npz(tmp_path / "mine.npz", server=0.1, seed=3),
        from_arrays(**arrays(), server=0.1, seed=3),
    )
    assert made.name == "mine"
    assert made.classes == 2
    assert np.array_equal(made.clients.x, direct.clients.x)
    for name, split in direct.clients.splits.items():
        assert np.array_equal(split.index, made.clients.splits[name].index)
    assert made.server is not None
    assert len(made.server.x) == 6


def test_the_server_may_bring_its_own(tmp_path: Path) -> None:
    np.savez(
        tmp_path / "mine.npz",
        **arrays(),
        x_server=np.full((4, 3), 9.0),
        y_server=np.array([0, 1, 0, 1]),
    )
    made = from_npz(tmp_path / "mine.npz")
    assert made.server is not None
    assert np.array_equal(made.server.x, np.full((4, 3), 9.0))
    np.savez(tmp_path / "half.npz", **arrays(), x_server=np.full((4, 3), 9.0))
    with pytest.raises(InputError, match="must hold arrays x_server, y_server"):
        from_npz(tmp_path / "half.npz")


@pytest.mark.parametrize("compressed", [False, True])
def test_damaged_files_are_refused(tmp_path: Path, compressed: bool) -> None:
    path = tmp_path / "mine.npz"
    (np.savez_compressed if compressed else np.savez)(path, **arrays())
    whole = path.read_bytes()
    for damaged in (
        whole[: len(whole) // 2],
        whole[:200] + b"!" * 200 + whole[400:],
        b"not a zip file",
        b"",
    ):
        path.write_bytes(damaged)
        with pytest.raises(InputError, match=r"cannot be read as an \.npz|must be an \.npz file"):
            read_npz(path, ("x",))


@pytest.mark.parametrize("label", [2**62, 2**63])
def test_labels_that_no_classes_can_have_are_refused(label: int, tmp_path: Path) -> None:
    given = arrays()
    given["y"] = np.full(len(given["y"]), label, np.uint64)
    np.savez(tmp_path / "mine.npz", **given)
    with pytest.raises(
        InputError,
        match=r"^mine: labels must be numbers of classes from 0 to at most 2147483647, got [49]",
    ):
        from_npz(tmp_path / "mine.npz")


def test_missing_and_pickled_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="There is no file"):
        read_npz(tmp_path / "no.npz", ("x",))
    np.savez(tmp_path / "objects.npz", x=np.array([{}, []], dtype=object))
    with pytest.raises(InputError, match="'x' is of Python objects, which are never loaded"):
        read_npz(tmp_path / "objects.npz", ("x",))
    np.savez(tmp_path / "other.npz", a=np.ones(3))
    with pytest.raises(InputError, match="must hold arrays x, y, but has only a"):
        read_npz(tmp_path / "other.npz", ("x", "y"))
