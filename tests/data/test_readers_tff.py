"""TensorFlow Federated's HDF5 and SQLite files, with Google's own protobuf as the oracle of the examples in them."""

import sqlite3
import sys
import tempfile
from collections.abc import Iterable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from fedtailor.data.blocks import Block
from fedtailor.data.holders import Array
from fedtailor.data.readers import example, text, tff
from fedtailor.errors import InputError
from reading import DAMAGE, by_client, damaged

RNG = np.random.default_rng(6)


@cache
def message_class() -> Any:
    """`tf.train.Example` as Google's protobuf package understands it, built from its definition."""
    modules = ("descriptor_pb2", "descriptor_pool", "message_factory")
    descriptor_pb2, descriptor_pool, message_factory = (
        pytest.importorskip(f"google.protobuf.{module}") for module in modules
    )

    file = descriptor_pb2.FileDescriptorProto(name="example.proto", package="t", syntax="proto3")
    field = descriptor_pb2.FieldDescriptorProto

    def message(name: str, *fields: tuple[str, int, int, int, str]) -> Any:
        made = file.message_type.add(name=name)
        for label, number, kind, many, of in fields:
            made.field.add(name=label, number=number, type=kind, label=many, type_name=of or None)
        return made

    one, many = field.LABEL_OPTIONAL, field.LABEL_REPEATED
    message("BytesList", ("value", 1, field.TYPE_BYTES, many, ""))
    message("FloatList", ("value", 1, field.TYPE_FLOAT, many, ""))
    message("Int64List", ("value", 1, field.TYPE_INT64, many, ""))
    lists = [("bytes_list", 1, ".t.BytesList"), ("float_list", 2, ".t.FloatList"), ("int64_list", 3, ".t.Int64List")]
    message("Feature", *((name, number, field.TYPE_MESSAGE, one, of) for name, number, of in lists))
    features = message("Features", ("feature", 1, field.TYPE_MESSAGE, many, ".t.Features.FeatureEntry"))
    entry = features.nested_type.add(name="FeatureEntry")
    entry.field.add(name="key", number=1, type=field.TYPE_STRING, label=one)
    entry.field.add(name="value", number=2, type=field.TYPE_MESSAGE, label=one, type_name=".t.Feature")
    entry.options.map_entry = True
    message("Example", ("features", 1, field.TYPE_MESSAGE, one, ".t.Features"))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("t.Example"))


def serialised(**features: bytes | Array) -> bytes:
    made = message_class()()
    for name, value in features.items():
        feature = made.features.feature[name]
        if isinstance(value, bytes):
            feature.bytes_list.value.append(value)
        elif value.dtype.kind == "f":
            feature.float_list.value.extend(value.ravel().tolist())
        else:
            feature.int64_list.value.extend(value.ravel().tolist())
    return bytes(made.SerializeToString())


def test_examples_are_parsed_as_protobuf_would() -> None:
    whole = np.array([0, 1, 127, 128, -1, -(2**63), 2**63 - 1])
    parts = np.array([0.5, -1.25, 3e38], np.float32)
    raw = serialised(a=b"some \xff bytes", b=parts, c=whole, d=b"", e=b"not wanted")
    found = example.parse_example(raw, ("a", "b", "c", "d"))
    assert set(found) == set("abcd")
    assert found["a"] == [b"some \xff bytes"]
    assert found["d"] == [b""]
    np.testing.assert_array_equal(found["b"], parts)
    np.testing.assert_array_equal(found["c"], whole)
    with pytest.raises(ValueError, match="an example has no f"):
        example.parse_example(raw, ("f",))


def test_numbers_need_not_be_packed() -> None:
    feature = b"\x1a\x05\x08\x07\x08\xac\x02"  # 7 and 300, each a field of its own
    entry = b"\x0a\x01c\x12" + bytes([len(feature)]) + feature
    features = b"\x0a" + bytes([len(entry)]) + entry
    raw = b"\x0a" + bytes([len(features)]) + features
    np.testing.assert_array_equal(example.parse_example(raw, ("c",))["c"], [7, 300])


def test_a_number_has_64_bits() -> None:
    feature = b"\x1a\x0c\x0a\x0a" + b"\xff" * 9 + b"\x7f"  # 70 bits are set
    entry = b"\x0a\x01c\x12" + bytes([len(feature)]) + feature
    features = b"\x0a" + bytes([len(entry)]) + entry
    raw = b"\x0a" + bytes([len(features)]) + features
    np.testing.assert_array_equal(example.parse_example(raw, ("c",))["c"], [-1])


def write_sqlite(path: Path, rows: Iterable[tuple[str, str, bytes]]) -> None:
    """A database as TensorFlow Federated writes it: its two tables, rows of (split, client, example)."""
    opened = sqlite3.connect(path)
    with opened:
        opened.execute(
            "CREATE TABLE examples (split_name TEXT NOT NULL, client_id TEXT NOT NULL, "
            "serialized_example_proto BLOB NOT NULL);"
        )
        opened.execute(
            "CREATE TABLE client_metadata (client_id TEXT NOT NULL, split_name TEXT NOT NULL, "
            "num_examples INTEGER NOT NULL);"
        )
        opened.executemany("INSERT INTO examples VALUES (?, ?, ?)", rows)
    opened.close()


def write_hdf5(path: Path, clients: dict[str, dict[str, Any]]) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        for client, features in clients.items():
            for name, values in features.items():
                kind = h5py.string_dtype("ascii") if isinstance(values, list) else None
                file.create_dataset(f"examples/{client}/{name}", data=values, dtype=kind)


WRITERS = {
    "train": {"f0_2": ([0, 61], [1, 2]), "f0_1": ([3], [3])},
    "test": {"f0_2": ([4], [4]), "f0_3": ([5], [5])},
}  # by part and writer: labels, and how dark every pixel is


def pixels(grey: int) -> Array:
    return (np.full((28, 28), grey) / 255).astype(np.float32)


def check_emnist(blocks: Iterable[Block]) -> None:
    found = by_client(blocks)
    assert list(found) == ["f0_1", "f0_2", "f0_3"]
    assert found["f0_2"]["x"].shape == (3, 1, 28, 28)
    assert found["f0_2"]["x"][:, 0, 9, 9].tolist() == [1, 2, 4]
    assert found["f0_2"]["y"].tolist() == [0, 61, 4]
    assert found["f0_2"]["testing"].tolist() == [False, False, True]
    assert found["f0_3"]["testing"].tolist() == [True]
    assert found["f0_2"]["y"].dtype == found["f0_2"]["x"].dtype == np.uint8


def test_fed_emnist_from_hdf5(tmp_path: Path) -> None:
    for part, writers in WRITERS.items():
        clients = {
            name: {"pixels": np.stack([pixels(grey) for grey in greys]), "label": np.array(labels, np.int32)}
            for name, (labels, greys) in writers.items()
        }
        write_hdf5(tmp_path / f"fed_emnist_{part}.h5", clients)
    check_emnist(tff.fed_emnist(tmp_path))
    with pytest.raises(InputError, match=r"There is no file '.*fed_emnist_digitsonly_train.h5'"):
        by_client(tff.fed_emnist(tmp_path, digits_only=True))


def test_fed_emnist_from_sqlite(tmp_path: Path) -> None:
    rows = [
        (f"{kind}_{part}", name, serialised(pixels=pixels(grey), label=np.array(label % most)))
        for kind, most in (("all", 62), ("digits_only", 10))
        for part, writers in reversed(WRITERS.items())  # test before train, clients in no order
        for name, (labels, greys) in writers.items()
        for label, grey in zip(labels, greys, strict=True)
    ]
    write_sqlite(tmp_path / "emnist_all.sqlite", rows)
    check_emnist(tff.fed_emnist(tmp_path / "emnist_all.sqlite"))
    assert by_client(tff.fed_emnist(tmp_path / "emnist_all.sqlite", True))["f0_2"]["y"].tolist() == [0, 1, 4]


def test_fed_cifar100(tmp_path: Path) -> None:
    images = RNG.integers(0, 256, (2, 32, 32, 3), np.uint8)
    rows = []
    for part, image in zip(("train", "test"), images, strict=True):
        features = {"image": image[None], "label": np.array([99]), "coarse_label": np.array([19])}
        rows.append((part, "0", serialised(**{name: value.astype(np.int64) for name, value in features.items()})))
    write_sqlite(tmp_path / "cifar100.sqlite", rows)
    found = by_client(tff.fed_cifar100(tmp_path / "cifar100.sqlite"))
    assert list(found) == ["train_0", "test_0"]  # different people, though both are called 0
    np.testing.assert_array_equal(found["test_0"]["x"][0, 2], images[1, :, :, 2])
    assert (found["train_0"]["y"].tolist(), found["train_0"]["coarse"].tolist()) == ([99], [19])


def test_fed_cifar100_from_hdf5(tmp_path: Path) -> None:
    images = RNG.integers(0, 256, (2, 32, 32, 3), np.uint8)
    for part, image in zip(("train", "test"), images, strict=True):
        features = {"image": image[None], "label": np.array([99]), "coarse_label": np.array([[19]])}
        write_hdf5(tmp_path / f"fed_cifar100_{part}.h5", {"0": features})
    found = by_client(tff.fed_cifar100(tmp_path))
    np.testing.assert_array_equal(found["train_0"]["x"][0, 1], images[0, :, :, 1])
    assert found["test_0"]["coarse"].tolist() == [19]


SPEECHES = {"train": {"LEAR": ["Howl, howl!", "Never."]}, "test": {"LEAR": ["Pray you, undo this button."]}}


def check_shakespeare(blocks: Iterable[Block]) -> None:
    columns = by_client(blocks)["LEAR"]
    expected = text.encode_characters([*SPEECHES["train"]["LEAR"], *SPEECHES["test"]["LEAR"]])
    np.testing.assert_array_equal(columns["x"], expected["x"])
    np.testing.assert_array_equal(columns["y"], expected["y"])
    assert columns["testing"].tolist() == [False, False, True]


def test_shakespeare_from_hdf5(tmp_path: Path) -> None:
    for part, roles in SPEECHES.items():
        write_hdf5(tmp_path / f"shakespeare_{part}.h5", {role: {"snippets": said} for role, said in roles.items()})
    check_shakespeare(tff.shakespeare(tmp_path))


def test_shakespeare_from_sqlite(tmp_path: Path) -> None:
    path = tmp_path / "shakespeare.sqlite"
    said = [(part, role, line) for part, roles in SPEECHES.items() for role, lines in roles.items() for line in lines]
    write_sqlite(path, [(part, role, serialised(snippets=line.encode())) for part, role, line in said])
    check_shakespeare(tff.shakespeare(path))


POSTS = {"train": ["the cat sat", "a cat", "the"], "test": ["sat"], "heldout": ["cat cat"]}
KNOWN = text.vocabulary(["the", "cat", "sat"])
ENCODE = partial(text.encode_words, known=KNOWN, length=3)


def test_stackoverflow_from_sqlite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "stackoverflow.sqlite"
    rows = [
        (part, "00000010" if part == "heldout" else "00000009", serialised(tokens=post.encode(), score=np.array(-3)))
        for part, posts in POSTS.items()
        for post in posts
    ]
    write_sqlite(path, rows)
    for at_once in (4096, 1):  # in one piece or in many
        monkeypatch.setattr(tff, "AT_ONCE", at_once)
        found = by_client(tff.stackoverflow(path, ENCODE, most=2))
        assert list(found) == ["00000009"]
        assert found["00000009"]["x"].tolist() == [[5, 1, 2], [5, 4, 2], [5, 3, 6]]
        assert found["00000009"]["y"].tolist() == [[1, 2, 3], [4, 2, 6], [3, 6, 0]]
        assert found["00000009"]["testing"].tolist() == [False, False, True]
    assert len(by_client(tff.stackoverflow(path, ENCODE, most=None))["00000009"]["x"]) == 4
    assert list(by_client(tff.stackoverflow(path, ENCODE, held_out=True))) == ["00000010"]
    with pytest.raises(InputError, match="most must be None or a whole number of at least 1, got 0"):
        tff.stackoverflow(path, ENCODE, most=0)


def test_stackoverflow_from_hdf5(tmp_path: Path) -> None:
    for part, posts in POSTS.items():
        name = "held_out" if part == "heldout" else part
        write_hdf5(tmp_path / f"stackoverflow_{name}.h5", {"00000009": {"tokens": posts}})
    found = by_client(tff.stackoverflow(tmp_path, ENCODE, most=2))["00000009"]
    assert found["x"].tolist() == [[5, 1, 2], [5, 4, 2], [5, 3, 6]]
    held_out = by_client(tff.stackoverflow(tmp_path, ENCODE, held_out=True))["00000009"]
    assert (held_out["x"].tolist(), held_out["testing"].tolist()) == ([[5, 2, 2]], [False])


def test_bad_databases(tmp_path: Path) -> None:
    path = tmp_path / "some.sqlite"
    with pytest.raises(InputError, match="There is no file"):
        by_client(tff.shakespeare(path))
    path.write_bytes(b"not a database, but long enough to be mistaken for one")
    with pytest.raises(InputError, match=r"some.sqlite' cannot be read as an SQLite database.*not a database"):
        by_client(tff.shakespeare(path))
    path.unlink()
    sqlite3.connect(path).close()
    with pytest.raises(InputError, match="no such table: examples"):
        by_client(tff.shakespeare(path))
    write_sqlite(path, [("other", "x", serialised(snippets=b"a"))])
    with pytest.raises(InputError, match=r"some.sqlite' must have examples of train or test"):
        by_client(tff.shakespeare(path))
    for name, (feature, sentence) in enumerate(BAD_FEATURES):
        worse = tmp_path / f"{name}.sqlite"
        write_sqlite(worse, [("train", "x", feature)])
        with pytest.raises(InputError, match=sentence) as caught:
            by_client(tff.shakespeare(worse))
        assert worse.name in str(caught.value)


BAD_FEATURES = [
    (b"\xff" * 20, "too long"),
    (b"\x0a\x7f", "cut off"),
    (b"", "no snippets"),
    (b"\x0a\x10\x0a\x0e\x0a\x08snippets\x12\x02\x0a\x00", "one text"),
    (b"\x0a\x13\x0a\x11\x0a\x08snippets\x12\x05\x0a\x03\x0a\x01\xff", "texts in UTF-8"),
]


def test_bad_hdf5_files(tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    path = tmp_path / "shakespeare_train.h5"
    path.write_bytes(b"not HDF5")
    with pytest.raises(InputError, match=r"shakespeare_train.h5' cannot be read as an HDF5 file"):
        by_client(tff.shakespeare(tmp_path))
    for part in ("train", "test"):
        write_hdf5(tmp_path / f"shakespeare_{part}.h5", {"x": {"other": [b"a"]}})
    with pytest.raises(InputError, match=r"shakespeare_train.h5' cannot be read as an HDF5 file"):
        by_client(tff.shakespeare(tmp_path))
    whole = path.read_bytes()
    for length in range(0, len(whole), 97):
        path.write_bytes(whole[:length])
        with pytest.raises(InputError, match="shakespeare_"):
            by_client(tff.shakespeare(tmp_path))


def test_without_h5py_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(InputError, match=r"needs the package h5py: pip install 'fedtailor\[hdf5\]'"):
        by_client(tff.shakespeare(tmp_path))


@settings(max_examples=80, deadline=None)
@given(**DAMAGE)
def test_damaged_databases(at: float, flip: int | None) -> None:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "shakespeare.sqlite"
        path.write_bytes(damaged(database(), at, flip))
        try:
            found = by_client(tff.shakespeare(path))
        except InputError:
            return
        assert all(columns["x"].shape[1:] == (80,) for columns in found.values())


@settings(max_examples=100, deadline=None)
@given(**DAMAGE)
def test_damaged_examples(at: float, flip: int | None) -> None:
    raw = damaged(serialised(pixels=np.arange(3, dtype=np.float32), label=np.array(7)), at, flip)
    try:
        found = example.parse_example(raw, ("pixels", "label"))
    except ValueError:
        return
    assert set(found) == {"pixels", "label"}


@cache
def database() -> bytes:
    """A small database: a header, tables and rows, with few unused bytes between."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "shakespeare.sqlite"
        opened = sqlite3.connect(path)
        opened.execute("PRAGMA page_size = 512")
        opened.close()
        rows = [(part, role, serialised(snippets=b"a" * 20)) for part in ("train", "test") for role in "xyz"]
        write_sqlite(path, rows)
        return path.read_bytes()
