"""Every known data set from small files in its published formats: added, loaded, and refused if it
is another.
"""

import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import set_files as write
from divided import add_people, images_of, real, saved, served
from fedtailor.data import (
    BUILT_IN_SOURCES,
    SOURCES,
    DatasetAttributes,
    add,
    add_custom,
    get_options,
    get_source,
    list_installed,
    load,
)
from fedtailor.data.reader_blocks import Block
from fedtailor.data.sources import CATALOG, get_attributes, open_dataset
from fedtailor.data.sources.catalog import BUILT_IN
from fedtailor.data.sources.text import NUM_WORDS
from fedtailor.errors import InputError
from fedtailor.storage.paths import data_dir
from set_files import Write

pytest_plugins = ["places"]

MNIST = ("train", "t10k")


class Case(NamedTuple):
    """Files of a data set, and what is to be made of them."""

    name: str
    write: Write
    shape: tuple[int, ...]
    classes: int
    people: int = 1
    rows: int | None = 40
    options: dict[str, Any] = {}  # noqa: RUF012


RULED = {"partition": "iid", "clients": 5, "server": 4}
FEW = {"server": 1}
CASES = [
    Case("mnist", write.idx(MNIST), (1, 28, 28), 10, options=RULED),
    Case("mnist", write.idx(MNIST, ""), (1, 28, 28), 10, options=RULED),
    Case("mnist", write.npz("mnist"), (1, 28, 28), 10, options=RULED),
    Case("fashion-mnist", write.idx(MNIST), (1, 28, 28), 10, options=RULED),
    Case("emnist-letters", write.emnist_zip, (1, 28, 28), 26, options=RULED),
    Case("emnist-balanced", write.emnist_zip, (1, 28, 28), 47, options=RULED),
    Case("emnist-byclass", write.emnist_zip, (1, 28, 28), 62, options=RULED),
    Case("emnist-balanced", write.npz("emnist-balanced"), (1, 28, 28), 47, options=RULED),
    *(
        Case(
            f"emnist-{variant}",
            write.idx([f"emnist-{variant}-{part}" for part in ("train", "test")]),
            (1, 28, 28),
            k,
            options=RULED,
        )
        for variant, k in (("bymerge", 47), ("digits", 10), ("mnist", 10))
    ),
    Case("cifar10", write.cifar10(binary=False), (3, 32, 32), 10, rows=12, options=RULED),
    Case("cifar10", write.cifar10(binary=True), (3, 32, 32), 10, rows=12, options=RULED),
    Case("cifar10", write.npz("cifar10"), (3, 32, 32), 10, options=RULED),
    Case(
        "cifar100", write.cifar100, (3, 32, 32), 100, options={"clients": 5, "size": 6, "server": 4}
    ),
    Case(
        "fed-cifar100",
        write.fed_cifar100,
        (3, 32, 32),
        100,
        people=8,
        options=FEW | {"server_from": "whole-clients"},
    ),
    Case("stl10", write.stl10, (3, 96, 96), 10, options=RULED),
    Case("femnist", write.leaf_femnist, (1, 28, 28), 62, people=8, rows=56, options=FEW),
    Case("femnist", write.tff_femnist, (1, 28, 28), 62, people=8, rows=56, options=FEW),
    Case("femnist", write.several_femnist, (1, 28, 28), 62, people=8, rows=None, options=FEW),
    Case("shakespeare", write.shakespeare_h5, (80,), 90, people=8, rows=48, options=FEW),
    Case("shakespeare", write.shakespeare_npz, (80,), 90, people=8, rows=None, options=FEW),
    Case("shakespeare-leaf", write.leaf_shakespeare, (80,), 90, people=8, rows=32, options=FEW),
    Case("shakespeare-leaf", write.shakespeare_h5, (80,), 90, people=8, rows=None, options=FEW),
    Case(
        "stackoverflow",
        write.stackoverflow(listed=True),
        (20,),
        NUM_WORDS + 4,
        people=8,
        rows=48,
        options=FEW,
    ),
    Case(
        "stackoverflow",
        write.stackoverflow(listed=False),
        (20,),
        NUM_WORDS + 4,
        people=8,
        rows=48,
        options=FEW,
    ),
    Case(
        "stackexchange",
        write.stackexchange(listed=True),
        (20,),
        NUM_WORDS + 4,
        people=8,
        rows=48,
        options=FEW,
    ),
    Case(
        "stackexchange",
        write.stackexchange(listed=False),
        (20,),
        NUM_WORDS + 4,
        people=8,
        rows=48,
        options=FEW,
    ),
]


def named(case: Case) -> str:
    return f"{case.name}-{getattr(case.write, '__qualname__', '').partition('.')[0]}"


def test_every_known_set_is_tried_here() -> None:
    assert {case.name for case in CASES} == CATALOG.keys()
    assert (*BUILT_IN_SOURCES, *CATALOG) == SOURCES
    assert tuple(BUILT_IN_SOURCES) == BUILT_IN


@pytest.mark.parametrize("case", CASES, ids=named)
def test_a_set_is_added_from_its_files_and_loaded(case: Case, place: Path, tmp_path: Path) -> None:
    path = case.write(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    told: list[tuple[int, int]] = []
    data = add(case.name, path, lambda *done: told.append(done))
    assert list_installed() == [case.name]
    assert [found.name for found in place.iterdir()] == ["stores"]
    assert sorted(tmp_path.rglob("*")) == before
    assert (data.num_clients, data.columns["x"].shape[1:]) == (case.people, case.shape)
    assert case.rows in (None, data.num_rows)
    assert told[-1][0] == data.num_rows
    made = load(case.name, **case.options)
    assert (made.classes, made.example_spec.shape) == (case.classes, case.shape)
    assert made.clients.count == (5 if case.people == 1 else 7)
    assert len(served(made)[0]) > 0
    known = CATALOG[case.name]
    assert (made.tokens, made.padding) == (
        known.attributes.tokens,
        known.attributes.padding,
    )
    assert open_dataset(case.name).attributes == get_attributes(case.name) == known.attributes


@pytest.mark.parametrize("listed", [True, False])
def test_words_are_those_of_the_list_or_the_most_frequent(
    listed: bool, place: Path, tmp_path: Path
) -> None:
    x = add("stackexchange", write.stackexchange(listed)(tmp_path)).columns["x"]
    the, cat, other, begin = (
        (2, 1, NUM_WORDS + 1, NUM_WORDS + 2) if listed else (1, 0, NUM_WORDS + 1, NUM_WORDS + 2)
    )
    assert x.max() <= NUM_WORDS + 3
    assert (x[:, 0] == begin).all()
    assert (x[:, 1] == the).all()
    assert (x == other).any() == listed
    assert not listed or (x[::2, 2] == cat).all()


def test_added_again_it_takes_the_place_of_the_first(place: Path, tmp_path: Path) -> None:
    first = add("mnist", saved(tmp_path / "a.npz", images_of("mnist", 30, 10)))
    load("mnist", partition="iid", clients=3)
    path = saved(tmp_path / "b.npz", images_of("mnist", 20, 10, seed=1))
    with pytest.raises(
        InputError,
        match=r"^mnist: there is a data set of this name already; say --replace \(in Python, "
        r"replace=True\) to put this one in its place, or choose another name\.$",
    ):
        add("mnist", path)
    assert open_dataset("mnist").content_hash == first.content_hash
    second = add("mnist", path, replace=True)
    assert (second.num_rows, open_dataset("mnist").num_rows) == (30, 30)
    assert first.content_hash != second.content_hash
    assert load("mnist", partition="iid", clients=3, server=0).describe().examples == 30
    assert [file.name for file in second.provenance.files] == ["b.npz"]


WRONG: list[tuple[str, str, bytes, str]] = [
    ("mnist", "some.npz", b"no archive at all", r"some.npz' cannot be read as an .npz file"),
    ("mnist", "some.txt", b"text", r"some.txt' cannot be read as a folder or a .tar.gz archive"),
    ("emnist-digits", "gzip.zip", b"no archive at all", "gzip.zip' cannot be read as an archive"),
    (
        "cifar10",
        "cifar-10-python.tar.gz",
        b"no archive",
        "cifar-10-python.tar.gz' cannot be read as an archive",
    ),
    ("cifar100", "train", b"no batch", "train' cannot be read as a batch of CIFAR-100"),
    ("fed-cifar100", "fed.tar.bz2", b"no archive", "fed.tar.bz2' cannot be read as an archive"),
    ("stl10", "stl10_binary.tar.gz", b"", "stl10_binary.tar.gz' cannot be read as an archive"),
    ("femnist", "some.sqlite", b"?", "some.sqlite' must "),
    (
        "shakespeare",
        "100.txt",
        b"plays",
        "100.txt' must hold shakespeare_train.h5 or a shakespeare.*npz file",
    ),
    (
        "shakespeare-leaf",
        "100.txt",
        b"plays",
        "100.txt' must hold shakespeare_train.h5 or a shakespeare.*npz file",
    ),
    (
        "stackoverflow",
        "posts.h5",
        b"?",
        "posts.h5' must be a folder with stackoverflow_train.h5 and",
    ),
    (
        "stackexchange",
        "stackexchange_users.npz",
        b"?",
        "stackexchange_users.npz' cannot be read as an .npz file",
    ),
]


@pytest.mark.parametrize(
    ("name", "file", "content", "sentence"), WRONG, ids=[f"{w[0]}-{w[1]}" for w in WRONG]
)
def test_another_file_is_refused_and_nothing_is_left(
    name: str, file: str, content: bytes, sentence: str, place: Path, tmp_path: Path
) -> None:
    (tmp_path / file).write_bytes(content)
    refused(name, tmp_path / file, f"^{name}: .*{sentence}")
    assert [found for found in place.rglob("*") if found.is_file()] == []
    assert list_installed() == []


def refused(name: str, path: Path, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence) as caught:
        add(name, path, replace=True)
    said = str(caught.value)
    assert said.endswith(f"; expected {CATALOG[name].expected_files}.")
    assert "\n" not in said


@pytest.mark.parametrize("name", CATALOG)
def test_an_empty_folder_and_no_file_are_refused(name: str, place: Path, tmp_path: Path) -> None:
    refused(name, tmp_path, f"^{name}: ")
    refused(name, tmp_path / "nowhere", f"^{name}: there is no file or folder '.*nowhere'")
    assert [found for found in place.rglob("*") if found.is_file()] == []


def test_what_is_there_stays_if_another_is_refused(place: Path, tmp_path: Path) -> None:
    add("mnist", saved(tmp_path / "a.npz", images_of("mnist")))
    bad = images_of("mnist", seed=1)
    bad["y_test"][-1] = 10
    refused(
        "mnist",
        saved(tmp_path / "b.npz", bad),
        "^mnist: .*b.npz' must have labels from 0 to 9, got 0 to 10",
    )
    assert open_dataset("mnist").num_rows == 40
    open_dataset("mnist").verify()


def test_a_disk_that_is_full_is_not_the_files_fault(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os

    from stores import full

    path = saved(tmp_path / "a.npz", images_of("mnist"))
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(
        InputError, match=r"^mnist: '.*' could not be written: No space left .*; make room there"
    ) as said:
        add("mnist", path)
    assert "expected" not in str(said.value)
    assert list_installed() == []


def test_other_names_are_refused(place: Path) -> None:
    with pytest.raises(
        InputError, match=r"^There is no data set 'mnst' to add; did you mean mnist\?"
    ):
        add("mnst", place)
    with pytest.raises(InputError, match=r"^There is no data set 'cifar'; did you mean cifar10\?"):
        load("cifar")
    for name in ("mnist", *BUILT_IN, "my.npz"):
        with pytest.raises(
            InputError,
            match=f"^'{name}' is the name of a known data set or of a file; choose another name",
        ):
            add_people([[False]], name=name)


def test_your_own_set_has_a_name_too(place: Path) -> None:
    add_people([[False] * 9] * 5, name="mine", about="mine alone")
    assert list_installed() == ["mine"]
    assert get_attributes("mine").about == "mine alone"
    assert load("mine", server=0).clients.count == 5
    with pytest.raises(InputError, match=r"^There is no data set 'minne'; did you mean mine\?"):
        load("minne")
    numbers = [Block("", {"x": np.eye(30, dtype=np.float32), "y": np.arange(30) % 4})]
    for classes, found in (
        (None, None),
        ("auto", 4),
        (5, 5),
    ):  # None: whole numbers, but to be predicted as such
        attributes = DatasetAttributes(classes=classes)  # type: ignore[arg-type]
        add_custom("numbers", numbers, attributes, replace=True)
        made = load("numbers", partition="dirichlet", clients=3, least=2)
        assert (made.classes, made.clients.count) == (found, 3)


def test_labels_beyond_the_classes_are_told(place: Path) -> None:
    numbers = Block("", {"x": np.eye(30, dtype=np.float32), "y": np.arange(30) % 4})
    with pytest.raises(
        InputError, match=r"^few: labels must be from 0 to 2, but example 3, of client '', has 3\.$"
    ):
        add_custom("few", [numbers], DatasetAttributes(classes=3))
    assert list_installed() == []


def test_labels_have_names_and_checksums_are_well_formed() -> None:
    for name, known in CATALOG.items():
        labels, coarse = known.attributes.labels, known.attributes.coarse
        assert not labels or len(set(labels)) == len(labels) == known.attributes.classes, name
        assert not coarse or len(coarse) == len(labels), name
        for remote in known.remotes:
            assert re.fullmatch("md5:[0-9a-f]{32}|sha256:[0-9a-f]{64}", remote.checksum), name
            assert remote.url.startswith(("http://", "https://"))
            assert remote.url.endswith(f"/{remote.name}")
            assert re.fullmatch(r"[\w.-]+\.(gz|zip|bz2)", remote.name), name
        assert len({remote.name for remote in known.remotes}) == len(known.remotes)


def test_the_folder_is_named_or_in_the_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("FEDTAILOR_DATA", str(tmp_path / "here"))
    assert data_dir() == tmp_path / "here"
    monkeypatch.delenv("FEDTAILOR_DATA")
    assert data_dir() == tmp_path / ".cache" / "fedtailor-data"


def test_nobody_can_write_into_a_set(place: Path, tmp_path: Path) -> None:
    data = add("mnist", saved(tmp_path / "a.npz", images_of("mnist")))
    for column in data.columns.values():
        with pytest.raises(ValueError, match="read-only"):
            column[0] = 0


@pytest.mark.parametrize(
    ("name", "counts"), [("mnist", (60_000, 10_000)), ("cifar10", (50_000, 10_000))]
)
def test_the_real_data_have_their_known_counts(name: str, counts: tuple[int, int]) -> None:
    y, is_test = (real(name).columns[column] for column in ("y", "is_test"))
    assert ((~is_test).sum(), is_test.sum()) == counts
    if name == "cifar10":
        assert (np.bincount(y) == 6000).all()
        assert (np.bincount(y[is_test]) == 1000).all()
    else:
        np.testing.assert_array_equal(
            np.bincount(y), [6903, 7877, 6990, 7141, 6824, 6313, 6876, 7293, 6825, 6958]
        )


def test_a_source_says_what_it_is_and_how_it_is_loaded(place: Path) -> None:
    add_people([[False] * 9] * 5, name="mine", about="mine alone")
    assert {name: get_source(name).is_stored for name in ("digits", "mnist", "mine", "a.npz")} == {
        "digits": False,
        "mnist": True,
        "mine": True,
        "a.npz": False,
    }
    for name in (*SOURCES, "mine", "a.npz"):
        source = get_source(name)
        assert source.name == name
        assert get_options(name) == source.options
        assert "\n" not in source.summary
        assert source.summary
        assert source.is_stored == ("server_from" in source.options)
    assert get_source("mine").summary == "mine alone"
    assert get_source("mnist").description.startswith(get_source("mnist").summary)
    assert get_source("mine").load(server=0).clients.count == 5
    assert get_source("digits").load(clients=12).clients.count == 12
