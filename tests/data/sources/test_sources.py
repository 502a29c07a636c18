import hashlib
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.optimize import linprog

from fedtailor.data import FederatedDataset, digits, load, load_digits, synthetic
from fedtailor.data.examples import Array
from fedtailor.errors import InputError

MADE = ("digits", "synthetic")
"""Sources that need no files."""


def held_by(dataset: FederatedDataset, client: int) -> Array:
    return np.concatenate(
        [
            split.get_rows(client)
            for split in (dataset.clients.splits[name] for name in dataset.get_disjoint_splits())
        ]
    )


def everyone(dataset: FederatedDataset) -> list[Array]:
    return [held_by(dataset, client) for client in range(dataset.clients.count)]


def fingerprint(dataset: FederatedDataset) -> str:
    server = () if dataset.server is None else dataset.server[:2]
    splits = [part for split in dataset.clients.splits.values() for part in split]
    parts = [*dataset.clients[:2], *splits, dataset.client_names, *dataset.groups.values(), *server]
    return hashlib.sha256(
        b"".join(np.ascontiguousarray(part).tobytes() for part in parts)
    ).hexdigest()


def fingerprints() -> list[str]:
    return [fingerprint(load(name, seed=seed)) for name in MADE for seed in (0, 3)]


def test_a_seed_means_the_same_in_another_process_and_seeds_differ() -> None:
    script = "import test_sources; print(*test_sources.fingerprints())"
    path = {"PYTHONPATH": str(Path(__file__).parent), "OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        [sys.executable, "-c", script], env=path, capture_output=True, text=True, check=True
    )
    assert run.stdout.split() == fingerprints()
    assert len(set(fingerprints())) == 2 * len(MADE)


@pytest.mark.parametrize("name", MADE)
def test_enough_clients_by_default_with_validation_new_and_server(name: str) -> None:
    summary = load(name).describe()
    trained, validation, new = {"digits": (35, 5, 10), "synthetic": (21, 3, 6)}[name]
    assert summary.groups == {
        "train": trained,
        "participating": trained,
        "validation": validation,
        "unseen": new,
    }
    assert summary.server > 0
    assert summary.overlap is False
    assert summary.classes == 10


def test_the_digits_are_those_of_the_uci_repository() -> None:
    images, labels = load_digits()
    assert images.shape == (1797, 64)
    assert images.dtype == np.uint8
    assert labels.dtype == np.int64
    assert (images.min(), images.max()) == (0, 16)
    assert np.bincount(labels).tolist() == [
        178,
        182,
        177,
        183,
        181,
        182,
        181,
        179,
        174,
        180,
    ]  # as optdigits.names says
    content = (
        images.tobytes() + labels.astype(np.uint8).tobytes()
    )  # of scikit-learn's copy, in bytes
    expected = "87ff0c9e40dc7e2c0e34e7257799c2e3f3aec1a016363bb11cad869ec428a826"
    assert hashlib.sha256(content).hexdigest() == expected


def test_each_digit_is_held_once() -> None:
    images, labels = load_digits()
    truth = {
        tuple(image): label for image, label in zip(images.tolist(), labels.tolist(), strict=True)
    }
    assert len(truth) == 1797  # no image comes twice, so equal content means the same example
    made = digits()
    assert made.server is not None
    index = np.concatenate(everyone(made))
    x = np.concatenate([made.clients.x[index], made.server.x])
    y = np.concatenate([made.clients.y[index], made.server.y])
    assert x.shape == (1797, 1, 8, 8)
    assert x.dtype == np.uint8
    assert made.scale == 1 / 16
    assert {
        tuple(image): label
        for image, label in zip(x.reshape(1797, 64).tolist(), y.tolist(), strict=True)
    } == truth
    assert len(made.server.x) == 90


@pytest.mark.parametrize(
    ("clients", "labels"), [(30, 2), (1, 1), (1, 10), (7, 3), (100, 2), (35, 10), (33, 4)]
)
@pytest.mark.parametrize("seed", [0, 1])
def test_digits_clients_have_their_labels_and_uneven_sizes(
    clients: int, labels: int, seed: int
) -> None:
    made = digits(clients=clients, labels=labels, seed=seed)
    counts = np.array([np.bincount(made.clients.y[own], minlength=10) for own in everyone(made)])
    assert counts.shape == (clients, 10)
    assert ((counts > 0).sum(axis=1) == labels).all()
    assert (counts[counts > 0] >= 4).all()
    holders = (counts > 0).sum(axis=0)
    assert holders.max() - holders.min() <= 1
    if clients * labels >= 10:
        assert counts.sum() == 1797 - 90
    if clients >= 30:
        assert counts.sum(axis=1).max() > 1.5 * counts.sum(axis=1).min()


def test_digits_pair_labels_in_many_ways() -> None:
    made = digits()
    assert len({tuple(np.unique(made.clients.y[own])) for own in everyone(made)}) > 10


DIGITS_BAD: list[tuple[dict[str, Any], str]] = [
    ({"labels": 11}, "labels must be at most 10, got 11"),
    ({"labels": 0}, "labels must be a whole number of at least 1, got 0"),
    ({"clients": 0}, "clients must be a whole number of at least 1, got 0"),
    ({"clients": 2.5}, "clients must be a whole number of at least 1, got 2.5"),
    (
        {"clients": 300},
        "clients must be at most 195 for 4 examples of each of 2 labels .*, got 300",
    ),
    ({"clients": 42, "labels": 10}, "clients must be at most 39 .*, got 42"),
    ({"server": 1797}, "clients must be at most 0 .* from the 0 that the server leaves"),
    ({"server": 5000}, "clients must be at most 0"),
    ({"server": 1.2}, "server must be"),
    ({"unseen_clients": 1.0}, "unseen_clients must be a share"),
]


@pytest.mark.parametrize(("options", "sentence"), DIGITS_BAD)
def test_digits_refuse_what_cannot_be(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=f"^digits: {sentence}"):
        digits(**options)


def test_digits_without_server_data() -> None:
    assert digits(server=0).server is None
    assert digits(server=0).describe().examples == 1797
    assert digits(server=7).describe().server == 7


def separable(x: Array, y: Array) -> bool:
    """Whether some W, b has y = argmax(x W + b) on all examples: a linear program, margin 1."""
    classes, width = int(y.max()) + 1, x.shape[1] + 1
    rows = []
    for features, label in zip(np.c_[x, np.ones(len(x))], y.tolist(), strict=True):
        for other in set(range(classes)) - {label}:
            row = np.zeros((classes, width))
            row[label], row[other] = -features, features
            rows.append(row.ravel())
    found = linprog(
        np.zeros(classes * width), np.array(rows), -np.ones(len(rows)), bounds=(None, None)
    )
    return bool(found.status == 0)


def test_synthetic_labels_are_linear_in_each_client_but_not_across_them() -> None:
    made = synthetic(clients=3, features=4, classes=3, most=150, seed=1)
    columns = [(made.clients.x[own], made.clients.y[own]) for own in everyone(made)]
    assert all(separable(x, y) for x, y in columns)
    assert not separable(
        np.concatenate([x for x, _ in columns]), np.concatenate([y for _, y in columns])
    )


def test_synthetic_iid_clients_share_one_model_with_the_server() -> None:
    made = synthetic(clients=3, features=4, classes=3, most=100, iid=True, server=60)
    assert made.server is not None
    x, y = (
        np.concatenate([made.clients.x, made.server.x]),
        np.concatenate([made.clients.y, made.server.y]),
    )
    assert separable(x, y)
    assert len(np.unique(y)) == 3
    error = 1 / np.sqrt(len(x))
    assert (abs(x.mean(axis=0)) < 5 * error).all()


@pytest.fixture(scope="module")
def crowd() -> FederatedDataset:
    return synthetic(0.0, 3.0, clients=400, features=20, classes=5, most=60)


def test_synthetic_inputs_have_the_papers_covariance(crowd: FederatedDataset) -> None:
    residuals = np.concatenate(
        [crowd.clients.x[own] - crowd.clients.x[own].mean(axis=0) for own in everyone(crowd)]
    )
    freedom = len(residuals) - crowd.clients.count
    covariance = residuals.T.astype(float) @ residuals / freedom
    sigma = np.arange(1, 21) ** -1.2
    scale = np.sqrt(np.outer(sigma, sigma) / freedom)
    assert (abs(covariance - np.diag(sigma)) < 5 * np.sqrt(2) * scale).all()


def test_synthetic_beta_is_a_standard_deviation(crowd: FederatedDataset) -> None:
    """The mean over features of a client's center is N(0, beta^2 + 1/features), up to the examples'
    own noise.
    """
    centers = np.array([crowd.clients.x[own].mean(axis=0) for own in everyone(crowd)])
    variance = centers.mean(axis=1).var()
    assert abs(variance / (3.0**2 + 1 / 20) - 1) < 5 * np.sqrt(2 / 400)
    within = centers.var(axis=1, ddof=1).mean()
    assert abs(within - 1) < 0.15


def test_synthetic_alpha_changes_nothing_and_beta_does(crowd: FederatedDataset) -> None:
    """A number added to all of W and b adds the same to the scores of all classes."""
    same = synthetic(5.0, 3.0, clients=400, features=20, classes=5, most=60)
    other = synthetic(0.0, 2.0, clients=400, features=20, classes=5, most=60)
    assert fingerprint(same) == fingerprint(crowd)
    assert fingerprint(other) != fingerprint(crowd)


def test_synthetic_sizes_are_lognormal_above_fifty() -> None:
    made = synthetic(clients=400, features=2, classes=2, most=10**6, server=0)
    sizes = np.array([len(own) for own in everyone(made)])
    assert sizes.min() >= 50
    logs = np.log(sizes - 50 + 0.5)
    assert abs(np.median(logs) - 4) < 4 * 2 * 1.2533 / 20
    assert abs(logs.std() - 2) < 0.4
    assert len(made.clients.x) == sizes.sum()
    assert made.server is None


def test_synthetic_sizes_are_capped_and_server_parts_even() -> None:
    made = synthetic(clients=40, most=120, server=23, server_clients=5)
    sizes = [len(own) for own in everyone(made)]
    assert max(sizes) == 120
    assert made.clients.x.dtype == np.float32
    assert made.server is not None
    assert len(made.server.x) == 23
    few = synthetic(clients=3, server=2, server_clients=5).server
    assert few is not None
    assert len(few.x) == 2


def test_more_synthetic_clients_leave_the_first_as_they_were() -> None:
    small, large = synthetic(clients=4), synthetic(clients=9)
    np.testing.assert_array_equal(large.clients.x[: len(small.clients.x)], small.clients.x)
    assert small.server is not None
    assert large.server is not None
    np.testing.assert_array_equal(large.server.x, small.server.x)


def test_synthetic_server_speaks_for_several_people() -> None:
    """Ten examples of each extra client lie around one center; neighbors have centres far apart."""
    made = synthetic(0.0, 5.0)
    assert made.server is not None
    centers = made.server.x.reshape(10, 10, 60).mean(axis=1)
    spread = made.server.x.reshape(10, 10, 60).std(axis=1).mean()
    assert min(np.sqrt(((a - b) ** 2).mean()) for a, b in pairwise(centers)) > 2 * spread


SYNTHETIC_BAD: list[tuple[dict[str, Any], str]] = [
    ({"alpha": -1.0}, "alpha must be at least 0 and at most"),
    ({"beta": float("nan")}, "beta must be at least 0 and at most"),
    ({"clients": 0}, "clients must be a whole number of at least 1, got 0"),
    ({"features": 1}, "features must be a whole number of at least 2, got 1"),
    ({"classes": 1}, "classes must be a whole number of at least 2, got 1"),
    ({"most": 0}, "most must be a whole number of at least 1, got 0"),
    ({"server": 0.5}, "server must be a whole number of at least 0, got 0.5"),
    ({"server_clients": 0}, "server_clients must be a whole number of at least 1, got 0"),
]


@pytest.mark.parametrize(("options", "sentence"), SYNTHETIC_BAD)
def test_synthetic_refuses_what_cannot_be(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=f"^synthetic: {sentence}"):
        synthetic(**options)


def test_load_knows_names_and_options() -> None:
    assert load("digits", clients=12).clients.count == 12
    with pytest.raises(InputError, match=r"There is no data set 'digts'; did you mean digits\?"):
        load("digts")
    with pytest.raises(
        InputError, match=r"There is no data set 'qqq'; choose from digits, synthetic, mnist, "
    ):
        load("qqq")
    with pytest.raises(
        InputError, match=r"synthetic: there is no option 'client'; did you mean clients\?"
    ):
        load("synthetic", client=3)
