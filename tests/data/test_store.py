"""Stores against arrays put together by hand, kills at random moments, and damage of every kind."""

import errno
import inspect
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedtailor import keyed
from fedtailor.data import FederatedDataset, Holders, Split
from fedtailor.data.batching import places
from fedtailor.data.blocks import Block
from fedtailor.data.holders import Array
from fedtailor.data.store import (
    MadeFrom,
    Scenario,
    Stored,
    build,
    columns,
    files,
    fingerprint,
    names,
    opened,
    remove,
    runs,
    scenario,
    smallest,
)
from fedtailor.data.store.runs import compact
from fedtailor.errors import InputError
from fedtailor.types import Draw, Plan

MADE = MadeFrom("1")
KINDS = ["f2", "f4", "f8", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "?"]


def at_once(handle: int) -> None:
    """What takes the place of waiting for the disk, which tests need not."""


def full(handle: int) -> None:
    """What takes the place of waiting for a disk that has no room."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder where data is looked for."""
    monkeypatch.setenv("FEDTAILOR_DATA", str(tmp_path))
    monkeypatch.setattr(os, "fsync", at_once)
    return tmp_path


def blocks_of(sizes: list[int], value: int = 0) -> Iterator[Block]:
    """Clients c0, c1, ... with so many examples each; x counts from `value`, y is the client's number modulo 3."""
    start = value
    for number, size in enumerate(sizes):
        x = np.arange(start, start + size, dtype=np.float32)[:, None] + np.array([0, 0.5], np.float32)
        yield Block(f"c{number}", {"x": x, "y": np.full(size, number % 3, np.uint8)})
        start += size


def toy(sizes: list[int] | None = None, name: str = "toy", value: int = 0) -> Stored:
    return build(name, blocks_of(sizes or [3, 1, 4, 2], value), {"classes": 3}, MADE)


def left_behind(place: Path) -> list[str]:
    return sorted(path.name for path in (place / "stores").iterdir())


@st.composite
def populations(draw: st.DrawFn) -> list[Block]:
    """Blocks of clients, several of a client at times, with columns of any kind."""
    name = st.text(st.characters(exclude_characters="\0"), min_size=1, max_size=12)
    clients = draw(st.lists(name, min_size=1, max_size=6, unique=True) | st.just([""]))
    layout = draw(
        st.dictionaries(
            st.from_regex(r"[a-z][a-z0-9_]{0,5}", fullmatch=True),
            st.tuples(st.sampled_from(KINDS), st.lists(st.integers(1, 3), max_size=2)),
            min_size=1,
            max_size=3,
        )
    )
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    sizes = [draw(st.lists(st.integers(1, 9), min_size=1, max_size=3)) for _ in clients]
    return [
        Block(
            client,
            {what: random.integers(0, 100, (size, *shape)).astype(kind) for what, (kind, shape) in layout.items()},
        )
        for client, own in zip(clients, sizes, strict=True)
        for size in own
    ]


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(populations(), st.sampled_from([1, 7, 64, 1 << 20]))
def test_what_is_built_is_what_came(blocks: list[Block], buffer: int) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(columns, "_BUFFER", buffer)
        patched.setattr(columns, "_IDS", 2)
        stored = build("any", blocks, {"about": "ü", "scale": 0.5}, MADE)
    stored.verify()
    assert stored.attributes == {"about": "ü", "scale": 0.5}
    assert list(stored.columns) == list(blocks[0].columns)
    for what, column in stored.columns.items():
        wanted = np.concatenate([block.columns[what] for block in blocks])
        assert isinstance(column, np.memmap)
        assert column.dtype == wanted.dtype
        np.testing.assert_array_equal(column, wanted)
    whose = [block.client for block in blocks for _ in next(iter(block.columns.values()))]
    assert stored.ids.tolist() == list(dict.fromkeys(whose))
    assert stored.rows == len(whose)
    for number, (start, end) in enumerate(pairwise(stored.offsets.tolist())):
        assert whose[start:end] == [stored.ids[number]] * (end - start) != []


def test_many_clients_of_one_row_each() -> None:
    count = 20_000
    stored = build("many", (Block(f"{n:x}", {"x": np.array([n])}) for n in range(count)), {}, MADE)
    assert stored.clients == stored.rows == count
    np.testing.assert_array_equal(stored.columns["x"], np.arange(count))
    np.testing.assert_array_equal(stored.offsets, np.arange(count + 1))
    assert stored.ids[[0, 255, -1]].tolist() == ["0", "ff", f"{count - 1:x}"]


def test_a_reader_may_reuse_its_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    def overwritten() -> Iterator[Block]:
        buffer = np.zeros(5, np.int16)
        for number in range(40):
            buffer[:] = number
            yield Block("one", {"x": buffer})

    monkeypatch.setattr(columns, "_BUFFER", 64)
    np.testing.assert_array_equal(build("reused", overwritten(), {}, MADE).columns["x"], np.repeat(np.arange(40), 5))


@pytest.mark.slow
def test_millions_of_rows() -> None:
    def drawn() -> Iterator[Block]:
        draws = np.random.default_rng(0)
        for number in range(50_000):
            size = int(draws.integers(1, 160))
            yield Block(str(number), {"x": draws.integers(0, 10_000, (size, 20)).astype(np.uint16)})

    stored = build("large", drawn(), {}, MADE)
    stored.verify()
    assert stored.rows > 3_000_000
    for number, block in enumerate(drawn()):
        start, end = stored.offsets[number : number + 2]
        np.testing.assert_array_equal(stored.columns["x"][start:end], block.columns["x"])


def test_progress_is_told_and_ends_with_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "_BUFFER", 9 * 4)
    told: list[tuple[int, int]] = []
    build("toy", blocks_of([5, 6]), {}, MADE, lambda rows, size: told.append((rows, size)))
    assert told == [(4, 36), (8, 72), (11, 99)]


X, Y = np.zeros((2, 3), np.float32), np.zeros(2, np.uint8)
BAD: dict[str, tuple[list[Block], str]] = {
    "nothing": ([], "toy: a store must hold examples, but no block came"),
    "no columns": ([Block("a", {})], "blocks must have columns, but the first has none"),
    "back": (
        [Block("a", {"x": X}), Block("b", {"x": X}), Block("a", {"x": X})],
        "client 'a' comes back after others",
    ),
    "ragged": (
        [Block("a", {"x": X, "y": Y[:1]})],
        r"client 'a' must have equally many rows .* x of shape \[2, 3\], y of",
    ),
    "empty": ([Block("a", {"x": X[:0], "y": Y[:0]})], "at least one, got x of shape"),
    "type": (
        [Block("a", {"x": X}), Block("b", {"x": X.astype(np.float64)})],
        r"all blocks must have columns x \(float32 \[3\]\), but one of client 'b' has x \(float64 \[3\]\)",
    ),
    "shape": ([Block("a", {"x": X}), Block("a", {"x": X[:, :2]})], r"has x \(float32 \[2\]\)"),
    "other column": (
        [Block("a", {"x": X}), Block("b", {"x": X, "y": Y})],
        r"but one of client 'b' has x .*, y \(uint8",
    ),
    "scalar": ([Block("a", {"x": Y}), Block("a", {"x": np.array(1, np.uint8)})], r"got x of shape \[\]"),
    "first scalar": ([Block("a", {"x": np.array(1, np.uint8)})], r"must have a number or more in each row"),
    "text": ([Block("a", {"x": np.array(["one"])})], "column x must be numbers"),
    "byte order": ([Block("a", {"x": X.astype(">f4")})], "this machine's byte order, got >f4"),
    "no width": ([Block("a", {"x": X[:, :0]})], r"a number or more in each row, got shape \[2, 0\]"),
    "column name": ([Block("a", {"../x": X})], "a column's name must be like"),
    "client type": ([Block(3, {"x": X})], "clients' names must be strings"),  # type: ignore[arg-type]
    "long id": ([Block("a" * 300, {"x": X})], "strings of up to 256 characters"),
    "nul": ([Block("a\0", {"x": X})], "without NUL"),
    "some named": ([Block("", {"x": X}), Block("a", {"x": X})], "either every block must name its client or none"),
    "some unnamed": ([Block("a", {"x": X}), Block("", {"x": X})], "either every block must name its client or none"),
}


@pytest.mark.parametrize("kind", BAD)
def test_blocks_that_do_not_make_columns_are_refused(kind: str, place: Path) -> None:
    blocks, sentence = BAD[kind]
    with pytest.raises(InputError, match=sentence):
        build("toy", blocks, {}, MADE)
    assert left_behind(place) == []


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_is_refused_with_its_client(bad: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "_BUFFER", 3 * 8)
    given = [Block(f"c{number}", {"x": np.ones(4)}) for number in range(4)]
    given[2].columns["x"][1] = bad
    with pytest.raises(
        InputError, match="column x must be finite, but example 9, of client 'c2', has a NaN or infinity"
    ):
        build("toy", given, {}, MADE)


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "..", "-x", "ü"])
def test_names_that_are_no_folders_are_refused(name: str) -> None:
    for asked in (opened, remove, lambda name: build(name, [], {}, MADE)):
        with pytest.raises(InputError, match="A store's name must be"):
            asked(name)


@pytest.mark.parametrize("attributes", [{"a": np.zeros(2)}, {"a": float("nan")}, {1: 2}, {"a": (1, 2)}])
def test_attributes_that_would_not_come_back_are_refused(attributes: dict[Any, Any]) -> None:
    with pytest.raises(InputError, match="attributes must be what JSON can hold"):
        build("toy", blocks_of([1]), attributes, MADE)


def test_too_little_room_is_said_before_anything_is_read(place: Path) -> None:
    blocks = map(pytest.fail, ["the blocks were read"])
    with pytest.raises(InputError, match=r"toy: 1000000\.0 GB are needed, but .* has .* free; make room"):
        build("toy", blocks, {}, MADE, needed_bytes=10**15)
    assert left_behind(place) == []


def test_a_disk_that_fills_up_leaves_what_was_there(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy()

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(
            InputError, match=r"toy: '.*stores' could not be written: No space left on device; make room"
        ):
            toy([9, 9])
    assert left_behind(place) == ["toy"]
    assert opened("toy").rows == 10


def test_a_write_that_fails_midway_is_one_sentence(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = iter(range(1000))

    class Full(files.Writer):
        def add(self, rows: Array | bytes) -> None:
            super().add(rows)
            if next(calls) == 3:  # and never again, as when somebody makes room
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(columns, "Writer", Full)
    monkeypatch.setattr(columns, "_BUFFER", 64)
    with pytest.raises(InputError, match="could not be written: No space left on device"):
        toy([50, 50])
    assert left_behind(place) == []


def test_everything_is_on_the_disk_before_the_store_is_there(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before: dict[int, bool] = {}
    monkeypatch.setattr(os, "fsync", lambda handle: before.setdefault(os.fstat(handle).st_ino, "toy" not in names()))
    folder = toy().folder
    assert len(list(folder.iterdir())) == 5
    assert all(before[path.stat().st_ino] for path in (folder, *folder.iterdir()))
    assert before[folder.parent.stat().st_ino] is False


def test_a_reader_that_fails_is_heard_and_leaves_nothing(place: Path) -> None:
    def broken() -> Iterator[Block]:
        yield from blocks_of([3])
        raise OSError("the source is gone")

    with pytest.raises(OSError, match="the source is gone"):
        build("toy", broken(), {}, MADE)
    assert left_behind(place) == []


def test_what_it_was_made_from_is_told(tmp_path: Path) -> None:
    source = tmp_path / "source.csv"
    source.write_bytes(b"abc")
    made = MadeFrom("7", (fingerprint(source),))
    assert made.files[0].sha256 == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert build("toy", blocks_of([1]), {}, made).made_from == opened("toy", "7").made_from == made
    with pytest.raises(InputError, match="was built by version 7, not 8; build it again with `fedtailor data add toy`"):
        opened("toy", "8")


def test_names_and_removing(place: Path) -> None:
    assert names() == []
    kept = toy(name="b")
    toy(name="a.1")
    assert names() == ["a.1", "b"]
    remove("b")
    remove("b")
    assert names() == left_behind(place) == ["a.1"]
    assert kept.columns["x"][9, 0] == 9  # whoever has it open keeps it
    with pytest.raises(InputError, match=r"b: there is no such data set in .*; add it with `fedtailor data add b`"):
        opened("b")


def edited(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        content = json.loads((folder / "manifest.json").read_text())
        change(content)
        (folder / "manifest.json").write_text(json.dumps(content))

    return damage


def cut(folder: Path) -> None:
    os.truncate(folder / "column-x.bin", 79)


DAMAGE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "cut": (cut, "damaged, 'column-x.bin' has 79 bytes instead of 80"),
    "longer": (lambda f: (f / "ids.bin").write_bytes(bytes(99)), "damaged, 'ids.bin' has 99 bytes instead of"),
    "missing": (lambda f: (f / "offsets.bin").unlink(), "damaged, 'offsets.bin' is missing"),
    "no manifest": (lambda f: (f / "manifest.json").unlink(), "damaged, 'manifest.json' cannot be read"),
    "half a manifest": (lambda f: os.truncate(f / "manifest.json", 50), "damaged, 'manifest.json' is not a manifest"),
    "a list": (lambda f: (f / "manifest.json").write_text("[]"), "'manifest.json' is not a manifest"),
    "a key less": (edited(lambda m: m.pop("ids")), "'manifest.json' is not a manifest"),
    "a key more": (edited(lambda m: m.update(more=1)), "'manifest.json' is not a manifest"),
    "other format": (edited(lambda m: m.update(format=0)), "is in format 0, not 1"),
    "other rows": (edited(lambda m: m.update(rows=9)), "damaged, its files are not of 4 clients and 9 rows"),
    "other clients": (edited(lambda m: m.update(clients=5)), "damaged, its files are not of 5 clients and 10 rows"),
    "other type": (edited(lambda m: m["columns"]["x"].update(dtype="<f8")), "damaged, it cannot be mapped"),
    "smaller type": (
        edited(lambda m: m["columns"]["x"].update(dtype="<f2")),
        r"damaged, it cannot be mapped: \[10, 2\] of <f2 are not 80 bytes",
    ),
    "no type": (edited(lambda m: m["columns"]["x"].update(dtype="huh")), "damaged, it cannot be mapped"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_store_is_refused_when_opened(kind: str) -> None:
    damage, sentence = DAMAGE[kind]
    damage(toy().folder)
    with pytest.raises(InputError, match=sentence) as refused:
        opened("toy")
    assert str(refused.value).endswith("; build it again with `fedtailor data add toy`.")
    toy()
    opened("toy").verify()


@pytest.mark.parametrize("file", ["column-x.bin", "column-y.bin", "offsets.bin", "ids.bin"])
def test_a_changed_byte_is_found_by_verify(file: str) -> None:
    path = toy().folder / file
    content = bytearray(path.read_bytes())
    content[-9] ^= 1  # in the last but one of the widest numbers: sizes and ends stay as they are
    path.write_bytes(content)
    with pytest.raises(
        InputError, match=f"toy: the store is damaged, '{file}' is not what was written; build it again"
    ):
        opened("toy").verify()


def test_one_builds_while_another_is_refused_and_other_names_go_on(place: Path) -> None:
    def nested() -> Iterator[Block]:
        yield from blocks_of([3])
        with pytest.raises(InputError, match=r"toy: another process is at work on .*toy'; wait until it has finished"):
            toy()
        with pytest.raises(InputError, match="there is no such data set"):
            opened("toy")
        toy(name="other")
        assert left_behind(place) == [".toy.building", ".toy.lock", "other"]

    assert build("toy", nested(), {}, MADE).rows == 3
    assert left_behind(place) == ["other", "toy"]


HEAD = """
import os, random, signal, sys, time
import numpy as np
from collections.abc import Iterator
from pathlib import Path
from fedtailor.data.blocks import Block
from fedtailor.data.store import *
from fedtailor.data.store import columns, files
from fedtailor.errors import InputError
MADE = MadeFrom("1")
"""


def run_script(script: str) -> str:
    """What a script prints that has stores, `toy`, `blocks_of` and `left_behind`, in a process without torch."""
    given = "\n".join(inspect.getsource(function) for function in (blocks_of, toy, left_behind))
    whole = "\n".join([HEAD, given, script])
    done = subprocess.run([sys.executable, "-c", whole], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


KILLED = """
found = {"whole": 0, "none": 0, "begun": 0}
random.seed(0)
place = files.stores().parent
columns._BUFFER = 1 << 12
for attempt in range(40):
    if attempt % 4 == 0:
        remove("toy")
    child = os.fork()
    if child == 0:
        for value in range(10_000):
            build("toy", blocks_of([200] * 30, value), {"value": value}, MADE)
    time.sleep(random.uniform(0, 0.15))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    found["begun"] += ".toy.building" in left_behind(place)
    try:
        stored = opened("toy")
    except InputError as problem:
        assert "there is no such data set" in str(problem), problem
        found["none"] += 1
    else:
        stored.verify()
        assert stored.rows == 6000 and stored.columns["x"][0, 0] == stored.attributes["value"]
        found["whole"] += 1
    if attempt % 3 == 0:
        toy(name="another")
        assert set(left_behind(place)) <= {"another", "toy"}, left_behind(place)
print(*found.values())
"""


def test_a_killed_build_leaves_a_whole_store_or_none() -> None:
    whole, none, begun = map(int, run_script(KILLED).split())
    assert whole + none == 40
    assert whole > 0
    assert begun > 0


BESIDE = """
toy([1000, 2000], "read")
ready, go = os.pipe(), os.pipe()
def waits():
    yield from blocks_of([5])
    os.write(ready[1], b"!")
    os.read(go[0], 1)
    yield Block("last", next(blocks_of([5])).columns)
builder = os.fork()
if builder == 0:
    build("toy", waits(), {}, MADE)
    os._exit(0)
os.read(ready[0], 1)
try:
    toy()
    sys.exit("the second builder was let in")
except InputError as problem:
    assert "another process is at work" in str(problem), problem
readers = []
for _ in range(2):
    readers.append(os.fork())
    if not readers[-1]:
        for _ in range(20):
            stored = opened("read")
            stored.verify()
            np.testing.assert_array_equal(stored.columns["x"][:, 0], np.arange(3000))
        os._exit(0)
for reader in readers:
    assert os.waitpid(reader, 0)[1] == 0
os.write(go[1], b"!")
assert os.waitpid(builder, 0)[1] == 0
assert opened("toy").rows == 10
print(*left_behind(files.stores().parent))
"""


def test_one_process_builds_another_is_refused_and_two_read() -> None:
    assert run_script(BESIDE).split() == ["read", "toy"]


def test_another_process_is_sent_no_copy() -> None:
    stored = toy([50_000])
    sent = pickle.dumps(stored)
    assert len(sent) < 500
    assert isinstance(pickle.loads(sent).columns["x"], np.memmap)


def test_holders_share_the_columns_and_keep_the_promises() -> None:
    stored = toy()
    holders = stored.holders({"train": stored.everything(), "test": runs(stored.offsets[:-1], np.zeros(4, np.int64))})
    assert isinstance(holders.x, np.memmap)
    assert not holders.x.flags.writeable
    assert np.shares_memory(holders.x, stored.columns["x"])
    assert np.shares_memory(holders.y, stored.columns["y"])
    everybody, nobody = np.arange(4), np.zeros(0, np.int64)
    groups = {"train": everybody, "local": everybody, "validation": nobody, "new": nobody}
    dataset = FederatedDataset("toy", holders, stored.ids, groups, None, 3)
    assert dataset.clients.x is holders.x
    assert dataset.describe().examples == 10
    assert dataset.adapts_on() == "train"
    assert dataset.pooled().clients.splits["train"].of(4).tolist() == list(range(10))
    twice = holders._replace(splits=holders.splits | {"train": runs(np.array([0, 2, 4, 8]), np.array([3, 1, 4, 2]))})
    with pytest.raises(
        InputError, match="example 2 must be held once, but is held more often, by client 'c0' and client 'c1'"
    ):
        FederatedDataset("toy", twice, stored.ids, groups, None, 3)


def test_holders_need_x_and_y() -> None:
    stored = build("toy", [Block("a", {"x": X})], {}, MADE)
    with pytest.raises(InputError, match="toy: holders need columns x and y, but there are x"):
        stored.holders({})


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 5)), min_size=1, max_size=6), st.data())
def test_runs_are_the_array_they_stand_for(given_runs: list[tuple[int, int]], data: st.DataObject) -> None:
    starts, sizes = (np.array(each) for each in zip(*given_runs, strict=True))
    split = runs(starts, sizes)
    wanted = np.array([row for start, size in given_runs for row in range(start, start + size)], np.int64)
    index, count = split.index, len(wanted)
    assert (len(index), index.shape, index.size, index.dtype) == (count, (count,), count, wanted.dtype)
    np.testing.assert_array_equal(index, wanted)
    assert [split.of(who).tolist() for who in range(len(sizes))] == [
        list(range(start, start + size)) for start, size in given_runs
    ]
    if count:
        at = np.array(
            data.draw(st.lists(st.lists(st.integers(-count, count - 1), min_size=2, max_size=2), max_size=4)), int
        )
        np.testing.assert_array_equal(index[at], wanted[at])
        assert index[at].dtype == np.int64
        assert index[count - 1] == wanted[-1]
    chosen = np.array(data.draw(st.lists(st.booleans(), min_size=count, max_size=count)), bool)
    np.testing.assert_array_equal(index[chosen], wanted[chosen])
    step = data.draw(st.slices(count))
    np.testing.assert_array_equal(index[step], wanted[step])
    np.testing.assert_array_equal((index >= 3) & (index < 20), (wanted >= 3) & (wanted < 20))
    np.testing.assert_array_equal(np.arange(60)[index], wanted)
    for outside in (count, -count - 1):
        with pytest.raises(IndexError, match=f"index {outside} is out of bounds with size {count}"):
            index[outside]
    again = compact(Split(wanted, split.offsets))
    np.testing.assert_array_equal(again.index, wanted)
    assert isinstance(again.index, type(index)) == (count > 0)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=5), st.data())
def test_what_is_not_runs_stays_an_array(sizes: list[int], data: st.DataObject) -> None:
    offsets = np.append(0, np.cumsum(sizes))
    order = np.array(data.draw(st.permutations(range(sum(sizes)))), np.int64)
    split = Split(order, offsets)
    follow = all((np.diff(split.of(who)) == 1).all() for who in range(len(sizes)))
    again = compact(split)
    assert (again is split) == (not follow or not len(order))
    np.testing.assert_array_equal(again.index, order)
    np.testing.assert_array_equal(again.offsets, offsets)


def test_batches_are_those_of_plain_arrays() -> None:
    sizes = [7, 1, 12, 4]
    stored = toy(sizes)
    lazy = stored.holders({"train": stored.everything()})
    plain = Holders(
        np.asarray(lazy.x), np.asarray(lazy.y), {"train": Split(np.arange(24), np.append(0, np.cumsum(sizes)))}
    )
    plan, who = Plan((Draw("train", 3),), epochs=2), np.array([2, 0, 3])
    keys = keyed.key(0, "batches", torch.from_numpy(who))
    seen, wanted = (list(places(plan, holders, who, keys, 8)) for holders in (lazy, plain))
    assert len(seen) == 8
    for (one,), (other,) in zip(seen, wanted, strict=True):
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(one, other, strict=True))


@pytest.fixture
def making() -> tuple[Callable[[], Scenario], list[str]]:
    """Makes a scenario of four clients with ten rows, and a list that grows by it."""
    made: list[str] = []

    def make() -> Scenario:
        made.append("made")
        train, mixed = runs(np.array([0, 3, 4, 8]), np.array([2, 1, 3, 1])), np.array([2, 9, 7])
        test = Split(mixed, np.array([0, 2, 2, 2, 3]))
        ends = {"new": np.array([3]), "nobody": np.zeros(0, np.int64)}
        return Scenario({"train": train, "test": test, "adapt": train}, ends)

    return make, made


def same(one: Scenario, other: Scenario) -> bool:
    mine, theirs = (
        {**each.arrays, **{f"{n}/{i}": p for n, s in each.splits.items() for i, p in enumerate(s)}}
        for each in (one, other)
    )
    return list(mine) == list(theirs) and all(np.array_equal(mine[name], theirs[name]) for name in mine)


def test_a_scenario_is_made_once_and_then_mapped(making: tuple[Callable[[], Scenario], list[str]]) -> None:
    make, made = making
    first, second = (scenario(toy(), {"alpha": 0.5, "seed": seed}, make) for seed in (0, 0))
    assert made == ["made", "made"]  # the store was built anew in between, and took its scenarios along
    stored = opened("toy")
    third = scenario(stored, {"seed": 0, "alpha": 0.5}, make)
    assert len(made) == 2
    assert same(first, make())
    assert same(second, make())
    assert same(third, make())
    assert isinstance(third.splits["test"].index, np.memmap)
    assert third.splits["adapt"] is third.splits["train"]
    assert not list(stored.folder.rglob("split-train-index.npy"))


def test_other_options_are_other_files(making: tuple[Callable[[], Scenario], list[str]]) -> None:
    make, made = making
    stored = toy()
    for seed in (0, 1, 2, 1):
        scenario(stored, {"seed": seed}, make)
    assert len(made) == 3
    assert len(list((stored.folder / "scenarios").iterdir())) == 3
    opened("toy").verify()


def test_a_scenario_belongs_to_the_content_it_was_made_for(
    making: tuple[Callable[[], Scenario], list[str]],
) -> None:
    make, made = making
    before = toy()
    after = toy(value=1)
    scenario(before, {}, make)  # by somebody who still has the old store open
    scenario(after, {}, make)
    assert len(made) == 2
    assert toy().identity == before.identity != after.identity


def test_contiguous_splits_cost_nothing_for_each_row() -> None:
    stored = toy([100_000, 200_000])
    whole = Split(np.arange(300_000), np.array([0, 100_000, 300_000]))
    read = scenario(stored, {}, lambda: Scenario({"train": whole}, {}))
    np.testing.assert_array_equal(read.splits["train"].index, whole.index)
    assert sum(path.stat().st_size for path in (stored.folder / "scenarios").rglob("*.npy")) < 1000


@pytest.mark.parametrize("damage", ["cut", "missing", "about"])
def test_a_damaged_scenario_is_made_again(damage: str, making: tuple[Callable[[], Scenario], list[str]]) -> None:
    make, made = making
    stored = toy()
    scenario(stored, {}, make)
    (folder,) = (stored.folder / "scenarios").iterdir()
    if damage == "missing":
        (folder / "array-new.npy").unlink()
    else:
        os.truncate(folder / ("split-test-index.npy" if damage == "cut" else "scenario.json"), 20)
    assert same(scenario(stored, {}, make), make())
    assert len(made) == 3
    assert same(scenario(stored, {}, make), make())
    assert len(made) == 4


def test_a_scenario_that_cannot_be_kept_is_used(
    making: tuple[Callable[[], Scenario], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    make, made = making
    stored = toy()

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        assert same(scenario(stored, {}, make), make())
    assert list((stored.folder / "scenarios").iterdir()) == []
    scenario(stored, {}, make)
    assert len(made) == 3


@given(st.integers(-(2**63), 2**64 - 1), st.integers(-(2**63), 2**64 - 1))
def test_the_smallest_type_holds_both_ends_and_no_smaller_one_does(one: int, other: int) -> None:
    low, high = min(one, other), max(one, other)

    def holds(kind: str) -> bool:
        limits: np.iinfo[Any] = np.iinfo(kind)
        return bool(limits.min <= low and high <= limits.max)

    good = [np.dtype(kind) for kind in ("u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8") if holds(kind)]
    if not good:
        with pytest.raises(InputError, match=f"no type for integers from {low} to {high}"):
            smallest(low, high)
        return
    assert smallest(low, high) in good
    assert smallest(low, high).itemsize == min(kind.itemsize for kind in good)


def test_smallest_of_what_data_sets_have() -> None:
    asked = [(0, 255), (0, 256), (-1, 127), (0, 9_999), (-1, 200), (0, 2**31), (-(2**63), 0)]
    assert [str(smallest(*ends)) for ends in asked] == ["uint8", "uint16", "int8", "uint16", "int16", "uint32", "int64"]
