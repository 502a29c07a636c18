"""Columns that verify blocks before they are read, against the arrays that they stand for."""

import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedtailor.core.types import BatchPlan, BatchSpec
from fedtailor.data.batching import iter_batch_indices
from fedtailor.data.dataset import ExampleSpec
from fedtailor.data.examples import Array
from fedtailor.data.store import columns, memory_map, open_store, verified_column
from fedtailor.engines.device_data import DeviceDataset
from fedtailor.errors import InputError
from stores import toy

ROWS = 50
WANTED = np.arange(ROWS, dtype=np.float32)[:, None] + np.array([0, 0.5], np.float32)

READS: dict[str, Callable[[Any], Any]] = {
    "row": lambda x: x[17],
    "last row": lambda x: x[-1],
    "numpy row": lambda x: x[np.int64(3)],
    "rows": lambda x: x[np.array([[3, 40], [17, 3]])],
    "rows from the end": lambda x: x[np.array([-1, -50])],
    "list": lambda x: x[[49, 0, 17]],
    "no rows": lambda x: x[np.zeros(0, np.int64)],
    "small integers": lambda x: x[np.array([17, 49], np.uint8)],
    "mask": lambda x: x[np.arange(ROWS) % 7 == 3],
    "slice": lambda x: x[13:30],
    "slice with a step": lambda x: x[40:3:-9],
    "empty slice": lambda x: x[20:20],
    "part of rows": lambda x: x[3:9, 1],
    "ellipsis": lambda x: x[..., 0],
    "new axis": lambda x: x[None],
    "mask of entries": lambda x: x[WANTED > 17],
    "array": np.asarray,
    "array of a type": lambda x: np.asarray(x, np.float64),
    "copy": np.array,
    "arithmetic": lambda x: 2 * x + x,
    "comparison": lambda x: x >= 17,
    "reduction": lambda x: np.add.reduceat(x, [0, 13, 30]),
    "concatenation": lambda x: np.concatenate([x, x]),
    "method": lambda x: x.max(axis=0),
    "shape": lambda x: x.reshape(ROWS, -1),
    "iteration": lambda x: np.stack(list(x)),
    "other index": lambda x: np.arange(60)[x[:, 0].astype(int)],
    "pickle": lambda x: pickle.loads(pickle.dumps(x))[5:7],
}


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four rows have one checksum."""
    monkeypatch.setattr(columns, "_BLOCK_BYTES", 35)


@pytest.mark.parametrize("kind", READS)
def test_a_column_is_the_array_it_stands_for(kind: str) -> None:
    x = toy([ROWS]).columns["x"]
    assert (len(x), x.shape, x.ndim, x.size) == (ROWS, WANTED.shape, 2, WANTED.size)
    assert (x.dtype, x.itemsize, x.nbytes) == (WANTED.dtype, WANTED.itemsize, WANTED.nbytes)
    for _ in range(2):  # before and after its blocks are verified
        result = READS[kind](x)
        np.testing.assert_array_equal(result, READS[kind](WANTED))
        assert result.dtype == READS[kind](WANTED).dtype


def flip(path: Path, row: int) -> None:
    content = bytearray(path.read_bytes())
    content[row * 8] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("kind", READS)
def test_damaged_rows_are_never_given_out(kind: str) -> None:
    """For each damaged row, what a read returns is refused or equal to what was written."""
    folder = toy([ROWS]).folder
    sentences: list[str] = []
    wanted: list[str] = []
    for row in (0, 3, 6, 17, 49):
        flip(folder / "column-x.bin", row)
        try:
            result = READS[kind](open_store("toy").columns["x"])
        except InputError as problem:
            sentences.append(str(problem))
            first = row - row % 4
            last = min(first + 3, ROWS - 1)
            wanted.append(f"rows {first} to {last} of column x ('column-x.bin')")
        else:
            np.testing.assert_array_equal(result, READS[kind](WANTED))
        flip(folder / "column-x.bin", row)
    assert all(part in sentence for part, sentence in zip(wanted, sentences, strict=True))
    assert (sentences == []) == (kind in ("no rows", "empty slice"))


def test_an_index_outside_is_the_error_of_arrays() -> None:
    with pytest.raises(IndexError, match="index 50 is out of bounds"):
        toy([ROWS]).columns["x"][np.array([3, 50])]


def test_a_block_is_verified_once_and_only_when_it_is_needed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read: list[int] = []
    advise = memory_map.advise_read_ahead

    def note(column: Array, start: int, length: int) -> None:
        advise(column, start, length)
        read.append(start // 32)

    monkeypatch.setattr(verified_column, "advise_read_ahead", note)
    x = toy([ROWS]).columns["x"]
    assert read == []
    x[5:9]
    x[np.array([6, 41, 7])]
    assert read == [1, 2, 10]
    for _ in range(3):
        np.asarray(x)
        x[0]
    assert sorted(read) == list(range(13))


def test_threads_share_a_column() -> None:
    flip(toy([ROWS]).folder / "column-x.bin", 30)
    x = open_store("toy").columns["x"]

    def read(row: int) -> str:
        try:
            return str(x[row].tolist())
        except InputError:
            return "refused"

    with ThreadPoolExecutor(8) as executor:
        results = list(executor.map(read, [*range(ROWS)] * 20))
    wanted = [str(values) for values in WANTED.tolist()]
    wanted[28:32] = ["refused"] * 4
    assert results == wanted * 20


@pytest.mark.parametrize("row", [0, 9, 12])
def test_batches_on_a_device_are_verified(row: int) -> None:
    """Clients 0 and 2 have the rows 0 to 3 and 8 to 11; there is a block for each."""
    stored = toy([4, 4, 4, 4])
    flip(stored.folder / "column-x.bin", row)
    stored = open_store("toy")
    examples = stored.to_client_examples({"train": stored.get_full_split()})
    spec = ExampleSpec(shape=(2,), label_shape=(), classes=3, scale=1.0, tokens=False)
    data = DeviceDataset(examples, spec, torch.float32, torch.device("cpu"))
    plan = BatchPlan((BatchSpec("train", 4),), epochs=1)
    clients = np.array([0, 2])
    steps = iter_batch_indices(plan, examples, clients, torch.zeros(2, dtype=torch.int64), 1)
    ((indices,),) = steps
    if row < 12:
        with pytest.raises(InputError, match=f"rows {row - row % 4} to {row - row % 4 + 3} of col"):
            data.load_batch(indices)
    else:
        np.testing.assert_array_equal(data.load_batch(indices).x, WANTED[indices.rows.numpy()])
