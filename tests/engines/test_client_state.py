"""Client memory: what was scattered is gathered, nobody else's row moves, and files and RAM are
alike.
"""

import errno
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedtailor.core import trees
from fedtailor.engines.client_state import ClientStateStore
from fedtailor.errors import InputError

CLIENTS = 12


class Moments(NamedTuple):
    first: Tensor
    steps: Tensor


def fresh() -> dict[str, Any]:
    """A nested memory with leaves of many types, one of them without dimensions and one without
    entries.
    """
    return {
        "head": {
            "weight": torch.full((3, 2), 0.25),
            "bias": torch.tensor([1.0, -0.0, torch.nan], dtype=torch.float64),
        },
        "moments": Moments(torch.full((2,), 1.5, dtype=torch.bfloat16), torch.tensor(7)),
        "flags": (torch.tensor([True, False]), torch.zeros(0)),
    }


def memories(who: list[int], seed: int = 0) -> Any:
    """Something different for each client, of every type; floats are any bits, so also NaNs and
    infinities.
    """
    draws = np.random.default_rng([seed, *who])

    def leaf(like: Tensor) -> Tensor:
        raw = draws.integers(0, 256, len(who) * like.numel() * like.element_size()).astype(np.uint8)
        rows = torch.zeros(len(who), *like.shape, dtype=like.dtype)
        rows.view(torch.uint8).flatten()[:] = torch.from_numpy(
            raw % 2 if like.dtype == torch.bool else raw
        )
        return rows

    return trees.apply(leaf, fresh())


def bits(tree: Any) -> list[tuple[Any, ...]]:
    """Types, shapes and bits of the leaves."""
    return [
        (leaf.dtype, leaf.shape, leaf.contiguous().flatten().view(torch.uint8).numpy().tobytes())
        for leaf in trees.leaves(tree)
    ]


def scatter(memory: ClientStateStore, who: list[int], stacked: Any) -> None:
    memory.scatter(np.array(who, np.int64), stacked)


def gathered(memory: ClientStateStore, who: list[int]) -> list[list[tuple[Any, ...]]]:
    stacked = memory.gather(np.array(who, np.int64), fresh())
    assert torch.utils._pytree.tree_structure(stacked) == torch.utils._pytree.tree_structure(
        fresh()
    )
    return [bits(trees.take_row(stacked, at)) for at in range(len(who))]


@pytest.fixture(params=["RAM", "file"])
def memory(request: pytest.FixtureRequest, tmp_path: Path) -> ClientStateStore:
    return ClientStateStore(
        CLIENTS, None if request.param == "RAM" else tmp_path / "new" / "folder"
    )


def test_whoever_is_unknown_is_given_what_is_fresh(memory: ClientStateStore) -> None:
    assert gathered(memory, [3, 0, 11]) == [bits(fresh())] * 3
    scatter(memory, [5], memories([5]))
    assert gathered(memory, [3, 0, 11]) == [bits(fresh())] * 3
    assert gathered(memory, [4, 5, 6])[1] == bits(trees.take_row(memories([5]), 0))
    assert memory.initialized.tolist() == [client == 5 for client in range(CLIENTS)]


def test_what_is_scattered_is_gathered_in_any_order(memory: ClientStateStore) -> None:
    who, stacked = [7, 2, 9], memories([7, 2, 9])
    scatter(memory, who, stacked)
    assert gathered(memory, [9, 4, 7, 2]) == [
        bits(trees.take_row(stacked, 2)),
        bits(fresh()),
        bits(trees.take_row(stacked, 0)),
        bits(trees.take_row(stacked, 1)),
    ]


def test_fresh_memories_are_those_of_the_moment(memory: ClientStateStore) -> None:
    scatter(memory, [0], memories([0]))
    later = trees.apply(torch.ones_like, fresh())
    assert bits(trees.take_row(memory.gather(np.array([3]), later), 0)) == bits(later)


def test_neither_what_is_given_nor_what_is_gathered_is_tied_to_the_rows(
    memory: ClientStateStore,
) -> None:
    given = memories([1, 2])
    kept = bits(given)
    scatter(memory, [1, 2], given)
    once = memory.gather(np.array([1, 2]), fresh())
    for leaf in (*trees.leaves(given), *trees.leaves(once)):
        leaf.zero_()
    assert bits(memory.gather(np.array([1, 2]), fresh())) == kept


moves = st.lists(
    st.tuples(st.lists(st.integers(0, CLIENTS - 1), min_size=1, unique=True), st.integers(0, 9)),
    max_size=6,
)


@settings(max_examples=15, deadline=None)
@given(moves=moves)
def test_files_and_ram_hold_what_a_dict_would(
    moves: list[tuple[list[int], int]], tmp_path_factory: Any
) -> None:
    both = (
        ClientStateStore(CLIENTS),
        ClientStateStore(CLIENTS, tmp_path_factory.mktemp("client_state")),
    )
    expected = {client: bits(fresh()) for client in range(CLIENTS)}
    for who, seed in moves:
        stacked = memories(who, seed)
        for memory in both:
            scatter(memory, who, stacked)
        expected |= {client: bits(trees.take_row(stacked, at)) for at, client in enumerate(who)}
        for memory in both:
            assert gathered(memory, list(range(CLIENTS))) == list(expected.values())


@pytest.mark.parametrize("tree", [(), {}, ((), {})])
def test_clients_who_remember_nothing_are_known_all_the_same(
    tree: Any, memory: ClientStateStore
) -> None:
    who = np.array([2, 4])
    assert memory.gather(who, tree) == tree
    memory.scatter(who, tree)
    assert memory.gather(np.array([4, 5]), tree) == tree
    assert memory.initialized.nonzero().flatten().tolist() == [2, 4]


def test_a_bare_tensor_is_a_memory_too(memory: ClientStateStore) -> None:
    memory.scatter(np.array([3]), torch.tensor([[1.0, 2.0]]))
    assert memory.gather(np.array([3, 4]), torch.zeros(2)).tolist() == [[1.0, 2.0], [0.0, 0.0]]


def test_a_cohort_of_nobody(memory: ClientStateStore) -> None:
    for _ in range(2):
        assert all(
            len(leaf) == 0 for leaf in trees.leaves(memory.gather(np.array([], np.int64), fresh()))
        )
        scatter(memory, [1], memories([1]))


AWKWARD = [
    {"a": {"b": 1.0}, "a.b": 2.0},
    {"up/../../down": 1.0, "/root": 2.0, "..": 3.0, "": 4.0},
    {"x" * 300: 1.0, "x" * 299 + "y": 2.0},
    {"ä" * 150: 1.0, "ö" * 150: 2.0, "a b\n": 3.0, 'q"uo:te*?': 4.0, "nul\0": 5.0},
    {"weight": 1.0, "WEIGHT": 2.0},
]


@pytest.mark.parametrize("names", AWKWARD, ids=range(len(AWKWARD)))
def test_any_names_will_do_and_stay_inside_the_folder(names: Any, tmp_path: Path) -> None:
    tree = torch.utils._pytree.tree_map(lambda value: torch.tensor([value]), names)
    memory, folder = ClientStateStore(3, tmp_path / "client_state"), tmp_path / "client_state"
    memory.scatter(np.array([1]), trees.apply(lambda leaf: leaf[None], tree))
    got = memory.gather(np.array([1]), trees.zeros_like(tree))
    assert [float(leaf) for leaf in trees.leaves(got)] == [
        float(leaf) for leaf in trees.leaves(tree)
    ]
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len({path.name.lower() for path in files}) == len(trees.leaves(tree))
    assert {path.parent for path in files} == {folder}


def test_another_runs_folder_is_refused_at_once_and_left_alone(tmp_path: Path) -> None:
    first, late = ClientStateStore(CLIENTS, tmp_path), ClientStateStore(CLIENTS, str(tmp_path))
    scatter(first, [1], memories([1]))
    kept = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(
        InputError,
        match=r"^Client states: folder '.*' holds another run's states; choose an empty one\.$",
    ):
        ClientStateStore(3, tmp_path)
    with pytest.raises(InputError, match="holds another run's states"):
        late.scatter(np.array([0]), {"other": torch.ones(1, 2)})
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == kept
    assert gathered(first, [1]) == [bits(trees.take_row(memories([1]), 0))]


def resident() -> int:
    """Bytes of this process that are in RAM."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.skipif(
    not Path("/proc/self/statm").exists(), reason="the size of a process is read from /proc"
)
def test_a_million_clients_take_the_room_of_those_who_took_part(tmp_path: Path) -> None:
    clients, head = 1_000_000, {"weight": torch.zeros(100, 4), "bias": torch.zeros(4)}
    who = np.random.default_rng(0).permutation(clients)[:100]
    before, memory = resident(), ClientStateStore(clients, tmp_path)
    own = {
        "weight": torch.from_numpy(who).float().reshape(-1, 1, 1).expand(-1, 100, 4),
        "bias": torch.ones(100, 4),
    }
    memory.scatter(who, own)
    got = memory.gather(np.append(who, (who[0] + 1) % clients), head)
    assert torch.equal(got["weight"][:100], own["weight"])
    assert not got["weight"][100].any()
    assert resident() - before < 200 << 20
    (large,) = [path.stat() for path in tmp_path.iterdir() if "weight" in path.name]
    assert large.st_size < 2 * 4 * 400 * len(who)


FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def fill_disk_after(calls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk has room for some files, and for no more."""
    reserve = getattr(os, "posix_fallocate", None)
    left = [calls]

    def posix_fallocate(descriptor: int, offset: int, size: int) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise FULL
        if reserve is not None:
            reserve(descriptor, offset, size)

    monkeypatch.setattr(os, "posix_fallocate", posix_fallocate, raising=False)


def test_a_full_disk_is_one_error_at_first_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = ClientStateStore(CLIENTS, tmp_path / "states")
    fill_disk_after(1, monkeypatch)
    with pytest.raises(OSError, match=r"No space left on device: '.*states/1-") as caught:
        scatter(memory, [1], memories([1]))
    assert caught.value.errno == errno.ENOSPC
    assert not list((tmp_path / "states").iterdir())


def test_a_full_disk_later_leaves_all_states_and_the_sizes_of_their_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients = 200
    memory = ClientStateStore(clients, tmp_path)
    early = list(range(60))
    scatter(memory, early, memories(early))
    sizes = {path: path.stat().st_size for path in tmp_path.iterdir()}
    fill_disk_after(2, monkeypatch)
    with pytest.raises(OSError, match="No space left on device"):
        scatter(memory, list(range(60, 120)), memories(list(range(60, 120))))
    assert {path: path.stat().st_size for path in tmp_path.iterdir()} == sizes
    assert gathered(memory, early) == [
        bits(trees.take_row(memories(early), client)) for client in early
    ]


@pytest.mark.parametrize("is_supported", [True, False])
def test_files_have_room_on_the_disk_before_anything_is_written(
    is_supported: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_supported:
        monkeypatch.delattr(os, "posix_fallocate", raising=False)
    memory = ClientStateStore(1000, tmp_path)
    for clients in (range(3), range(3, 90)):
        memory.scatter(np.array(clients), {"weight": torch.ones(len(clients), 5000)})
        (path,) = tmp_path.iterdir()
        assert path.stat().st_size >= clients.stop * 5000 * 4
        assert path.stat().st_blocks * 512 >= path.stat().st_size
    got = memory.gather(np.array([0, 89, 500]), {"weight": torch.zeros(5000)})
    assert got["weight"].mean(1).tolist() == [1.0, 1.0, 0.0]


@pytest.fixture
def small_files() -> Iterator[int]:
    """Files that may have one megabyte and no more."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    limit = 1 << 20
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, old[1]))
    yield limit
    resource.setrlimit(resource.RLIMIT_FSIZE, old)


@pytest.mark.parametrize("is_supported", [True, False])
def test_a_limit_on_the_size_of_files_is_one_error_too(
    is_supported: bool, small_files: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_supported:
        monkeypatch.delattr(os, "posix_fallocate", raising=False)
    memory = ClientStateStore(CLIENTS, tmp_path)
    with pytest.raises(OSError, match="File too large"):
        memory.scatter(np.array([1]), {"weight": torch.ones(1, small_files)})
    assert not list(tmp_path.iterdir())


STORE_ON_FULL_DISK = """
import sys
import numpy as np
import torch
from fedtailor.engines.client_state import ClientStateStore

store = ClientStateStore(1000, sys.argv[1] + "/states")
try:
    for client in range(0, 1000, 50):
        states = {"weight": torch.ones(50, 100, 100)}
        store.scatter(np.arange(client, client + 50), states)
except OSError as problem:
    print(problem)
"""


def test_a_disk_that_is_really_full_does_not_end_the_process(tmp_path: Path) -> None:
    command = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(tmp_path)]
    try:
        mounted = subprocess.run(command, capture_output=True, check=False)
    except OSError:
        pytest.skip("there is no mount")
    if mounted.returncode:
        pytest.skip("mounting is not allowed")
    try:
        done = subprocess.run(
            [sys.executable, "-c", STORE_ON_FULL_DISK, str(tmp_path)],
            capture_output=True,
            text=True,
            check=False,
        )
        sizes = [path.stat().st_size for path in (tmp_path / "states").iterdir()]
    finally:
        subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("[Errno 28] No space left on device: ")
    assert sum(sizes) < 8 << 20
