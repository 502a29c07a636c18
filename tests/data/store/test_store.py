"""Stores against arrays put together by hand, kills at random moments, and damage of every kind."""

import dataclasses
import errno
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedtailor.data.examples import Array
from fedtailor.data.reader_blocks import Block
from fedtailor.data.store import (
    DatasetAttributes,
    Provenance,
    build,
    columns,
    list_stores,
    open_store,
    remove,
)
from fedtailor.data.store.verified_column import get_verified_column
from fedtailor.errors import InputError
from fedtailor.storage import checksums
from fedtailor.storage.checksums import fingerprint
from stores import MADE, NO_FACTS, blocks_of, full, left_behind, toy

KINDS = ["f2", "f4", "f8", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "?"]


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
            {
                what: random.integers(0, 100, (size, *shape)).astype(kind)
                for what, (kind, shape) in layout.items()
            },
        )
        for client, own in zip(clients, sizes, strict=True)
        for size in own
    ]


@settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(populations(), st.sampled_from([1, 7, 64, 1 << 20]))
def test_what_is_built_is_what_came(blocks: list[Block], buffer: int) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(columns, "_BUFFER_BYTES", buffer)
        patched.setattr(columns, "_NAMES_PER_WRITE", 2)
        stored = build("any", blocks, DatasetAttributes(about="ü", is_dark=True), MADE)
    stored.verify()
    assert stored.attributes == DatasetAttributes(about="ü", is_dark=True)
    assert list(stored.columns) == list(blocks[0].columns)
    for what, column in stored.columns.items():
        wanted = np.concatenate([block.columns[what] for block in blocks])
        assert get_verified_column(column) is not None
        assert column.dtype == wanted.dtype
        np.testing.assert_array_equal(column, wanted)
    whose = [block.client for block in blocks for _ in next(iter(block.columns.values()))]
    assert stored.client_names.tolist() == list(dict.fromkeys(whose))
    assert stored.num_rows == len(whose)
    for number, (start, end) in enumerate(pairwise(stored.offsets.tolist())):
        assert whose[start:end] == [stored.client_names[number]] * (end - start) != []


def test_many_clients_of_one_row_each() -> None:
    count = 20_000
    stored = build(
        "many", (Block(f"{n:x}", {"x": np.array([n])}) for n in range(count)), NO_FACTS, MADE
    )
    assert stored.num_clients == stored.num_rows == count
    np.testing.assert_array_equal(stored.columns["x"], np.arange(count))
    np.testing.assert_array_equal(stored.offsets, np.arange(count + 1))
    assert stored.client_names[[0, 255, -1]].tolist() == ["0", "ff", f"{count - 1:x}"]


def test_a_reader_may_reuse_its_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    def overwritten() -> Iterator[Block]:
        buffer = np.zeros(5, np.int16)
        for number in range(40):
            buffer[:] = number
            yield Block("one", {"x": buffer})

    monkeypatch.setattr(columns, "_BUFFER_BYTES", 64)
    np.testing.assert_array_equal(
        build("reused", overwritten(), NO_FACTS, MADE).columns["x"], np.repeat(np.arange(40), 5)
    )


@pytest.mark.slow
def test_millions_of_rows() -> None:
    def drawn() -> Iterator[Block]:
        draws = np.random.default_rng(0)
        for number in range(50_000):
            size = int(draws.integers(1, 160))
            yield Block(str(number), {"x": draws.integers(0, 10_000, (size, 20)).astype(np.uint16)})

    stored = build("large", drawn(), NO_FACTS, MADE)
    stored.verify()
    assert stored.num_rows > 3_000_000
    for number, block in enumerate(drawn()):
        start, end = stored.offsets[number : number + 2]
        np.testing.assert_array_equal(stored.columns["x"][start:end], block.columns["x"])


@pytest.mark.slow
@pytest.mark.skipif(shutil.disk_usage(Path.home()).free < 20e9, reason="11 GB of disk are needed")
def test_a_population_of_the_size_of_stackoverflow() -> None:
    """342,477 clients with 135 million sentences: built, read against its checksums, drawn from,
    and deleted.
    """
    command = [
        sys.executable,
        str(Path(__file__).parents[3] / "benchmarks" / "store.py"),
        "sentences=135000000",
    ]
    place = Path.home() / ".cache" / "fedtailor-test-population"
    environment = os.environ | {"FEDTAILOR_DATA": str(place), "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert not [path for path in place.rglob("*") if path.is_file() and path.stat().st_size]
    finally:
        shutil.rmtree(place, ignore_errors=True)
    assert done.stdout.startswith("342477 clients, 134")
    own, interpreter = map(
        int, re.findall(r"RAM of its own: (\d+) MB, of which (\d+) MB", done.stdout)[0]
    )
    assert own - interpreter < 300


def test_progress_is_told_and_ends_with_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "_BUFFER_BYTES", 9 * 4)
    told: list[tuple[int, int]] = []
    build("toy", blocks_of([5, 6]), NO_FACTS, MADE, lambda rows, size: told.append((rows, size)))
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
        r"all blocks must have columns x \(float32 \[3\]\), but one of client 'b' has x \(float64 "
        r"\[3\]\)",
    ),
    "shape": ([Block("a", {"x": X}), Block("a", {"x": X[:, :2]})], r"has x \(float32 \[2\]\)"),
    "other column": (
        [Block("a", {"x": X}), Block("b", {"x": X, "y": Y})],
        r"but one of client 'b' has x .*, y \(uint8",
    ),
    "scalar": (
        [Block("a", {"x": Y}), Block("a", {"x": np.array(1, np.uint8)})],
        r"got x of shape \[\]",
    ),
    "first scalar": (
        [Block("a", {"x": np.array(1, np.uint8)})],
        r"must have a number or more in each row",
    ),
    "text": ([Block("a", {"x": np.array(["one"])})], "column x must be numbers"),
    "byte order": ([Block("a", {"x": X.astype(">f4")})], "this machine's byte order, got >f4"),
    "no width": (
        [Block("a", {"x": X[:, :0]})],
        r"a number or more in each row, got shape \[2, 0\]",
    ),
    "column name": ([Block("a", {"../x": X})], "a column's name must be like"),
    "client type": ([Block(3, {"x": X})], "clients' names must be strings"),  # type: ignore[arg-type]
    "long id": ([Block("a" * 300, {"x": X})], "strings of up to 256 characters"),
    "nul": ([Block("a\0", {"x": X})], "without NUL"),
    "some named": (
        [Block("", {"x": X}), Block("a", {"x": X})],
        "either every block must name its client or none",
    ),
    "some unnamed": (
        [Block("a", {"x": X}), Block("", {"x": X})],
        "either every block must name its client or none",
    ),
}


@pytest.mark.parametrize("kind", BAD)
def test_blocks_that_do_not_make_columns_are_refused(kind: str, place: Path) -> None:
    blocks, sentence = BAD[kind]
    with pytest.raises(InputError, match=sentence):
        build("toy", blocks, NO_FACTS, MADE)
    assert left_behind(place) == []


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_is_refused_with_its_client(
    bad: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(columns, "_BUFFER_BYTES", 3 * 8)
    given = [Block(f"c{number}", {"x": np.ones(4)}) for number in range(4)]
    given[2].columns["x"][1] = bad
    with pytest.raises(
        InputError,
        match="column x must be finite, but example 9, of client 'c2', has a NaN or infinity",
    ):
        build("toy", given, NO_FACTS, MADE)


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "..", "-x", "ü"])
def test_names_that_are_no_folders_are_refused(name: str) -> None:
    for asked in (open_store, remove, lambda name: build(name, [], NO_FACTS, MADE)):
        with pytest.raises(InputError, match="A store's name must be"):
            asked(name)


@pytest.mark.parametrize(
    ("attributes", "sentence"),
    [
        ({"classes": 0}, "classes must be a whole number, None or 'auto', got 0"),
        ({"classes": 2.5}, "classes must be a whole number, None or 'auto', got 2.5"),
        ({"classes": "many"}, "classes must be a whole number, None or 'auto', got 'many'"),
        ({"scale": float("nan")}, "scale must be a positive number, got nan"),
        ({"scale": "1/255"}, "scale must be a positive number, got '1/255'"),
        ({"scale": 0}, "scale must be a positive number, got 0"),
        ({"scale": -1.5}, "scale must be a positive number, got -1.5"),
        (
            {"scale": 0.5},
            "scale is a factor of integer inputs that are not tokens, but x is float32; leave it "
            "out, got 0.5",
        ),
        (
            {"scale": 0.5, "tokens": True},
            "scale is a factor of integer inputs that are not tokens, but x is tokens; leave it "
            "out, got 0.5",
        ),
        (
            {"classes": 10**12},
            r"a model of 1,000,000,000,000 classes needs at least 16,000\.0 GB of memory, but cpu "
            r"has \d.* GB; number the classes from 0 on",
        ),
        ({"tokens": 1}, "tokens must be true or false, got 1"),
    ],
)
def test_attributes_that_cannot_be_are_refused(
    attributes: dict[str, Any], sentence: str, place: Path
) -> None:
    with pytest.raises(InputError, match=rf"^toy: {sentence}\.$"):
        build("toy", blocks_of([1]), DatasetAttributes(**attributes), MADE)
    assert list_stores() == []


BIG = np.array([0, 3_000_000_000], np.int64)


@pytest.mark.parametrize(
    ("classes", "y", "sentence"),
    [
        (3, np.array([0, 3]), "labels must be from 0 to 2, but example 1, of client 'a', has 3."),
        (3, np.array([-1, 0]), "labels must be from 0 to 2, but example 0, of client 'a', has -1."),
        (
            "auto",
            np.array([[0, 1], [4, -7]]),
            "labels must be whole numbers from 0 on, but example 1, of client 'a', has -7.",
        ),
        (
            3,
            np.array([0.0, 1.0]),
            "labels must be whole numbers where classes is given, but y is float64; leave it out, "
            "got 3.",
        ),
        ("auto", BIG * 2**20, "a model of 3,145,728,000,000,001 classes needs at least 50,"),
        ("auto", np.array([0, 2**64 - 1], np.uint64), "a model of 18,446,744,073,709,551,616 clas"),
    ],
)
def test_labels_that_cannot_be_are_refused_and_the_old_store_stays(
    classes: Any, y: Array, sentence: str
) -> None:
    before = toy()
    block = Block("a", {"x": np.zeros((2, 3), np.float32), "y": y})
    with pytest.raises(InputError, match=re.escape(f"toy: {sentence}")):
        build("toy", [block], DatasetAttributes(classes=classes), MADE)
    assert open_store("toy").content_hash == before.content_hash
    numbers = build("toy", [block], DatasetAttributes(classes=None), MADE)  # as targets they may be
    np.testing.assert_array_equal(numbers.columns["y"], y)


SERVER_X = np.ones((3, 2), np.float32)
SERVER_Y = np.array([0, 2, 1], np.uint8)


def test_names_that_cannot_be_written_are_refused() -> None:
    """Such as those of folders whose names are not UTF-8."""
    block = Block("a\udcff", {"x": np.zeros((2, 3), np.float32)})
    with pytest.raises(InputError, match=r"characters of UTF-8 without NUL, got 'a\\udcff'\.$"):
        build("toy", [block], NO_FACTS, MADE)


def test_the_servers_own_examples_are_kept() -> None:
    plain = toy()
    assert plain.server_columns == {}
    server = [
        Block("", {"x": SERVER_X[:1], "y": SERVER_Y[:1]}, is_server=True),
        Block("", {"x": SERVER_X[1:], "y": SERVER_Y[1:]}, is_server=True),
    ]
    blocks = [server[0], *blocks_of([3, 1, 4, 2]), Block("", {}, num_dropped=5), server[1]]
    stored = build("toy", blocks, DatasetAttributes(classes=3), MADE)
    assert (stored.num_rows, stored.num_clients, stored.num_dropped) == (10, 4, 5)
    np.testing.assert_array_equal(stored.columns["x"], plain.columns["x"])
    np.testing.assert_array_equal(stored.server_columns["x"], SERVER_X)
    np.testing.assert_array_equal(stored.server_columns["y"], SERVER_Y)
    assert stored.content_hash != plain.content_hash
    stored.verify()
    flip(stored.folder / "server-y.bin", 1)
    with pytest.raises(InputError, match=r"rows 0 to 2 of column y \('server-y\.bin'\) are not"):
        np.asarray(open_store("toy").server_columns["y"])


@pytest.mark.parametrize(
    ("x", "y", "sentence"),
    [
        (
            SERVER_X[:, :1],
            SERVER_Y,
            "the server's x must be float32 [2] as the clients', got float",
        ),
        (SERVER_X, SERVER_Y + 0.5, "the server's y must be uint8 [] as the clients', got float"),
        (SERVER_X[1:], SERVER_Y, "the server's x and y must be equally many examples, one or more"),
        (SERVER_X[:0], SERVER_Y[:0], "the server's x and y must be equally many examples, one or"),
        (SERVER_X * np.inf, SERVER_Y, "column x must be finite, but example 0 of the server has a"),
        (SERVER_X, SERVER_Y + 1, "labels must be from 0 to 2, but example 1 of the server has 3."),
    ],
)
def test_bad_examples_of_the_server_are_refused(x: Array, y: Array, sentence: str) -> None:
    blocks = [*blocks_of([3]), Block("", {"x": x, "y": y.astype(y.dtype)}, is_server=True)]
    with pytest.raises(InputError, match=re.escape(f"toy: {sentence}")):
        build("toy", blocks, DatasetAttributes(classes=3), MADE)


def test_every_attribute_comes_back() -> None:
    attributes = DatasetAttributes(
        classes=None,
        scale=1.5,
        tokens=False,
        padding=(0, 2),
        unscored_tokens=(3,),
        labels=("a", "ü"),
        coarse=(1, 0),
        is_dark=True,
        about="all of it",
    )
    tokens = dataclasses.replace(attributes, scale=1.0, tokens=True)  # which have no scale
    for field in dataclasses.fields(attributes):
        values = {getattr(attributes, field.name), getattr(tokens, field.name)}
        assert values != {field.default}
    block = Block("a", {"x": np.ones((3, 2), np.uint8), "y": np.ones(3, np.uint8)})
    for expected in (attributes, tokens):
        assert build("toy", [block], expected, MADE).attributes == expected
        assert open_store("toy").attributes == expected


def test_a_store_of_the_first_format_is_refused_with_what_to_do() -> None:
    """Its manifest had other keys, and no attribute `unscored_tokens`."""
    folder = toy().folder
    content = json.loads((folder / "manifest.json").read_text())
    content["format"] = 1
    content["made_from"] = content.pop("provenance")
    content["ids"] = content.pop("client_names")
    (folder / "manifest.json").write_text(json.dumps(content))
    with pytest.raises(
        InputError,
        match=r"^toy: '.*' is in format 1, not 3; build .* `fedtailor data add toy --replace`\.$",
    ):
        open_store("toy")


def test_too_little_room_is_said_before_anything_is_read(place: Path) -> None:
    blocks = map(pytest.fail, ["the blocks were read"])
    with pytest.raises(
        InputError, match=r"toy: 1000000\.0 GB are needed, but .* has .* free; make room"
    ):
        build("toy", blocks, NO_FACTS, MADE, needed_bytes=10**15)
    assert left_behind(place) == []


def test_a_disk_that_fills_up_leaves_what_was_there(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy()

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(
            InputError,
            match=r"toy: '.*stores' could not be written: No space left on device; make room",
        ):
            toy([9, 9])
    assert left_behind(place) == ["toy"]
    assert open_store("toy").num_rows == 10


def test_a_write_that_fails_midway_is_one_sentence(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = iter(range(1000))

    class Full(checksums.FileWriter):
        def add(self, rows: Array | bytes) -> None:
            super().add(rows)
            if next(calls) == 3:  # and never again, as when somebody makes room
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(columns, "FileWriter", Full)
    monkeypatch.setattr(columns, "_BUFFER_BYTES", 64)
    with pytest.raises(InputError, match="could not be written: No space left on device"):
        toy([50, 50])
    assert left_behind(place) == []


def test_the_disk_begins_early_and_all_the_same_ends_with_everything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reached: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda handle: reached.append(os.fstat(handle).st_size))
    monkeypatch.setattr(checksums, "_SYNC_BYTES", 100)
    monkeypatch.setattr(columns, "_BUFFER_BYTES", 64)
    stored = toy([200, 100])
    stored.verify()
    assert stored.num_rows == 300
    assert any(100 <= size < 2400 for size in reached)  # of the 2400 bytes of x
    assert 2400 in reached


def test_a_disk_that_says_only_once_that_it_is_full_is_heard(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[int] = []

    def full_once(handle: int) -> None:
        said.append(handle)
        if len(said) == 1:
            full(handle)

    monkeypatch.setattr(os, "fsync", full_once)
    monkeypatch.setattr(checksums, "_SYNC_BYTES", 100)
    monkeypatch.setattr(columns, "_BUFFER_BYTES", 64)
    with pytest.raises(InputError, match="could not be written: No space left on device"):
        toy([50, 50])
    assert left_behind(place) == []


def test_everything_is_on_the_disk_before_the_store_is_there(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before: dict[int, bool] = {}
    monkeypatch.setattr(
        os,
        "fsync",
        lambda handle: before.setdefault(os.fstat(handle).st_ino, "toy" not in list_stores()),
    )
    folder = toy().folder
    assert len(list(folder.iterdir())) == 5
    assert all(before[path.stat().st_ino] for path in (folder, *folder.iterdir()))
    assert before[folder.parent.stat().st_ino] is False


def test_a_reader_that_fails_is_heard_and_leaves_nothing(place: Path) -> None:
    def broken() -> Iterator[Block]:
        yield from blocks_of([3])
        raise OSError("the source is gone")

    with pytest.raises(OSError, match="the source is gone"):
        build("toy", broken(), NO_FACTS, MADE)
    assert left_behind(place) == []


def test_what_it_was_made_from_is_told(tmp_path: Path) -> None:
    source = tmp_path / "source.csv"
    source.write_bytes(b"abc")
    made = Provenance("7", (fingerprint(source),))
    assert (
        made.files[0].sha256 == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    )
    assert (
        build("toy", blocks_of([1]), NO_FACTS, made).provenance
        == open_store("toy", "7").provenance
        == made
    )
    with pytest.raises(
        InputError,
        match=r"was built by version 7, not 8; build it .* `fedtailor data add toy --replace`",
    ):
        open_store("toy", "8")


def test_names_and_removing(place: Path) -> None:
    assert list_stores() == []
    kept = toy(name="b")
    toy(name="a.1")
    assert list_stores() == ["a.1", "b"]
    remove("b")
    remove("b")
    assert list_stores() == left_behind(place) == ["a.1"]
    assert kept.columns["x"][9, 0] == 9  # whoever has it open keeps it
    with pytest.raises(
        InputError, match=r"b: there is no such data set in .*; add it with `fedtailor data add b`"
    ):
        open_store("b")


def edited(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        content = json.loads((folder / "manifest.json").read_text())
        change(content)
        content.pop("checksum")
        text = json.dumps(content, sort_keys=True)
        content["checksum"] = hashlib.sha256(text.encode()).hexdigest()
        (folder / "manifest.json").write_text(json.dumps(content))

    return damage


def cut(folder: Path) -> None:
    os.truncate(folder / "column-x.bin", 79)


def corrected(folder: Path) -> None:
    """Another factor of x in the manifest, whose checksum stays."""
    manifest = folder / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"scale": 1.0', '"scale": 2.0'))


DAMAGE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "cut": (cut, "damaged, 'column-x.bin' has 79 bytes instead of 80"),
    "longer": (
        lambda f: (f / "client_names.bin").write_bytes(bytes(99)),
        "damaged, 'client_names.bin' has 99 bytes instead of",
    ),
    "missing": (lambda f: (f / "offsets.bin").unlink(), "damaged, 'offsets.bin' is missing"),
    "no manifest": (
        lambda f: (f / "manifest.json").unlink(),
        "damaged, 'manifest.json' cannot be read",
    ),
    "half a manifest": (
        lambda f: os.truncate(f / "manifest.json", 50),
        "damaged, 'manifest.json' is not a manifest",
    ),
    "a list": (
        lambda f: (f / "manifest.json").write_text("[]"),
        "'manifest.json' is not a manifest",
    ),
    "another value": (corrected, "'manifest.json' is not a manifest"),
    "deep": (
        lambda f: (f / "manifest.json").write_text("[" * 100_000),
        "'manifest.json' is not a manifest",
    ),
    "a key less": (edited(lambda m: m.pop("client_names")), "'manifest.json' is not a manifest"),
    "a key more": (edited(lambda m: m.update(more=1)), "'manifest.json' is not a manifest"),
    "other format": (edited(lambda m: m.update(format=0)), "is in format 0, not 3"),
    "no format": (edited(lambda m: m.pop("format")), "'manifest.json' is not a manifest"),
    "an attribute more": (
        edited(lambda m: m["attributes"].update(more=1)),
        "'manifest.json' is not a manifest",
    ),
    "a column's key less": (
        edited(lambda m: m["columns"]["x"].pop("dtype")),
        "'manifest.json' is not a manifest",
    ),
    "a file's key less": (
        edited(lambda m: m["offsets"]["file"].pop("sha256")),
        "'manifest.json' is not a manifest",
    ),
    "other rows": (
        edited(lambda m: m.update(rows=9)),
        "damaged, its files are not of 4 clients and 9 rows",
    ),
    "other clients": (
        edited(lambda m: m.update(clients=5)),
        "damaged, its files are not of 5 clients and 10 rows",
    ),
    "other type": (
        edited(lambda m: m["columns"]["x"].update(dtype="<f8")),
        "damaged, it cannot be mapped",
    ),
    "smaller type": (
        edited(lambda m: m["columns"]["x"].update(dtype="<f2")),
        r"damaged, it cannot be mapped: \[10, 2\] of <f2 are not 80 bytes",
    ),
    "no type": (
        edited(lambda m: m["columns"]["x"].update(dtype="huh")),
        "damaged, it cannot be mapped",
    ),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_store_is_refused_when_opened(kind: str) -> None:
    damage, sentence = DAMAGE[kind]
    damage(toy().folder)
    with pytest.raises(InputError, match=sentence) as refused:
        open_store("toy")
    assert str(refused.value).endswith("; build it again with `fedtailor data add toy --replace`.")
    toy()
    open_store("toy").verify()


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("file", ["offsets.bin", "client_names.bin"])
def test_a_changed_byte_of_the_clients_is_noticed_on_opening(file: str) -> None:
    flip(toy().folder / file, -9)  # sizes and ends stay as they are
    with pytest.raises(
        InputError,
        match=f"toy: the store is damaged, '{file}' is not what was written; build it again",
    ):
        open_store("toy")


def test_verify_says_which_rows_of_which_column_are_damaged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(columns, "_BLOCK_BYTES", 24)
    stored = toy()
    np.testing.assert_array_equal(stored.columns["x"][:, 0], np.arange(10))  # all verified once
    flip(stored.folder / "column-x.bin", 8 * 7)
    with pytest.raises(
        InputError,
        match=r"^toy: the store is damaged, rows 6 to 8 of column x \('column-x\.bin'\) are not "
        r"what was written; build it again with `fedtailor data add toy --replace`\.$",
    ):
        stored.verify()
