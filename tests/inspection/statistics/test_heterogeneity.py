"""Distances between people: labels by hand, examples by closed forms and by measuring one pair at a
time.
"""

import math
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedtailor.data import ClientExamples, FederatedDataset, single_client
from fedtailor.data.store.row_ranges import make_range_split
from fedtailor.errors import InputError
from fedtailor.inspection.statistics import (
    Distances,
    compute_example_distances,
    compute_label_distances,
    diversity_from_total_variation,
    diversity_from_wasserstein,
    heterogeneity,
    sliced_wasserstein,
    total_variation,
    wasserstein,
)
from scenarios import split

Numbers = NDArray[np.float64]

EMPTY = np.array([], dtype=np.int64)
SIZES = (5, 3, 8, 4)


def people(
    x: NDArray[np.generic],
    y: NDArray[np.generic],
    sizes: tuple[int, ...],
    server: int = 0,
    classes: int | None = 3,
    scale: float = 1.0,
    tokens: bool = False,
) -> FederatedDataset:
    """Clients who hold the first rows in turn, each its last one for testing; the server has the
    rows behind these.
    """
    ends = np.cumsum([0, *sizes])
    held = [np.arange(begin, end) for begin, end in pairwise(ends)]
    train, test = split([rows[:-1] for rows in held]), split([rows[-1:] for rows in held])
    everybody, count = np.arange(len(sizes)), int(ends[-1])
    return FederatedDataset(
        name="people",
        clients=ClientExamples(x[:count], y[:count], {"train": train, "test": test}),
        client_names=everybody.astype(str),
        groups={
            "train": everybody,
            "participating": everybody,
            "validation": EMPTY,
            "unseen": EMPTY,
        },
        server=single_client(x[count : count + server], y[count : count + server])
        if server
        else None,
        classes=classes,
        scale=scale,
        tokens=tokens,
        overlap=True,
    )


def drawn(sizes: tuple[int, ...] = SIZES, server: int = 6, seed: int = 0) -> FederatedDataset:
    """Clients with points of their own in the plane."""
    draws = np.random.default_rng(seed)
    shift = np.repeat(np.arange(len(sizes) + 1), [*sizes, server])
    x = draws.normal(size=(len(shift), 2)) + 0.5 * shift[:, None]
    return people(x, draws.integers(0, 3, len(shift)), sizes, server)


def points(data: FederatedDataset, holders: ClientExamples, client: int, label: float) -> Numbers:
    """A holder's train examples, with one more axis for each label."""
    rows = holders.splits["train"].get_rows(client)
    corners = [
        [label / math.sqrt(2) * (kind == own) for kind in range(3)] for own in holders.y[rows]
    ]
    return np.hstack([holders.x[rows] * data.scale, np.array(corners)])


def test_total_variation_by_hand() -> None:
    half = np.array([0.5, 0.5, 0.0])
    assert total_variation(half, np.array([0.25, 0.25, 0.5])) == pytest.approx(0.5)
    assert total_variation(half, np.array([0.0, 0.0, 1.0])) == 1
    assert total_variation(half, half) == 0
    np.testing.assert_allclose(total_variation(np.eye(3), half), [0.5, 0.5, 1])


weighings = st.lists(st.integers(0, 5), min_size=3, max_size=3).filter(any)


@given(weighings, weighings, weighings)
def test_total_variation_is_a_metric_and_a_largest_difference(
    a: list[int], b: list[int], c: list[int]
) -> None:
    p, q, r = (np.array(each) / sum(each) for each in (a, b, c))
    found = float(total_variation(p, q))
    events = [[bool(event >> kind & 1) for kind in range(3)] for event in range(8)]
    assert found == pytest.approx(
        max(p[event].sum() - q[event].sum() for event in events), abs=1e-12
    )
    assert found == total_variation(q, p)
    assert found <= total_variation(p, r) + total_variation(r, q) + 1e-12


def test_distances_between_labels_by_hand() -> None:
    # In train: a client with labels 0, 0; one with 0, 1, 1, 2; the server with 2, 2, 1, 0. In test:
    # 2 and 2.
    y = np.array([0, 0, 2, 0, 1, 1, 2, 2, 2, 2, 1, 0], np.uint8)
    found = compute_label_distances(people(np.arange(12.0)[:, None], y, (3, 5), server=4))
    assert found is not None
    # The mean is (5/8, 2/8, 1/8), the server's (1/4, 1/4, 1/2).
    np.testing.assert_allclose(found.clients, [3 / 8, 3 / 8])
    assert found.server == pytest.approx(3 / 8)
    assert found.from_server is not None
    np.testing.assert_allclose(found.from_server, [3 / 4, 1 / 4])
    assert found.projections == 0


def test_labels_of_some_clients_and_without_a_server() -> None:
    data = drawn()
    some = compute_label_distances(data, np.array([2, 0]))
    own = [
        np.bincount(data.clients.y[data.clients.splits["train"].get_rows(who)], minlength=3)
        for who in (2, 0)
    ]
    first, second = (counts / counts.sum() for counts in own)
    assert some is not None
    np.testing.assert_allclose(some.clients, np.full(2, np.abs(first - second).sum() / 4))
    alone = compute_label_distances(drawn(server=0))
    assert alone is not None
    assert (alone.server, alone.from_server) == (None, None)


def test_there_are_no_labels_to_compare_where_targets_are_others() -> None:
    x, draws = np.zeros((8, 2)), np.random.default_rng(0)
    assert compute_label_distances(people(x, draws.normal(size=8), (4, 4), classes=None)) is None
    assert compute_label_distances(people(x, draws.integers(0, 2, (8, 3)), (4, 4))) is None
    for measured in (compute_label_distances, compute_example_distances):
        with pytest.raises(InputError, match="at least one client"):
            measured(drawn(), EMPTY)


@pytest.mark.parametrize(("sizes", "label"), [(SIZES, 0.7), ((5, 5, 5), 1.0)])
def test_exact_distances_are_those_of_each_pair(sizes: tuple[int, ...], label: float) -> None:
    data = drawn(sizes)
    found = compute_example_distances(data, label=label)
    assert found is not None
    assert found.from_server is not None
    assert found.projections == 0
    assert data.server is not None
    each = [points(data, data.clients, client, label) for client in range(len(sizes))]
    server, pool = points(data, data.server, 0, label), np.concatenate(each)
    mean = np.concatenate([np.full(len(own), 1 / len(own)) for own in each])
    np.testing.assert_allclose(
        found.clients, [wasserstein(own, pool, other_weights=mean) for own in each], atol=1e-6
    )
    np.testing.assert_allclose(
        found.from_server, [wasserstein(own, server) for own in each], atol=1e-6
    )
    assert found.server == pytest.approx(wasserstein(server, pool, other_weights=mean), abs=1e-6)


@pytest.mark.parametrize("size", [1, 1 << 20])
def test_sliced_distances_are_those_of_each_pair(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heterogeneity, "BLOCK_BYTES", 3 * 8 * 5 * size)
    monkeypatch.setattr(heterogeneity, "PROJECTION_BYTES", 2 * 8 * 16 * size)
    data = drawn()
    found = compute_example_distances(data, label=0.7, projections=7, seed=3)
    assert found is not None
    assert found.from_server is not None
    assert found.projections == 7
    assert data.server is not None
    each = [points(data, data.clients, client, 0.7) for client in range(len(SIZES))]
    server, pool = points(data, data.server, 0, 0.7), np.concatenate(each)
    mean = np.concatenate([np.full(len(own), 1 / len(own)) for own in each])
    sliced = partial(sliced_wasserstein, projections=7, seed=3)
    np.testing.assert_allclose(
        found.clients, [sliced(own, pool, other_weights=mean) for own in each], atol=1e-12
    )
    np.testing.assert_allclose(found.from_server, [sliced(own, server) for own in each], atol=1e-12)
    assert found.server == pytest.approx(sliced(server, pool, other_weights=mean), abs=1e-12)


def test_clients_that_are_moved_copies_of_each_other() -> None:
    """On a line two equal sets 2t apart have their mean in the middle: each is t from it; the
    server lies beyond.
    """
    base = np.random.default_rng(1).normal(size=20)
    x, t = np.concatenate([base, base + 80, base + 200])[:, None], 40
    data = people(x, np.zeros(60, np.int64), (20, 20), server=19, classes=1, scale=1.0)
    found = compute_example_distances(data, label=0)
    assert found is not None
    assert found.from_server is not None
    np.testing.assert_allclose(found.clients, [t, t], atol=1e-9)
    np.testing.assert_allclose(found.from_server, [200, 120], atol=1e-9)
    assert found.server == pytest.approx(160, abs=1e-9)


def test_clients_with_equal_inputs_differ_by_their_labels() -> None:
    """All have the same x; then W1 is the total variation of labels times the distance between
    labels.
    """
    y = np.array([0, 0, 0, 1, 2, 0, 1, 1, 2, 2, 0, 0, 1])
    data = people(np.ones((13, 2)), y, (4, 6), server=3)
    labels, found = compute_label_distances(data), compute_example_distances(data, label=2.5)
    assert labels is not None
    assert found is not None
    np.testing.assert_allclose(found.clients, 2.5 * labels.clients, atol=1e-6)
    assert labels.server is not None
    assert found.server == pytest.approx(2.5 * labels.server, abs=1e-6)


def test_real_targets_and_scaled_images_count_in_the_models_units() -> None:
    x = np.zeros((8, 1, 2, 2), np.uint8)
    x[4:, 0, 0, 0] = 30
    y = np.repeat([0.0, 4.0], 4)
    found = compute_example_distances(people(x, y, (4, 4), classes=None, scale=0.1))
    assert found is not None
    np.testing.assert_allclose(found.clients, [2.5, 2.5], atol=1e-9)  # half of 5 = |(3, 4)|
    without = compute_example_distances(people(x, y, (4, 4), classes=None, scale=0.1), label=0)
    assert without is not None
    np.testing.assert_allclose(without.clients, [1.5, 1.5], atol=1e-9)


def test_large_sets_are_sliced_and_small_ones_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    data = drawn()
    monkeypatch.setattr(heterogeneity, "MAX_EXACT_EXAMPLES", 16)  # as many as there are
    exact = compute_example_distances(data)
    monkeypatch.setattr(heterogeneity, "MAX_EXACT_EXAMPLES", 15)
    sliced = compute_example_distances(data)
    assert exact is not None
    assert sliced is not None
    assert (exact.projections, sliced.projections) == (0, heterogeneity.NUM_PROJECTIONS)
    assert (sliced.clients < exact.clients).all()


@pytest.mark.parametrize("projections", [None, 5])
def test_who_comes_first_does_not_matter(projections: int | None) -> None:
    data, order = drawn(), np.array([3, 0, 2, 1])
    one, other = (
        compute_example_distances(data, who, projections=projections) for who in (None, order)
    )
    assert one is not None
    assert other is not None
    np.testing.assert_allclose(one.clients[order], other.clients, atol=1e-6)
    assert one.server == pytest.approx(other.server, abs=1e-6)


def test_memory_maps_and_runs_give_the_same(tmp_path: Path) -> None:
    data = drawn()
    np.save(tmp_path / "x.npy", data.clients.x)
    train = data.clients.splits["train"]
    splits = {
        **data.clients.splits,
        "train": make_range_split(train.index[train.offsets[:-1]], train.compute_sizes()),
    }
    mapped = ClientExamples(np.load(tmp_path / "x.npy", mmap_mode="r"), data.clients.y, splits)
    same = FederatedDataset("same", mapped, data.client_names, data.groups, data.server, 3)
    for projections in (None, 4):
        one = compute_example_distances(data, projections=projections)
        other = compute_example_distances(same, projections=projections)
        assert one is not None
        assert other is not None
        np.testing.assert_array_equal(one.clients, other.clients)


def test_tokens_are_at_no_distance() -> None:
    draws = np.random.default_rng(2)
    assert (
        compute_example_distances(
            people(draws.integers(0, 9, (9, 4)), draws.integers(0, 3, 9), (4, 5), tokens=True)
        )
        is None
    )
    with pytest.raises(InputError, match="label"):
        compute_example_distances(drawn(), label=-1)


def test_bounds_on_the_diversity_of_gradients() -> None:
    found = Distances(np.array([0.5, 0.1]), None, None)
    assert diversity_from_total_variation(found, 3) == pytest.approx(4 * 9 * 0.13)
    assert diversity_from_wasserstein(found, 3) == pytest.approx(9 * 0.13)
    for bound in (diversity_from_total_variation, diversity_from_wasserstein):
        with pytest.raises(InputError, match="negative"):
            bound(found, -1)


@settings(deadline=None, max_examples=10)
@given(st.integers(0, 1000))
def test_the_bound_by_transport_holds_for_losses_that_bend_by_one(seed: int) -> None:
    """For l(z; w) = |w - x|^2 / 2 the gradient is w - x, so L_Z = 1 and clients' gradients are
    means of x apart.
    """
    data = drawn(seed=seed)
    found = compute_example_distances(data, label=0)
    assert found is not None
    means = np.array(
        [
            data.clients.x[data.clients.splits["train"].get_rows(who)].mean(axis=0)
            for who in range(4)
        ]
    )
    diversity = ((means - means.mean(axis=0)) ** 2).sum(axis=1).mean()
    assert diversity <= diversity_from_wasserstein(found, 1.0) + 1e-6
