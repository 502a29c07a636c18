"""Columns as tensors: where they lie already, gathered as NumPy does, and read as the system is
told.
"""

import mmap
import re
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from fedtailor.data import ClientExamples, Split
from fedtailor.data.batching import BatchIndices
from fedtailor.data.dataset import ExampleSpec
from fedtailor.data.examples import Array
from fedtailor.data.store import memory_map
from fedtailor.engines import device_data
from fedtailor.engines.device_data import DeviceDataset
from fedtailor.storage.memory import Memory

CPU = torch.device("cpu")
KINDS = ["u1", "i1", "u2", "i2", "u4", "i4", "i8", "f4", "f8", "?"]


def mapped(folder: Path, kind: str = "u2", shape: tuple[int, ...] = (200, 6)) -> Array:
    """A column on disk, as a store has it."""
    column = np.random.default_rng(0).integers(0, 100, shape).astype(kind)
    column.tofile(folder / "column.bin")
    return np.memmap(folder / "column.bin", column.dtype, "r", shape=shape)


@pytest.mark.parametrize("kind", KINDS)
def test_batches_of_a_map_of_any_kind_are_its_rows(kind: str, tmp_path: Path) -> None:
    column = mapped(tmp_path, kind)
    holders = ClientExamples(
        column[:, :-1], column[:, 1:], {"train": Split(np.arange(200), np.array([0, 200]))}
    )
    whole = kind[0] not in "f"
    site = DeviceDataset(holders, ExampleSpec((5,), (5,), 100, 1.0, whole), torch.float64, CPU)
    rows = torch.tensor([[3, 199, 0], [7, 7, 100]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        batch = site.load_batch(
            BatchIndices(
                rows, torch.ones(2, 3, dtype=torch.bool), torch.zeros(2, dtype=torch.int64)
            )
        )
    assert (batch.x.dtype, batch.y.dtype) == 2 * (torch.int64 if whole else torch.float64,)
    np.testing.assert_array_equal(batch.x.numpy(), column[rows.numpy()][..., :-1])
    np.testing.assert_array_equal(batch.y.numpy(), column[rows.numpy()][..., 1:])


def test_nothing_is_copied_if_rows_are_whole(tmp_path: Path) -> None:
    column = mapped(tmp_path)
    for view in (
        column,
        column[:, :-1],
        column[:, 1:],
        column[::3],
        column[50:],
        np.asarray(column),
    ):
        tensor = device_data._to_device_tensor(view, CPU)
        assert tensor.data_ptr() == view.ctypes.data
        np.testing.assert_array_equal(tensor.numpy(), view)


def test_what_torch_cannot_take_or_rows_with_gaps_are_copied(tmp_path: Path) -> None:
    column = mapped(tmp_path)
    packed = np.frombuffer(bytes(range(250)) * 3, np.dtype([("a", "u1"), ("b", "<u2")]))["b"]
    for view in (
        column[::-1],
        column[:, ::-1],
        column[:, ::2],
        np.asfortranarray(column),
        column.T,
        packed,
    ):
        tensor = device_data._to_device_tensor(view, CPU)
        assert tensor.is_contiguous()
        np.testing.assert_array_equal(tensor.numpy(), view)


@pytest.mark.parametrize("at_once", [1, 100, 1 << 26])
def test_another_device_gets_all_pieces(
    at_once: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_data, "_TRANSFER_BYTES", at_once)
    view = mapped(tmp_path)[:, 1:]
    device = torch.device("cuda" if torch.cuda.is_available() else "meta")
    sent = device_data._to_device_tensor(view, device)
    assert (sent.device.type, sent.shape, sent.dtype) == (device.type, view.shape, torch.uint16)
    if device.type == "cuda":
        np.testing.assert_array_equal(sent.cpu().numpy(), view)
    empty = device_data._to_device_tensor(view[:0], device)
    assert empty.shape == (0, 5)


LINUX = pytest.mark.skipif(
    not Path("/proc/self/smaps").exists(), reason="needs /proc, which Linux has"
)


def told_at_random(file: Path) -> bool:
    """Whether the system knows that this process reads a map at random."""
    regions = re.split(
        r"^(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text(), flags=re.MULTILINE
    )
    (flags,) = (
        re.findall(r"^VmFlags:(.*)$", each, re.MULTILINE)[0]
        for each in regions
        if str(file) in each
    )
    return " rr" in flags


@LINUX
@pytest.mark.parametrize(
    ("memory", "told"), [(3 * 2400, False), (2 * 2400, False), (2 * 2400 - 2, True)]
)
def test_only_maps_that_may_not_stay_in_memory_are_read_at_random(
    memory: int, told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_map, "get_memory", lambda: Memory(memory, memory))
    column = mapped(tmp_path)
    assert not told_at_random(tmp_path / "column.bin")
    device_data._to_device_tensor(column[:, :-1], CPU)
    assert told_at_random(tmp_path / "column.bin") == told


@LINUX
def test_systems_without_advice_go_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_map, "get_memory", lambda: Memory(0, 0))
    monkeypatch.delattr(mmap, "MADV_RANDOM")
    column = mapped(tmp_path)
    tensor = device_data._to_device_tensor(column, CPU)
    np.testing.assert_array_equal(tensor.numpy(), column)
    assert not told_at_random(tmp_path / "column.bin")


def test_columns_in_memory_go_without_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_map, "get_memory", lambda: Memory(0, 0))
    column = np.arange(5)
    assert device_data._to_device_tensor(column, CPU).data_ptr() == column.ctypes.data


BOUNDED = """
import sys
from pathlib import Path
import numpy as np
import torch
from fedtailor import prng
from fedtailor.core.types import BatchPlan, BatchSpec
from fedtailor.data import ClientExamples
from fedtailor.data.batching import count_steps, iter_batch_indices
from fedtailor.data.dataset import ExampleSpec
from fedtailor.data.store import make_range_split
from fedtailor.engines.device_data import DeviceDataset

def own():
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("RssAnon")).split()[1]) / 1024

clients, each, tokens = 10_000, 500, 20
with open(sys.argv[1], "wb") as file:
    file.truncate(clients * each * tokens * 2)
column = np.memmap(sys.argv[1], np.uint16, "r", shape=(clients * each, tokens))
sizes = np.full(clients, each)
split = make_range_split(np.arange(clients) * each, sizes)
examples = ClientExamples(column[:, :-1], column[:, 1:], {"train": split})
torch.ones(8).sort()
before = own()
spec = ExampleSpec((19,), (19,), 100, 1.0, True)
device_data = DeviceDataset(examples, spec, torch.float32, torch.device("cpu"))
plan = BatchPlan((BatchSpec("train", 16),), epochs=1)
client_ids = np.arange(0, clients, 100)
keys = prng.key(0, "client", torch.from_numpy(client_ids))
most = 0
steps = int(count_steps(plan, examples, client_ids).max())
for (indices,) in iter_batch_indices(plan, examples, client_ids, keys, steps):
    device_data.load_batch(indices)
    most = max(most, own())
print(most - before)
"""


@LINUX
def test_batches_of_a_large_map_take_little_memory(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BOUNDED, str(tmp_path / "column")],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 100  # MB, of a column of 200
