"""Your own data: Parquet, a folder for each client, and rows of named values."""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtailor.data.examples import Array
from fedtailor.data.readers.folders import read_array_folders, read_image_folders
from fedtailor.data.readers.parquet import read_parquet
from fedtailor.data.readers.rows import read_rows
from fedtailor.errors import InputError
from reading import by_client

RNG = np.random.default_rng(7)
SCATTERED = ["b", "a", "b", "c", "a", "b"]


def write_parquet(path: Path, columns: dict[str, Any], group: int = 2) -> Path:
    arrow, files = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    files.write_table(arrow.table(columns), path, row_group_size=group)
    return path


@pytest.mark.parametrize("held", [1, 3, 1_000_000])
@pytest.mark.parametrize("group", [1, 2, 10])
def test_parquet_brings_scattered_clients_together(tmp_path: Path, held: int, group: int) -> None:
    values = [[float(row), row + 0.5] for row in range(6)]
    path = write_parquet(
        tmp_path / "p",
        {"who": SCATTERED, "in": values, "out": [0, 1, 2, 3, 4, 5], "w": [9] * 6},
        group,
    )
    found = by_client(
        read_parquet(path, x="in", y="out", client="who", extra_columns=("w",), max_rows=held)
    )
    assert list(found) == ["b", "a", "c"]  # by their first rows
    assert found["b"]["x"].tolist() == [[0, 0.5], [2, 2.5], [5, 5.5]]
    assert (found["a"]["y"].tolist(), found["b"]["y"].tolist()) == ([1, 4], [0, 2, 5])
    assert found["c"]["w"].tolist() == [9]


@pytest.fixture
def groups_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by the number of each row group that is read for more than its clients."""
    files = pytest.importorskip("pyarrow.parquet")
    whole, read = files.ParquetFile.read_row_group, list[int]()

    def noted(self: Any, number: int, columns: list[str]) -> Any:
        read.extend([number] if columns != ["client"] else [])
        return whole(self, number, columns=columns)

    monkeypatch.setattr(files.ParquetFile, "read_row_group", noted)
    return read


def test_parquet_reads_a_sorted_file_once(tmp_path: Path, groups_read: list[int]) -> None:
    path = write_parquet(
        tmp_path / "p", {"client": [0, 0, 1, 1, 2, 2], "x": range(6), "y": [0] * 6}
    )
    assert list(by_client(read_parquet(path, max_rows=2))) == ["0", "1", "2"]
    assert groups_read == [0, 1, 2]


def test_parquet_reads_a_scattered_file_again_rather_than_hold_it(
    tmp_path: Path, groups_read: list[int]
) -> None:
    path = write_parquet(tmp_path / "p", {"client": SCATTERED, "x": range(6), "y": [0] * 6})
    by_client(read_parquet(path, max_rows=3))  # b has 3 rows; a and c have 3 together
    assert groups_read == [0, 1, 2, 0, 1, 2]


def test_parquet_keeps_the_order_of_rows(tmp_path: Path) -> None:
    who = RNG.integers(0, 3, 300)
    path = write_parquet(tmp_path / "p", {"client": who, "x": range(300), "y": [0] * 300}, 50)
    for client, columns in by_client(read_parquet(path)).items():
        assert columns["x"].tolist() == np.flatnonzero(who == int(client)).tolist()


def test_parquet_columns_side_by_side_and_nested_lists(tmp_path: Path) -> None:
    images = RNG.integers(0, 256, (2, 1, 2, 3), np.uint8)
    columns = {
        "client": ["a", "a"],
        "p": [1.0, 2.0],
        "q": [3.0, 4.0],
        "y": [0, 1],
        "image": images.tolist(),
    }
    path = write_parquet(tmp_path / "p", columns)
    assert by_client(read_parquet(path, x=("p", "q")))["a"]["x"].tolist() == [[1, 3], [2, 4]]
    np.testing.assert_array_equal(by_client(read_parquet(path, x="image"))["a"]["x"], images)


BAD_COLUMNS: list[tuple[dict[str, Any], str]] = [
    ({"client": ["a"], "x": [1.0]}, "must have a column 'y', but has client, x"),
    ({"client": ["a"], "x": [float("nan")], "y": [0]}, "column 'x' has a NaN"),
    (
        {"client": ["a", "a"], "x": [[1.0], [1.0, 2.0]], "y": [0, 0]},
        "lists of the same length in column 'x'",
    ),
    (
        {"client": ["a", "a", "a"], "x": [[1.0], [1.0], [1.0, 2.0]], "y": [0] * 3},
        "lists of the same length",
    ),
    ({"client": ["a"], "x": ["text"], "y": [0]}, "numbers in column 'x', got string"),
    ({"client": ["a", "b"], "x": [1.0, None], "y": [0, 0]}, "no empty values, but column 'x'"),
    ({"client": [1.5], "x": [1.0], "y": [0]}, "whole numbers or names as 'client', got 1.5"),
    ({"client": [None], "x": [1.0], "y": [0]}, "whole numbers or names as 'client', got None"),
    ({"client": [], "x": [], "y": []}, "must have rows"),
]


@pytest.mark.parametrize(("columns", "sentence"), BAD_COLUMNS)
def test_bad_parquet_files_are_refused_by_name(
    tmp_path: Path, columns: dict[str, Any], sentence: str
) -> None:
    path = write_parquet(tmp_path / "p.parquet", columns)
    with pytest.raises(InputError, match=sentence) as caught:
        by_client(read_parquet(path))
    assert "p.parquet" in str(caught.value)


def test_parquet_that_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "p").write_bytes(b"PAR1 or not")
    with pytest.raises(InputError, match="p' cannot be read as a Parquet file"):
        by_client(read_parquet(tmp_path / "p"))
    with pytest.raises(InputError, match="There is no file"):
        by_client(read_parquet(tmp_path / "none"))
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(
        InputError, match=r"needs the package pyarrow: pip install 'fedtailor\[parquet\]'"
    ):
        by_client(read_parquet(tmp_path / "p"))


@settings(max_examples=60, deadline=None)
@given(at=st.floats(0, 1, exclude_max=True), flip=st.none() | st.integers(1, 255))
def test_damaged_parquet_files(at: float, flip: int | None) -> None:
    with tempfile.TemporaryDirectory() as name:
        path = write_parquet(
            Path(name) / "p", {"client": ["a", "b"], "x": [[1.0, 2.0]] * 2, "y": [0, 1]}
        )
        raw = path.read_bytes()
        place = int(at * len(raw))
        path.write_bytes(
            raw[:place]
            if flip is None
            else raw[:place] + bytes([raw[place] ^ flip]) + raw[place + 1 :]
        )
        try:
            found = by_client(read_parquet(path))
        except InputError:
            return
        assert all(len(columns["x"]) == len(columns["y"]) for columns in found.values())


def write_image(path: Path, pixels: Array) -> None:
    pillow = pytest.importorskip("PIL.Image")
    path.parent.mkdir(parents=True, exist_ok=True)
    pillow.fromarray(pixels).save(path)


def test_image_folders(tmp_path: Path) -> None:
    images = RNG.integers(0, 256, (3, 4, 5, 3), np.uint8)
    for place, image in zip(
        ("bob/dog/1.png", "ann/cat/2.PNG", "ann/cow/1.png"), images, strict=True
    ):
        write_image(tmp_path / place, image)
    (tmp_path / "ann" / "cat" / "notes.txt").write_text("not an image")
    found = by_client(read_image_folders(tmp_path))
    assert list(found) == ["ann", "bob"]
    np.testing.assert_array_equal(found["ann"]["x"], images[1:].transpose(0, 3, 1, 2))
    assert (found["ann"]["y"].tolist(), found["bob"]["y"].tolist()) == (
        [0, 1],
        [2],
    )  # cat, cow, dog
    assert by_client(read_image_folders(tmp_path, channels=1))["bob"]["x"].shape == (1, 1, 4, 5)


def test_bad_image_folders(tmp_path: Path) -> None:
    write_image(tmp_path / "ann" / "cat" / "1.png", np.zeros((4, 5), np.uint8))
    write_image(tmp_path / "ann" / "cat" / "2.png", np.zeros((5, 5), np.uint8))
    with pytest.raises(
        InputError, match=r"2.png' must be 4 x 5 pixels as the others, got \(5, 5\)"
    ):
        by_client(read_image_folders(tmp_path))
    (tmp_path / "ann" / "cat" / "2.png").write_bytes(b"\x89PNG but no more")
    with pytest.raises(InputError, match=r"2.png' cannot be read as an image"):
        by_client(read_image_folders(tmp_path))
    (tmp_path / "bob" / "dog").mkdir(parents=True)
    (tmp_path / "ann" / "cat" / "2.png").unlink()
    with pytest.raises(InputError, match=r"bob' must have images as CLASS/FILE.png"):
        by_client(read_image_folders(tmp_path))
    with pytest.raises(InputError, match="There is no folder"):
        by_client(read_image_folders(tmp_path / "none"))
    with pytest.raises(InputError, match="channels must be 1"):
        by_client(read_image_folders(tmp_path, channels=2))


def test_array_folders(tmp_path: Path) -> None:
    for client, count in (("bob", 2), ("ann", 5000)):
        (tmp_path / client).mkdir()
        np.save(tmp_path / client / "x.npy", np.arange(2.0 * count).reshape(count, 2))
        np.save(tmp_path / client / "labels.npy", np.arange(count) % 3)
    blocks = list(read_array_folders(tmp_path, y="labels.npy"))
    assert [(block.client, len(block.columns["x"])) for block in blocks] == [
        ("ann", 4096),
        ("ann", 904),
        ("bob", 2),
    ]
    assert blocks[2].columns["x"].tolist() == [[0, 1], [2, 3]]
    assert not isinstance(blocks[0].columns["x"], np.memmap)
    np.testing.assert_array_equal(by_client(blocks)["ann"]["y"], np.arange(5000) % 3)


def test_bad_array_folders(tmp_path: Path) -> None:
    (tmp_path / "ann").mkdir()
    np.save(tmp_path / "ann" / "x.npy", np.array([1.0, np.nan]))
    with pytest.raises(InputError, match=r"There is no file '.*y.npy'"):
        by_client(read_array_folders(tmp_path))
    np.save(tmp_path / "ann" / "y.npy", np.array([1]))
    with pytest.raises(
        InputError, match=r"ann' must have x.npy and y.npy equally long, got \[2, 1\]"
    ):
        by_client(read_array_folders(tmp_path))
    np.save(tmp_path / "ann" / "y.npy", np.array([1, 2]))
    with pytest.raises(InputError, match="ann' must have finite numbers, but x has a NaN"):
        by_client(read_array_folders(tmp_path))
    np.save(tmp_path / "ann" / "y.npy", np.array([{}, 2], object))
    with pytest.raises(InputError, match=r"y.npy' cannot be read as a .npy file of numbers"):
        by_client(read_array_folders(tmp_path))
    np.save(tmp_path / "ann" / "y.npy", np.array(["a", "b"]))
    with pytest.raises(InputError, match=r"y.npy' must be an array of numbers"):
        by_client(read_array_folders(tmp_path))


TABLE = [
    {"who": who, "in": [row, -row], "out": row % 2, "w": 0.5} for row, who in enumerate(SCATTERED)
]


class Columned:
    """Acts like `datasets.Dataset`: rows by number, columns by name, and it notes which rows were
    decoded.
    """

    def __init__(self, table: list[dict[str, Any]]) -> None:
        self.table, self.features, self.decoded = table, dict.fromkeys(table[0]), list[int]()

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, key: int | str) -> Any:
        if isinstance(key, str):
            return [row[key] for row in self.table]
        self.decoded.append(key)
        return self.table[key]


def test_rows_by_number() -> None:
    columned = Columned(TABLE)
    for dataset in (TABLE, columned):
        found = by_client(read_rows(dataset, x="in", y="out", client="who", extra_columns=("w",)))
        assert list(found) == ["b", "a", "c"]
        assert found["b"]["x"].tolist() == [[0, 0], [2, -2], [5, -5]]
        assert (found["a"]["y"].tolist(), found["c"]["w"].tolist()) == ([1, 0], [0.5])
    assert sorted(columned.decoded) == list(range(6))  # each row once


def test_rows_that_can_only_be_gone_through() -> None:
    together = sorted(TABLE, key=lambda row: str(row["who"]))
    found = by_client(read_rows(iter(together), x="in", y="out", client="who"))
    assert found["b"]["x"].tolist() == [[0, 0], [2, -2], [5, -5]]
    with pytest.raises(InputError, match="The rows of client 'b' must be consecutive"):
        by_client(read_rows(iter(TABLE), x="in", y="out", client="who"))
    blocks = list(read_rows(iter(TABLE), x="in", y="out", client=None))
    assert [block.client for block in blocks] == [""]
    assert len(blocks[0].columns["x"]) == 6


def test_rows_of_images_become_channel_first() -> None:
    pillow = pytest.importorskip("PIL.Image")
    color = RNG.integers(0, 256, (4, 5, 3), np.uint8)
    for pixels, shape in ((color, (1, 3, 4, 5)), (color[..., 0], (1, 1, 4, 5))):
        found = by_client(read_rows([{"client": 3, "x": pillow.fromarray(pixels), "y": 0}]))["3"][
            "x"
        ]
        assert found.shape == shape
        np.testing.assert_array_equal(found[0, 0], color[..., 0])


def many(count: int) -> Iterator[dict[str, Any]]:
    return ({"client": "a", "x": number, "y": 0} for number in range(count))


def test_many_rows_come_in_blocks() -> None:
    assert [len(block.columns["x"]) for block in read_rows(many(5000))] == [4096, 904]


BAD_ROWS: list[tuple[Any, str]] = [
    ([{"client": "a", "x": 1.0}], "must have a column 'y', but one has client, x"),
    ([{"x": 1.0, "y": 0}], "must have a column 'client', but one has x, y"),
    ([(1, 2)], "must have a column 'client', but one is a tuple"),
    ([{"client": 1.5, "x": 1.0, "y": 0}], "whole numbers or names, got 1.5"),
    ([{"client": "a", "x": float("inf"), "y": 0}], "Column 'x' must have finite numbers"),
    ([{"client": "a", "x": "text", "y": 0}], "Column 'x' must have numbers"),
    (
        [{"client": "a", "x": [1], "y": 0}, {"client": "a", "x": [1, 2], "y": 0}],
        "Column 'x' must have values of the same",
    ),
    (Columned([{"x": 1.0, "y": 0}]), "must have a column 'client', but have x, y"),
    (7, "Rows must be iterable, got int"),
]


@pytest.mark.parametrize(("dataset", "sentence"), BAD_ROWS)
def test_bad_rows(dataset: Any, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        by_client(read_rows(dataset))
