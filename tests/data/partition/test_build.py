"""Data sets among people: every partition, one seed one division, kept beside the examples, refused
with a sentence.
"""

from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from divided import (
    contents,
    data_folder,
    fingerprint,
    group,
    held,
    images_of,
    labels_of,
    real,
    saved,
    served,
    table,
    writers,
)
from fedtailor.data import add, dataset, load
from fedtailor.data.partition.options import PARTITION_OPTIONS
from fedtailor.data.partition.splits import select_clients_covering_labels
from fedtailor.data.sources import open_dataset
from fedtailor.data.store import CachedScenario, StoredDataset
from fedtailor.errors import InputError
from fedtailor.storage.paths import data_dir

pytest_plugins = ["places"]

REAL = data_dir()  # before it is changed below
federated = import_module("fedtailor.data.partition.build")

SMALL: dict[str, dict[str, Any]] = {
    "two-labels": {"clients": 30, "least": 4},
    "half-and-half": {"clients": 10, "images": 8},
    "few-labels": {"clients": 30},
    "shards": {"clients": 30},
    "dirichlet": {"clients": 30, "least": 5},
    "quantity": {"clients": 30, "least": 5},
    "iid": {"clients": 30},
    "pachinko": {"clients": 30, "size": 30},
    "natural": {"clients": 30},
}
BY_LABELS = [name for name in SMALL if name not in ("pachinko", "natural")]
CASES = [
    *(("mnist", name) for name in BY_LABELS),
    *(("cifar10", name) for name in (*BY_LABELS, "pachinko")),
    *(("femnist", name) for name in ("natural", "pachinko", "dirichlet")),
]
WHOLE = ("shards", "dirichlet", "quantity", "iid")  # partitions that give everything to somebody


@pytest.fixture(scope="module", autouse=True)
def small() -> Iterator[Path]:
    """A folder with small data sets, where data is looked for."""
    with data_folder() as path:
        for name in ("mnist", "cifar10"):
            add(name, saved(path / f"{name}.npz", images_of(name, 1000, 200)))
        add("femnist", saved(path / "femnist.npz", writers()))
        yield path


def made_only(
    _data: StoredDataset, _options: dict[str, Any], make: Callable[[], CachedScenario]
) -> CachedScenario:
    """A scenario that is kept nowhere."""
    return make()


def test_every_partition_is_tried_here() -> None:
    assert SMALL.keys() == PARTITION_OPTIONS.keys() == {partition for _, partition in CASES}


@pytest.mark.parametrize(("name", "partition"), CASES)
def test_every_image_is_held_once_with_its_label(name: str, partition: str) -> None:
    options = SMALL[partition] | {"partition": partition, "server": 60, "server_from": "examples"}
    made, data, truth = load(name, **options), open_dataset(name), labels_of(name)
    index, _ = held(made)
    x, y = served(made)
    images = contents(made.clients.x[index]) + contents(x)
    assert len(set(images)) == len(images)
    assert len(x) == 60
    assert [truth[image] for image in images] == [*made.clients.y[index].tolist(), *y.tolist()]
    about = data.attributes
    assert (made.name, made.classes, made.scale, made.overlap) == (
        name,
        about.classes,
        1 / 255,
        False,
    )
    assert made.clients.x.shape[1:] == data.columns["x"].shape[1:]
    assert made.clients.count == SMALL[partition]["clients"]
    assert made.content_hash == data.content_hash
    if partition in WHOLE:
        assert len(images) == data.num_rows


@pytest.mark.parametrize(("name", "partition"), CASES)
def test_a_seed_decides_everything(
    name: str, partition: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def again(seed: int) -> str:
        return fingerprint(load(name, partition=partition, seed=seed, **SMALL[partition]))

    first = again(0)
    assert again(1) != first
    monkeypatch.setattr(federated, "load_or_build_scenario", made_only)
    assert again(0) == first


@pytest.mark.parametrize(("name", "partition"), CASES)
def test_what_was_kept_is_the_same_and_is_not_checked_again(
    name: str, partition: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def checked(_: object) -> None:
        raise AssertionError("checked")

    options = SMALL[partition] | {"partition": partition, "test_share": 0.3}
    first = load(name, **options)
    monkeypatch.setattr(dataset, "validate_dataset", checked)
    second = load(name, **options)
    assert fingerprint(second) == fingerprint(first)
    assert (second.example_spec, second.support, second.content_hash) == (
        first.example_spec,
        first.support,
        first.content_hash,
    )
    assert second.get_adapt_split() == first.get_adapt_split() == "train"
    with pytest.raises(AssertionError, match="checked"):
        load(name, **options | {"test_share": 0.31})


def bytes_below(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def test_what_is_kept_is_small(place: Path) -> None:
    add("mnist", saved(place / "mnist.npz", images_of("mnist", 1000, 200)))
    alone = bytes_below(place / "stores" / "mnist")
    for seed in range(10):
        load("mnist", partition="iid", clients=30, seed=seed)
    kept = list((place / "stores" / "mnist" / "scenarios").iterdir())
    assert len(kept) == 10
    assert bytes_below(place / "stores" / "mnist") < 1.25 * alone


@pytest.mark.parametrize("partition", [name for name in BY_LABELS if name != "half-and-half"])
@pytest.mark.parametrize("seed", range(3))
def test_new_people_know_what_is_trained_on(partition: str, seed: int) -> None:
    made = load("mnist", partition=partition, seed=seed, **SMALL[partition] | {"clients": 50})
    known = {
        group: set(np.flatnonzero(table(made)[who].any(axis=0)).tolist())
        for group, who in made.groups.items()
    }
    assert known["unseen"] == known["train"] == set(range(10))
    sizes = {group: len(who) for group, who in made.groups.items()}
    assert sizes == {"train": 35, "participating": 35, "validation": 5, "unseen": 10}
    people = np.concatenate([made.groups[group] for group in ("train", "validation", "unseen")])
    assert sorted(people.tolist()) == list(range(50))


def test_new_people_of_half_and_half_are_of_both_kinds() -> None:
    made = load("mnist", partition="half-and-half", clients=50, images=3)
    assert sorted((table(made) > 0).sum(axis=1)[made.groups["unseen"]]) == [2] * 5 + [5] * 5


def test_few_people_are_chosen_so_that_they_know_much_and_late_ones_first() -> None:
    eye = np.eye(6, dtype=bool)
    knows = eye | np.roll(eye, 1, axis=1)  # client k: labels k and k + 1, 5: 5 and 0
    assert select_clients_covering_labels(knows, 3).tolist() == [1, 3, 5]
    assert select_clients_covering_labels(knows, 6).tolist() == list(range(6))
    assert select_clients_covering_labels(np.ones((5, 3), bool), 2).tolist() == [3, 4]
    assert select_clients_covering_labels(np.array([[1, 1], [1, 0], [1, 0]], bool), 1).tolist() == [
        2
    ]  # only one client knows label 1


def test_no_and_few_new_people_can_be_asked_for() -> None:
    none = load("mnist", clients=30, unseen_clients=0, validation_clients=0)
    assert [len(none.groups[group]) for group in ("train", "validation", "unseen")] == [30, 0, 0]
    few = load("mnist", clients=30, unseen_clients=0.1)
    assert (
        table(few)[few.groups["unseen"]].any(axis=0).sum() == 6
    )  # three people, two labels each, none in common


def test_adapting_and_support_are_handed_on() -> None:
    made = load("mnist", partition="two-labels", clients=30, test_share=0.5, adapt=0.2, support=0.4)
    splits = made.clients.splits
    sizes = (
        splits["train"].compute_sizes()
        + splits["test"].compute_sizes()
        + splits["adapt"].compute_sizes()
    )
    np.testing.assert_array_equal(
        splits["adapt"].compute_sizes(), np.floor(0.2 * np.floor(0.5 * sizes + 1e-9) + 1e-9)
    )
    assert made.support == 0.4
    for other in ("train", "test"):
        splits = load("mnist", clients=30, adapt=other).clients.splits
        np.testing.assert_array_equal(splits["adapt"].index, splits[other].index)


def test_the_sets_own_test_part_is_for_test_with_any_partition() -> None:
    made, testing = (
        load("mnist", partition="iid", clients=20, split="own"),
        open_dataset("mnist").columns["is_test"],
    )
    assert not testing[made.clients.splits["train"].index].any()
    assert testing[made.clients.splits["test"].index].all()
    few = load("mnist", partition="iid", clients=500, split="own", unseen_clients=0)
    alone = [number for number in range(500) if testing[held(few)[0][held(few)[1] == number]].all()]
    assert few.groups["unseen"].tolist() == alone  # nobody trains on test examples
    assert len(alone) > 0
    last = load("mnist", partition="iid", clients=20, split="last").clients.splits
    for person in range(20):
        assert last["train"].get_rows(person).max() < last["test"].get_rows(person).min()


def test_others_follow_another_partition() -> None:
    made = load(
        "mnist",
        partition="iid",
        clients=20,
        others="few-labels",
        others_share=0.3,
        labels=1,
        server=0,
    )
    assert ((table(made) > 0).sum(axis=1) == 1).sum() == 6
    twice = load(
        "mnist", partition="few-labels", others="few-labels", clients=20, labels=1, server=0
    )
    assert ((table(twice) > 0).sum(axis=1) == 1).all()


def test_zeta_relabels_some_clients_and_never_the_server() -> None:
    truth, made = labels_of("mnist"), load("mnist", partition="iid", clients=20, zeta=0.25)
    index, whose = held(made)
    true = np.array([truth[image] for image in contents(made.clients.x[index])])
    assert len(np.unique(whose[true != made.clients.y[index]])) == 15
    x, y = served(made)
    assert [truth[image] for image in contents(x)] == y.tolist()
    assert made.content_hash == ""  # labels are not those of the store


def test_augmented_people_see_images_in_one_way_of_their_own() -> None:
    plain = load("mnist", partition="iid", clients=20, zeta=0.5)
    made = load("mnist", partition="iid", clients=20, zeta=0.5, augment=True)
    index, whose = held(made)
    np.testing.assert_array_equal(held(plain)[0], index)
    found = set()
    for person in range(20):
        own = index[whose == person]
        ways = {
            (turns, mirrored)
            for turns in range(4)
            for mirrored in (1, -1)
            if np.array_equal(
                np.rot90(plain.clients.x[own], turns, (2, 3))[..., ::mirrored], made.clients.x[own]
            )
        }
        assert len(ways) == 1
        found |= ways
        if (plain.clients.y[own] == open_dataset("mnist").columns["y"][own]).all():
            assert ways == {(0, 1)}
    assert len({turns for turns, _ in found}) > 2
    assert {mirrored for _, mirrored in found} == {1, -1}
    np.testing.assert_array_equal(served(plain)[0], served(made)[0])


def test_people_have_their_own_names() -> None:
    made = load("femnist", server=0, clients=None)
    assert made.client_names.tolist() == [f"f{number:04d}" for number in range(40)]
    assert len(group(made, "unseen")) == 8


def test_the_papers_settings_are_one_line_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDTAILOR_DATA", str(REAL))
    monkeypatch.setattr(federated, "load_or_build_scenario", made_only)
    real("mnist")
    real("cifar10")
    one = load("mnist", partition="two-labels", test_share=0.25, adapt=0.2)
    assert ((table(one) > 0).sum(axis=1) == 2).all()
    assert one.describe().examples == 66_500
    sizes = {name: split.compute_sizes().sum() for name, split in one.clients.splits.items()}
    np.testing.assert_allclose(sizes["adapt"] / (sizes["adapt"] + sizes["test"]), 0.2, atol=0.005)
    for name, images in (("mnist", 196), ("cifar10", 68)):
        halves = load(name, partition="half-and-half")
        assert table(halves).sum(axis=1).tolist() == [5 * images, images * 5 // 2] * 25
    whole = load("cifar10", partition="few-labels", clients=10, size=5000, server=500)
    assert whole.describe().examples == 50_000


def test_a_set_that_was_not_added_is_told(place: Path) -> None:
    with pytest.raises(
        InputError,
        match=r"^cifar10: there is no such data set in '.*'; add it with `fedtailor data",
    ):
        load("cifar10")
