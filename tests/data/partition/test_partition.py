"""Partitioners against what they promise: properties on random labels, plain loops, and moments of
Dirichlet shares.
"""

from collections import Counter
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from divided import real
from fedtailor.data import partition
from fedtailor.data.partition import PARTITIONERS, UNASSIGNED, LabelHierarchy
from fedtailor.errors import InputError
from partitioning import CHANGES, EVENLY, RULES, draws, some_labels, table


@pytest.mark.parametrize("name", RULES)
@settings(max_examples=40, deadline=None)
@given(
    count=st.integers(1, 300),
    kinds=st.integers(1, 12),
    clients=st.sampled_from([1, 2, 3, 10, 57]),
    seed=st.integers(0, 2**32),
)
def test_everybody_has_something_and_a_seed_decides_or_it_is_refused_with_numbers(
    name: str, count: int, kinds: int, clients: int, seed: int
) -> None:
    y = some_labels(count, kinds, seed)
    before, rule = y.copy(), partial(RULES[name], **CHANGES.get(name, {}))
    try:
        whose = rule(y, clients, draws(seed))
    except InputError as problem:
        refused = str(problem)
    else:
        refused = ""
    if refused:
        assert any(character.isdigit() for character in refused)
        assert refused.startswith((f"{name}: ", "shards: "))
        return
    assert whose.dtype == np.int64
    assert whose.shape == y.shape
    assert whose.min() >= UNASSIGNED
    assert set(whose.tolist()) - {UNASSIGNED} == set(range(clients))
    np.testing.assert_array_equal(whose, rule(y, clients, draws(seed)))
    np.testing.assert_array_equal(y, before)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("clients", [2, 10, 1000])
def test_few_and_many_clients_and_seeds_differ(name: str, clients: int) -> None:
    y, rule = np.tile(EVENLY, 4), partial(RULES[name], **CHANGES.get(name, {}))
    one, other = rule(y, clients, draws(1)), rule(y, clients, draws(2))
    assert set(one.tolist()) - {UNASSIGNED} == set(range(clients))
    assert (one != other).any()


@pytest.mark.parametrize("name", sorted(RULES.keys() - {"mixture"}))
def test_one_client(name: str) -> None:
    whose = RULES[name](EVENLY, 1, draws())
    wanted = {"two-labels": 1200, "half-and-half": 5 * 196, "few-labels": 1200, "pachinko": 2}.get(
        name, 6000
    )
    assert (whose == 0).sum() == wanted
    assert (whose == UNASSIGNED).sum() == 6000 - wanted


@pytest.mark.parametrize("name", RULES)
def test_which_examples_of_a_label_somebody_has_is_random(name: str) -> None:
    """Along the examples of a label, owners change much more often than once for each owner."""
    whose = RULES[name](
        EVENLY,
        20,
        draws(),
        **{"pachinko": {"size": 200}, "half-and-half": {"images": 40}}.get(name, {}),
    )
    owners = [own[own != UNASSIGNED] for own in whose.reshape(10, 600)]
    changes = sum(int((np.diff(own) != 0).sum()) for own in owners)
    assert changes > 5 * sum(len(np.unique(own)) for own in owners)


@pytest.mark.parametrize(
    ("clients", "least", "used"), [(1, 1, 1.0), (3, 7, 0.5), (50, 10, 0.875), (100, 40, 1.0)]
)
@pytest.mark.parametrize("seed", range(3))
def test_two_labels_each_held_equally_often_and_divided_whole(
    clients: int, least: int, used: float, seed: int
) -> None:
    y = np.concatenate([EVENLY, EVENLY[1000:]])
    whose = partition.two_labels(y, clients, draws(seed), ratio=30, least=least, used=used)
    counts = table(y, whose, clients)
    assert ((counts > 0).sum(axis=1) == 2).all()
    assert (counts[counts > 0] >= np.ceil(least / 2)).all()
    holders = (counts > 0).sum(axis=0)
    assert holders.max() - holders.min() <= 1
    held, there = holders > 0, np.bincount(y)
    wanted = np.maximum(np.round(used * there[held]), np.ceil(least / 2) * holders[held])
    np.testing.assert_array_equal(counts.sum(axis=0)[held], wanted)


def test_two_labels_weights_are_a_geometric_progression() -> None:
    """With two labels in all everybody holds both, so sizes are as the weights are."""
    y = np.repeat([0, 1], 50_000)
    sizes = np.sort(np.bincount(partition.two_labels(y, 6, draws(), ratio=32, least=2)))
    np.testing.assert_allclose(
        sizes, 2 + (100_000 - 12) * np.array([1, 2, 4, 8, 16, 32]) / 63, atol=2
    )
    even = np.bincount(partition.two_labels(y, 6, draws(), ratio=1))
    assert even.max() - even.min() <= 2


def test_two_labels_pair_in_many_ways() -> None:
    counts = table(EVENLY, partition.two_labels(EVENLY, 50, draws()), 50)
    assert len({tuple(np.flatnonzero(own)) for own in counts}) > 15


@pytest.mark.parametrize("clients", [1, 2, 7, 50])
@pytest.mark.parametrize("drop_half", [False, True])
def test_half_and_half_has_the_papers_counts(clients: int, drop_half: bool) -> None:
    whose = partition.half_and_half(EVENLY, clients, draws(), images=20, drop_half=drop_half)
    counts = table(EVENLY, whose, clients)
    for own in counts[::2]:
        assert own.tolist() == [20] * 5 + [0] * 5
    for own in counts[1::2]:
        assert sorted(own[:5]) == [0] * 4 + [0 if drop_half else 10]
        assert sorted(own[5:]) == [0] * 4 + [40]
    if clients == 50:
        assert ((counts[1::2, 5:] > 0).sum(axis=0) == 5).all()


def test_half_and_half_pairs_labels_in_many_ways() -> None:
    counts = table(EVENLY, partition.half_and_half(EVENLY, 50, draws(), images=20), 50)
    assert len({tuple(np.flatnonzero(own)) for own in counts[1::2]}) > 8


@pytest.mark.parametrize(
    ("clients", "labels", "size"),
    [(10, 2, 600), (1000, 2, 6), (10, 1, 600), (7, 3, 30), (1, 10, 10)],
)
def test_few_labels_have_equally_many_of_each(clients: int, labels: int, size: int) -> None:
    whose = partition.few_labels(EVENLY, clients, draws(), labels=labels, size=size)
    counts = table(EVENLY, whose, clients)
    assert ((counts > 0).sum(axis=1) == labels).all()
    assert (counts[counts > 0] == size // labels).all()
    holders = (counts > 0).sum(axis=0)
    assert holders.max() - holders.min() <= 1


def test_few_labels_take_as_many_as_there_are_for_all() -> None:
    y = np.repeat([0, 1, 2], [90, 300, 61])
    counts = table(y, partition.few_labels(y, 6, draws(), labels=2), 6)
    assert (counts[counts > 0] == 61 // 4).all()
    unheld = table(y, partition.few_labels(y, 1, draws(3), labels=1), 1)
    assert unheld.max() in (90, 300, 61)


@settings(max_examples=30, deadline=None)
@given(
    clients=st.integers(1, 40),
    each=st.integers(1, 4),
    count=st.integers(1, 400),
    seed=st.integers(0, 99),
)
def test_shards_are_runs_of_the_sorted_examples(
    clients: int, each: int, count: int, seed: int
) -> None:
    assume(clients * each <= count)
    y = some_labels(count, 5, seed)
    whose = partition.shards(y, clients, draws(seed), shards=each)
    sizes = np.bincount(whose, minlength=clients)
    assert each * (count // (clients * each)) <= sizes.min()
    assert sizes.max() <= each * -(-count // (clients * each))
    assert sizes.sum() == count


def test_pure_shards_are_dealt_whole() -> None:
    y = draws(5).permutation(EVENLY)
    counts = table(
        y, partition.shards(y, 50, draws(), shards=2), 50
    )  # 100 shards of 60, ten for each label
    assert set(counts.ravel().tolist()) == {0, 60, 120}
    assert (counts.sum(axis=1) == 120).all()
    assert ((counts > 0).sum(axis=1) == 1).any()
    assert len({tuple(own) for own in counts}) > 10


@pytest.mark.parametrize(
    ("clients", "share", "pure"), [(10, 0.3, 3), (2, 0.5, 1), (1000, 0.25, 250)]
)
def test_a_mixture_has_so_many_clients_of_either_rule(
    clients: int, share: float, pure: int
) -> None:
    y = np.tile(EVENLY, 5)
    one = partial(partition.few_labels, labels=1)
    whose = partition.mixture(
        y, clients, draws(), partitioner=partition.iid, other=one, share=share
    )
    kinds = (table(y, whose, clients) > 0).sum(axis=1)
    assert (kinds == 1).sum() == pure
    if clients == 1000:
        assert (
            40 < (kinds[:250] == 1).sum() < 85
        )  # who is which is random, not the first or the last
        sizes = np.bincount(whose[whose != UNASSIGNED])[kinds > 1]
        assert abs(sizes.sum() - 0.75 * len(y)) <= 1


@settings(max_examples=40, deadline=None)
@given(
    zeta=st.floats(0, 1),
    clients=st.integers(1, 30),
    kinds=st.integers(1, 12),
    seed=st.integers(0, 99),
    idle=st.booleans(),
)
def test_relabelled_clients_permute_their_labels(
    zeta: float, clients: int, kinds: int, seed: int, idle: bool
) -> None:
    y = some_labels(400, kinds, seed)
    whose = draws(seed).integers(-1 if idle else 0, clients, 400)
    whose[0] = clients - 1
    before = y.copy()
    labels = partition.relabel(y, whose, draws(seed), zeta=zeta)
    np.testing.assert_array_equal(y, before)
    np.testing.assert_array_equal(labels, partition.relabel(y, whose, draws(seed), zeta=zeta))
    np.testing.assert_array_equal(labels[whose == UNASSIGNED], y[whose == UNASSIGNED])
    changed = 0
    for client in range(clients):
        pairs = set(zip(y[whose == client].tolist(), labels[whose == client].tolist(), strict=True))
        assert len(pairs) == len({old for old, _ in pairs}) == len({new for _, new in pairs})
        assert all(0 <= new < kinds for _, new in pairs)
        changed += any(old != new for old, new in pairs)
    assert changed <= round((1 - zeta) * clients)


def test_relabelling_is_uniform_over_orders_and_zeta_says_for_how_many() -> None:
    clients = 3000
    y, whose = np.tile(np.arange(3), clients), np.repeat(np.arange(clients), 3)
    orders = Counter(
        map(tuple, partition.relabel(y, whose, draws(), zeta=0.0).reshape(-1, 3).tolist())
    )
    assert len(orders) == 6
    assert all(abs(times - 500) < 5 * np.sqrt(500 * 5 / 6) for times in orders.values())
    wide, holders = np.tile(np.arange(12), 200), np.repeat(np.arange(200), 12)
    moved = (
        (partition.relabel(wide, holders, draws(), zeta=0.7) != wide).reshape(200, 12).any(axis=1)
    )
    assert moved.sum() == 60  # that an order of 12 changes nothing has a probability of 2e-9
    assert moved[:100].sum() not in (0, 60)
    np.testing.assert_array_equal(partition.relabel(wide, holders, draws(), zeta=1.0), wide)


BAD: list[tuple[str, dict[str, Any], str]] = [
    *(
        (name, {"clients": clients}, "clients must be a whole number")
        for name, clients in product(RULES, [0, -1, 2.5])
    ),
    *(
        (name, {"clients": 6001}, "clients must be at most the 6000 examples, got 6001")
        for name in RULES
    ),
    *(
        (name, {"y": EVENLY / 1}, r"labels must be integers, got \[6000\] of float64")
        for name in PARTITIONERS
    ),
    *(
        (name, {"y": EVENLY[:, None]}, r"labels must be integers, got \[6000, 1\]")
        for name in PARTITIONERS
    ),
    *(
        (name, {"y": EVENLY[:0]}, "clients must be at most the 0 examples, got 5")
        for name in PARTITIONERS
    ),
    ("two-labels", {"y": EVENLY * 0}, "there must be at least 2 labels, got 1"),
    ("two-labels", {"ratio": 0.5}, "ratio must be a number from 1 to 1e.06, got 0.5"),
    ("two-labels", {"used": 1.1}, "used must be a number from 0 to 1, got 1.1"),
    ("two-labels", {"used": float("nan")}, "used must be a number from 0 to 1, got nan"),
    ("two-labels", {"least": 0}, "least must be a whole number of at least 1, got 0"),
    ("two-labels", {"least": 1201}, "5 clients with at least 1201 need 6005 of 6000 examples"),
    (
        "two-labels",
        {"clients": 11, "least": 500},
        "750 examples of label . are needed for 3 clients, but there are 600",
    ),
    ("half-and-half", {"y": EVENLY % 5}, "there must be an even number of labels, got 5"),
    ("half-and-half", {"images": 1}, "images must be a whole number of at least 2, got 1"),
    (
        "half-and-half",
        {"images": 201},
        "603 examples of label 0 are needed for 3 clients, but there are 600",
    ),
    ("half-and-half", {"drop_half": 1}, "drop_half must be true or false, got 1"),
    ("few-labels", {"labels": 0}, "labels must be a whole number of at least 1, got 0"),
    ("few-labels", {"labels": 11}, "labels must be at most the 10 that there are, got 11"),
    ("few-labels", {"size": 5}, "size must be a multiple of the 2 labels, got 5"),
    (
        "few-labels",
        {"size": 1202},
        "601 examples of label . are needed for 1 clients, but there are 600",
    ),
    ("few-labels", {"clients": 6000}, "6000 clients of 2 labels are too many for 6000 examples"),
    ("shards", {"shards": 0}, "shards must be a whole number of at least 1, got 0"),
    ("shards", {"shards": 1201}, "5 clients with 1201 shards need 6005 of 6000 examples"),
    ("dirichlet", {"alpha": 0}, "alpha must be a number from 0.001 to 1e.06, got 0"),
    ("dirichlet", {"alpha": float("inf")}, "alpha must be a number from 0.001 to 1e.06, got inf"),
    ("quantity", {"alpha": "much"}, "alpha must be a number from 0.001 to 1e.06, got 'much'"),
    ("pachinko", {"size": 1201}, "5 clients with 1201 examples need 6005 of 6000; take fewer"),
    ("pachinko", {"beta": 0.0}, "beta must be a number from 0.001 to 1e.06, got 0.0"),
    ("mixture", {"share": 0.05}, "share must leave clients to both .*, got 0.05 of 5 clients"),
    ("mixture", {"share": 1}, "share must leave clients to both .*, got 1 of 5 clients"),
    ("mixture", {"share": 2}, "share must be a number from 0 to 1, got 2"),
]


@pytest.mark.parametrize(
    ("name", "changes", "sentence"), BAD, ids=[f"{i}" for i in range(len(BAD))]
)
def test_what_cannot_be_done_is_refused_with_the_numbers(
    name: str, changes: dict[str, Any], sentence: str
) -> None:
    options: dict[str, Any] = {"y": EVENLY, "clients": 5} | changes
    with pytest.raises(InputError, match=f"^{name}: {sentence}"):
        RULES[name](options.pop("y"), options.pop("clients"), draws(), **options)


def test_columns_that_do_not_fit_are_refused() -> None:
    y, whose = np.arange(6), np.zeros(6, np.int64)
    with pytest.raises(
        InputError, match="relabel: labels and owners must be equally many, got 6 and 5"
    ):
        partition.relabel(y, whose[:5], draws(), zeta=0.5)
    with pytest.raises(InputError, match="relabel: labels must be at least 0, got -1"):
        partition.relabel(y - 1, whose, draws(), zeta=0.5)
    with pytest.raises(InputError, match=r"relabel: zeta must be a number from 0 to 1, got 1\.5"):
        partition.relabel(y, whose, draws(), zeta=1.5)
    with pytest.raises(InputError, match="pachinko: 5 coarse labels cannot pair with 6 fine ones"):
        partition.pachinko(LabelHierarchy(y[:5], y), 2, draws(), size=2)
    with pytest.raises(
        InputError,
        match="pachinko: fine label 0 must belong to one coarse label, but belongs to several",
    ):
        partition.pachinko(LabelHierarchy(y, y // 4), 2, draws(), size=2)


PAPER = {"mnist": (69_909, 135, 1398, 1424, 5201), "cifar10": (52_497, 506, 1049, 250, 1986)}

CHOSEN = {"mnist": (50.0, 1.0), "cifar10": (2.5, 0.875)}  # ratio, used


@pytest.mark.parametrize("name", PAPER)
def test_two_labels_come_near_the_papers_sizes(name: str) -> None:
    y, (ratio, used), found = real(name).columns["y"], CHOSEN[name], []
    for seed in range(15):
        sizes = np.bincount(partition.two_labels(y, 50, draws(seed), ratio=ratio, used=used) + 1)[
            1:
        ]
        found.append((sizes.sum(), sizes.min(), sizes.mean(), sizes.std(), sizes.max()))
    np.testing.assert_allclose(np.median(found, axis=0), PAPER[name], rtol=0.3)
    total, _, mean, spread, _ = np.median(found, axis=0)
    np.testing.assert_allclose([total, mean, spread], np.array(PAPER[name])[[0, 2, 3]], rtol=0.1)


@pytest.mark.parametrize(("name", "images"), [("mnist", 196), ("cifar10", 68)])
def test_half_and_half_fits_the_real_train_parts(name: str, images: int) -> None:
    columns = real(name).columns
    y = columns["y"][~columns["is_test"]]
    sizes = np.bincount(partition.half_and_half(y, 50, draws(), images=images) + 1)[1:]
    assert sizes.tolist() == [5 * images, images // 2 + 2 * images] * 25
