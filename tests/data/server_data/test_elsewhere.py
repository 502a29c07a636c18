"""Server data from elsewhere: another data set whose classes have the same names, or rendered
characters.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from divided import (
    contents,
    data_folder,
    fingerprint,
    held,
    images_of,
    labels_of,
    saved,
    served,
    writers,
)
from fedtailor.data import add, load
from fedtailor.data.examples import Array
from fedtailor.data.reader_blocks import Block
from fedtailor.data.server_data import external
from fedtailor.data.sources import CATALOG, open_dataset
from fedtailor.data.sources.catalog import READER_VERSION
from fedtailor.data.store import DatasetAttributes, Provenance, build
from fedtailor.errors import InputError

pytest_plugins = ["places"]

RNG = np.random.default_rng(8)
RULED = {"partition": "iid", "clients": 20}


def built(name: str, x: Array, y: Any, like: str) -> None:
    """A store with what is said of a known set, but any images."""
    columns = {"x": x, "y": np.asarray(y, np.uint8), "is_test": np.zeros(len(x), bool)}
    build(name, [Block("", columns)], CATALOG[like].attributes, Provenance(READER_VERSION))


@pytest.fixture(scope="module", autouse=True)
def small() -> Iterator[Path]:
    """A folder with small data sets, where data is looked for."""
    with data_folder() as path:
        for name, count in (("mnist", 300), ("emnist-balanced", 940), ("cifar10", 400)):
            add(name, saved(path / f"{name}.npz", images_of(name, count, 100, seed=len(name))))
        add("femnist", saved(path / "femnist.npz", writers()))
        built(
            "stl10", RNG.integers(0, 256, (100, 3, 96, 96), np.uint8), np.arange(100) % 10, "stl10"
        )
        yield path


def other(server: Any, name: str, **more: Any) -> dict[str, Any]:
    return {"server": server, "server_from": "set", "server_set": name, **more}


def test_digits_serve_those_who_write_characters() -> None:
    made, truth = load("emnist-balanced", **RULED, **other(57, "mnist")), labels_of("mnist")
    x, y = served(made)
    assert [truth[image] for image in contents(x)] == y.tolist()
    assert sorted(np.bincount(y).tolist()) == [5] * 3 + [6] * 7
    assert len(set(contents(x))) == 57
    assert made.describe().examples == 1040  # clients have everything
    assert y.dtype == made.clients.y.dtype


def test_characters_serve_those_who_write_digits_and_others_are_left_out() -> None:
    made, truth = (
        load("mnist", **RULED, **other(30, "emnist-balanced")),
        labels_of("emnist-balanced"),
    )
    x, y = served(made)
    assert [truth[image] for image in contents(x)] == y.tolist()
    assert np.bincount(y).tolist() == [3] * 10


def test_white_on_black_is_turned_into_dark_on_white() -> None:
    made, truth = load("femnist", **other(20, "mnist")), labels_of("mnist")
    x, y = served(made)
    assert [truth[image] for image in contents(255 - x)] == y.tolist()
    back = load("mnist", **RULED, **other(10, "femnist"))
    assert set(contents(255 - served(back)[0])) <= set(
        contents(open_dataset("femnist").columns["x"])
    )


def test_larger_images_are_shrunk_to_means_and_classes_go_by_name() -> None:
    x, y = served(load("cifar10", **RULED, **other(45, "stl10")))
    theirs, names = open_dataset("stl10"), CATALOG["stl10"].attributes.labels
    large, kinds = theirs.columns["x"].astype(np.int64), theirs.columns["y"]
    means = sum(large[:, :, i::3, j::3] for i in range(3) for j in range(3)) / 9
    small = {
        image.tobytes(): names[kind]
        for image, kind in zip(np.rint(means).astype(np.uint8), kinds, strict=True)
    }
    ours = [CATALOG["cifar10"].attributes.labels[label] for label in y]
    assert [small[image] for image in contents(x)] == ours
    assert x.shape == (45, 3, 32, 32)
    assert sorted(set(ours)) == sorted(set(names) - {"monkey"})
    assert [ours.count(name) for name in set(ours)] == [5] * 9


def test_the_server_gives_up_what_clients_have(place: Path) -> None:
    arrays = images_of("mnist", 100, 50)
    add("mnist", saved(place / "mnist.npz", arrays))
    doubled = np.concatenate(
        [arrays["x_train"][:40], RNG.integers(0, 256, (60, 28, 28), np.uint8)]
    )[:, None]
    copied_labels = arrays["y_train"][:40]
    missing = 10 - np.bincount(copied_labels, minlength=10)
    labels = np.append(copied_labels, np.repeat(np.arange(10), missing))
    built("other", doubled, labels, "mnist")
    made = load("mnist", partition="iid", clients=5, **other(70, "other"))
    x, index = served(made)[0], held(made)[0]
    assert 30 <= len(x) < 70
    assert set(contents(x)) <= set(contents(doubled[40:]))
    assert len(index) == 150
    assert made.row_counts.given_up == 70 - len(x)
    assert (made.row_counts.elsewhere, made.row_counts.server) == (len(x), 0)
    kept = load("mnist", partition="iid", clients=5, **other(70, "other", overlap=True))
    assert kept.row_counts.equal == len(
        set(contents(served(kept)[0])) - set(contents(doubled[40:]))
    )
    assert len(x) < len(served(kept)[0]) < 70
    assert set(contents(served(kept)[0])).isdisjoint(
        contents(kept.clients.x[kept.clients.splits["test"].index])
    )


def test_another_content_of_the_other_set_is_another_division(place: Path) -> None:
    add("emnist-balanced", saved(place / "e.npz", images_of("emnist-balanced", 470, 47)))
    made = []
    for seed in (1, 2):
        path = saved(place / "mnist.npz", images_of("mnist", seed=seed))
        add("mnist", path, replace=True)
        made.append(load("emnist-balanced", **RULED, **other(20, "mnist")))
        assert set(contents(served(made[-1])[0])) <= set(
            contents(open_dataset("mnist").columns["x"])
        )
    assert fingerprint(made[0]) != fingerprint(made[1])


BAD: list[tuple[str, dict[str, Any], str]] = [
    (
        "mnist",
        other(10, ""),
        "mnist: server_from=set needs the name of another data set as server_set",
    ),
    (
        "mnist",
        other(10, "fashion-mnist"),
        "fashion-mnist: there is no such data set in .*; add it with `fedtailor data",
    ),
    (
        "mnist",
        other(10, "cifar10"),
        "mnist: server_set must have classes of the same names, but .* cifar10 are airplane, auto",
    ),
    (
        "mnist",
        other(10, "plain"),
        "mnist: server_set must have classes of the same names, but those of plain have no names",
    ),
    (
        "mnist",
        other(401, "mnist"),
        "mnist: server must be at most the 400 examples that mnist has of its classes, got 401",
    ),
    (
        "stl10",
        other(9, "cifar10"),
        r"stl10: images of cifar10 must have sides .* \[3, 96, 96\], got \[3, 32, 32\]; choose",
    ),
    (
        "mnist",
        other(20, "odd"),
        r"mnist: images of odd must have sides .* \[1, 28, 28\], got \[1, 30, 28\]; choose",
    ),
    ("mnist", other(10, "mnist") | {"server": 2.0}, "mnist: server must be"),
]


@pytest.mark.parametrize(
    ("name", "options", "sentence"), BAD, ids=[f"{i}" for i in range(len(BAD))]
)
def test_what_does_not_fit_is_refused(name: str, options: dict[str, Any], sentence: str) -> None:
    built("odd", np.zeros((20, 1, 30, 28), np.uint8), np.arange(20) % 10, "mnist")
    attributes = DatasetAttributes(classes=10, scale=1 / 255)
    columns = {"x": np.zeros((9, 1, 28, 28), np.uint8), "y": np.arange(9, dtype=np.uint8)}
    build("plain", [Block("", columns)], attributes, Provenance(READER_VERSION))
    with pytest.raises(InputError, match=f"^{sentence}"):
        load(name, **RULED, **options)


@pytest.fixture
def _fonts() -> None:
    for module in ("PIL", "HersheyFonts"):
        pytest.importorskip(module)


def rendered(server: int, **more: Any) -> dict[str, Any]:
    return {"server": server, "server_from": "rendered", **more}


@pytest.mark.usefixtures("_fonts")
@pytest.mark.parametrize("name", ["mnist", "femnist"])
def test_rendered_characters_look_like_the_sets(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {**(RULED if name == "mnist" else {}), "server_rotations": "-10,10"}
    classes = len(CATALOG[name].attributes.labels)
    made = load(name, **options, **rendered(2 * classes + 3))
    (x, y), index = served(made), held(made)[0]
    counts = np.bincount(y, minlength=classes)
    assert (len(x), counts.min(), counts.max()) == (2 * classes + 3, 2, 3)
    assert x.shape[1:] == made.clients.x.shape[1:]
    corner = np.median(x[:, 0, 0, 0])
    assert corner == (255 if name == "femnist" else 0)
    assert len(set(contents(x))) == len(x)
    assert len(index) == open_dataset(name).num_rows
    if name == "mnist":
        assert fingerprint(load(name, **options, **rendered(23), seed=1)) != fingerprint(made)
    monkeypatch.setattr(external, "render_characters", None)  # it takes long, and is done once
    assert fingerprint(load(name, **options, **rendered(2 * classes + 3))) == fingerprint(made)


@pytest.mark.usefixtures("_fonts")
def test_fonts_rotations_and_points_are_lists_or_words_with_commas() -> None:
    words = {"server_fonts": "cursive, rowmans", "server_rotations": "0,5", "server_points": "110"}
    lists = {
        "server_fonts": ["cursive", "rowmans"],
        "server_rotations": [0, 5],
        "server_points": 110,
    }
    one, other_ = (
        served(load("mnist", **RULED, **rendered(20), **more))[0] for more in (words, lists)
    )
    np.testing.assert_array_equal(one, other_)
    with pytest.raises(
        InputError, match=r"per_class must be at most 2, .*, got 5; name more of them"
    ):
        load("mnist", **RULED, **rendered(50), **words)
    with pytest.raises(
        InputError, match=r"^server_points must be numbers with commas between, got '100;110'"
    ):
        load("mnist", **RULED, **rendered(20), server_points="100;110")


def test_what_has_no_characters_cannot_be_rendered() -> None:
    with pytest.raises(
        InputError,
        match=r"^cifar10: classes must be characters to be rendered, but are not; choose",
    ):
        load("cifar10", **RULED, **rendered(10))
    built("wide", np.zeros((40, 1, 28, 20), np.uint8), np.arange(40) % 10, "mnist")
    with pytest.raises(
        InputError,
        match=r"^wide: examples must be square and gray for rendered .* \[1, 28, 20\]",
    ):
        load("wide", **RULED, **rendered(10))
