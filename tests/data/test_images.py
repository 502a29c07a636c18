import hashlib
import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from test_raw import images_of

from fedtailor.data import FederatedDataset, cifar10, load, mnist, options_of
from fedtailor.data.images import _knowing
from fedtailor.data.partitions import PARTITIONS
from fedtailor.data.raw import folder, raw
from fedtailor.errors import InputError

REAL = folder()  # before it is changed below
SMALL: dict[str, dict[str, Any]] = {
    "two-labels": {"clients": 30, "least": 4},
    "half-and-half": {"clients": 10, "images": 8},
    "few-labels": {"clients": 30},
    "shards": {"clients": 30},
    "dirichlet": {"clients": 30, "least": 5},
    "quantity": {"clients": 30, "least": 5},
    "iid": {"clients": 30},
}


@pytest.fixture(scope="module", autouse=True)
def place(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A folder with small data sets, where data is looked for."""
    path = tmp_path_factory.mktemp("data")
    for name in ("mnist", "cifar10"):
        np.savez(path / f"{name}.npz", **images_of(name, 1000, 200))  # type: ignore[arg-type]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDTAILOR_DATA", str(path))
        yield path


def held(dataset: FederatedDataset) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """All examples in clients' hands, by number, and whose each is."""
    splits = [dataset.clients.splits[name] for name in ("train", "test")]
    return np.concatenate([split.index for split in splits]), np.concatenate([split.holders() for split in splits])


def table(dataset: FederatedDataset) -> NDArray[np.int64]:
    """How many examples of each label each client has."""
    index, whose = held(dataset)
    counts = np.zeros((dataset.clients.count, 10), np.int64)
    np.add.at(counts, (whose, dataset.clients.y[index]), 1)
    return counts


def fingerprint(dataset: FederatedDataset) -> str:
    server = () if dataset.server is None else dataset.server[:2]
    splits = [part for split in dataset.clients.splits.values() for part in split]
    parts = [*dataset.clients[:2], *splits, dataset.ids, *dataset.groups.values(), *server]
    return hashlib.sha256(b"".join(np.ascontiguousarray(part).tobytes() for part in parts)).hexdigest()


def contents(images: NDArray[Any]) -> list[bytes]:
    return [image.tobytes() for image in images]


def test_every_partition_is_tried_here_and_both_sources_have_the_same_options() -> None:
    assert SMALL.keys() == PARTITIONS.keys()
    assert options_of("mnist").keys() == options_of("cifar10").keys()
    for rule in PARTITIONS.values():
        keywords = [each.name for each in inspect.signature(rule).parameters.values() if each.kind is each.KEYWORD_ONLY]
        assert set(keywords) <= options_of("mnist").keys()
    differing = {key for key, value in options_of("mnist").items() if options_of("cifar10")[key] != value}
    assert differing == {"ratio", "used", "images"}


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
@pytest.mark.parametrize("partition", SMALL)
def test_every_image_is_held_once_with_its_label(name: str, partition: str) -> None:
    made, data = load(name, partition=partition, **SMALL[partition]), raw(name)
    truth = dict(zip(contents(data.x), data.y.tolist(), strict=True))
    index, _ = held(made)
    assert made.server is not None
    assert len(made.server.x) == 60
    images = contents(made.clients.x[index]) + contents(made.server.x)
    assert len(set(images)) == len(images)
    assert [truth[image] for image in images] == [*made.clients.y[index].tolist(), *made.server.y.tolist()]
    assert (made.name, made.classes, made.scale, made.overlap) == (name, 10, 1 / 255, "")
    assert made.clients.x.shape[1:] == data.x.shape[1:]
    assert made.clients.count == SMALL[partition]["clients"]
    if partition in ("shards", "dirichlet", "quantity", "iid"):
        assert len(images) == 1200


@pytest.mark.parametrize("partition", SMALL)
def test_a_seed_decides_everything(partition: str) -> None:
    made = [fingerprint(mnist(partition=partition, seed=seed, **SMALL[partition])) for seed in (0, 0, 1)]
    assert made[0] == made[1] != made[2]


@pytest.mark.parametrize("partition", SMALL)
@pytest.mark.parametrize("seed", range(5))
def test_new_people_know_what_is_trained_on(partition: str, seed: int) -> None:
    clients = {"clients": 50, "images": 3} if partition == "half-and-half" else {"clients": 50}
    made = mnist(partition=partition, seed=seed, **SMALL[partition] | clients)
    known = {group: set(np.flatnonzero(table(made)[who].any(axis=0)).tolist()) for group, who in made.groups.items()}
    assert known["new"] == known["train"] == set(range(10))
    sizes = {group: len(who) for group, who in made.groups.items()}
    assert sizes == {"train": 35, "local": 35, "validation": 5, "new": 10}
    people = np.concatenate([made.groups[group] for group in ("train", "validation", "new")])
    assert sorted(people.tolist()) == list(range(50))


def test_new_people_of_half_and_half_are_of_both_kinds() -> None:
    made = mnist(partition="half-and-half", clients=50, images=3)
    assert sorted((table(made) > 0).sum(axis=1)[made.groups["new"]]) == [2] * 5 + [5] * 5


def test_few_people_are_chosen_so_that_they_know_much_and_late_ones_first() -> None:
    knows = np.eye(6, dtype=bool) | np.roll(
        np.eye(6, dtype=bool), 1, axis=1
    )  # client k: labels k and k + 1, 5: 5 and 0
    assert _knowing(knows, 3).tolist() == [1, 3, 5]
    assert _knowing(knows, 6).tolist() == list(range(6))
    assert _knowing(np.ones((5, 3), bool), 2).tolist() == [3, 4]
    assert _knowing(np.array([[1, 1], [1, 0], [1, 0]], bool), 1).tolist() == [2]  # only one client knows label 1


def test_no_and_few_new_people_can_be_asked_for() -> None:
    none = mnist(clients=30, new_clients=0, validation_clients=0)
    assert [len(none.groups[group]) for group in ("train", "validation", "new")] == [30, 0, 0]
    few = mnist(clients=30, new_clients=0.1)
    assert table(few)[few.groups["new"]].any(axis=0).sum() == 6  # three people, two labels each, none in common


def test_the_servers_examples_do_not_change_with_the_partition_and_can_be_counted() -> None:
    one, other = mnist(clients=30), mnist(partition="iid", clients=10, server=0.05)
    assert one.server is not None
    assert other.server is not None
    np.testing.assert_array_equal(one.server.x, other.server.x)
    assert mnist(clients=30, server=7).describe().server == 7
    assert mnist(clients=30, server=0).server is None
    assert mnist(partition="iid", clients=30, server=0).describe().examples == 1200


def test_what_equals_an_example_of_the_servers_is_nobodys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = images_of("mnist", 400, 100)
    arrays["x_train"][200:] = arrays["x_train"][:200]
    arrays["x_test"][50:] = arrays["x_train"][:50]
    np.savez(tmp_path / "mnist.npz", **arrays)  # type: ignore[arg-type]
    monkeypatch.setenv("FEDTAILOR_DATA", str(tmp_path))
    made = mnist(partition="iid", clients=10, server=100)
    assert made.server is not None
    served = set(contents(made.server.x))
    everything = contents(raw("mnist").x)
    index, _ = held(made)
    assert sorted(contents(made.clients.x[index])) == sorted(image for image in everything if image not in served)


def test_adapting_and_support_are_handed_on() -> None:
    made = load("mnist", partition="two-labels", clients=30, test_share=0.5, adapt=0.2, support=0.4)
    splits = made.clients.splits
    sizes = splits["train"].sizes() + splits["test"].sizes() + splits["adapt"].sizes()
    np.testing.assert_array_equal(splits["adapt"].sizes(), np.floor(0.2 * np.floor(0.5 * sizes + 1e-9) + 1e-9))
    assert made.support == 0.4
    for other in ("train", "test"):
        splits = mnist(clients=30, adapt=other).clients.splits
        np.testing.assert_array_equal(splits["adapt"].index, splits[other].index)


def test_others_follow_another_partition() -> None:
    made = mnist(partition="iid", clients=20, others="few-labels", others_share=0.3, labels=1, server=0)
    assert ((table(made) > 0).sum(axis=1) == 1).sum() == 6


def test_zeta_relabels_some_clients_and_never_the_server() -> None:
    data, made = raw("mnist"), mnist(partition="iid", clients=20, zeta=0.25)
    truth = dict(zip(contents(data.x), data.y.tolist(), strict=True))
    index, whose = held(made)
    true = np.array([truth[image] for image in contents(made.clients.x[index])])
    assert len(np.unique(whose[true != made.clients.y[index]])) == 15
    assert made.server is not None
    assert [truth[image] for image in contents(made.server.x)] == made.server.y.tolist()


BAD: list[tuple[dict[str, Any], str]] = [
    ({"partition": "two-label"}, r"mnist: there is no partition 'two-label'; did you mean two-labels\?"),
    ({"partition": ["iid"]}, r"mnist: there is no partition '\['iid'\]'; did you mean iid\?"),
    ({"others": "natural"}, "mnist: there is no partition 'natural'; known are"),
    ({"alpha": 0.3}, "mnist: partition two-labels has no use for alpha=0.3; leave it out"),
    ({"partition": "iid", "least": 5}, "mnist: partition iid has no use for least=5; leave it out"),
    ({"partition": "shards", "others": "iid", "size": 4}, "mnist: partition shards with iid has no use for size=4"),
    ({"others_share": 0.2}, "mnist: partition two-labels has no use for others_share=0.2; leave it out"),
    ({"clients": 2000}, "two-labels: clients must be at most the 1140 examples, got 2000"),
    ({"partition": "half-and-half"}, "half-and-half: .* examples of label 0 are needed for .* clients, but there are"),
    ({"partition": "iid", "zeta": 2}, "relabelled: zeta must be a number from 0 to 1, got 2"),
    ({"server": 1200}, "mnist: server must leave some of the 1200 examples, got 1200"),
    ({"server": 1.5}, "mnist: server must be"),
    ({"adapt": "nothing"}, "mnist: adapt must be"),
    ({"test_share": 1}, "mnist: test_share must be a share"),
    ({"seed": -1}, "seed must be a whole number of at least 0, got -1"),
]


@pytest.mark.parametrize(("options", "sentence"), BAD, ids=[f"{i}" for i in range(len(BAD))])
def test_what_cannot_be_is_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=f"^(data: )?{sentence}"):
        mnist(**{"clients": 30, "least": 4 if "partition" not in options else 10} | options)


def test_options_at_their_defaults_may_be_spelt_out() -> None:
    """A run's record spells every option out."""
    spelt = options_of("mnist") | {"partition": "iid", "clients": 20}
    assert fingerprint(mnist(**spelt)) == fingerprint(mnist(partition="iid", clients=20))


def test_a_missing_file_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDTAILOR_DATA", str(tmp_path))
    with pytest.raises(InputError, match=r"^cifar10: there is no file '.*cifar10\.npz'; put one there"):
        cifar10()


@pytest.fixture
def real(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real data sets, where this machine has them."""
    monkeypatch.setenv("FEDTAILOR_DATA", str(REAL))
    if not all((REAL / f"{name}.npz").exists() for name in ("mnist", "cifar10")):
        pytest.skip("MNIST and CIFAR-10 are not on this machine")


@pytest.mark.usefixtures("real")
def test_the_papers_settings_are_one_line_each() -> None:
    one = load("mnist", partition="two-labels", test_share=0.25, adapt=0.2)
    assert ((table(one) > 0).sum(axis=1) == 2).all()
    assert one.describe().examples == 66_500
    sizes = {name: split.sizes().sum() for name, split in one.clients.splits.items()}
    np.testing.assert_allclose(sizes["adapt"] / (sizes["adapt"] + sizes["test"]), 0.2, atol=0.005)
    for name, images in (("mnist", 196), ("cifar10", 68)):
        halves = load(name, partition="half-and-half")
        assert table(halves).sum(axis=1).tolist() == [5 * images, images * 5 // 2] * 25
    whole = load("cifar10", partition="few-labels", clients=10, size=5000, server=500)
    assert whole.describe().examples == 50_000
