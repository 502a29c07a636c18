"""Label tables and their figures against plain loops."""

from collections import Counter
from fractions import Fraction
from itertools import chain
from pathlib import Path
from statistics import mean, median, pstdev
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtailor import digits
from fedtailor.data import (
    ClientExamples,
    FederatedDataset,
    Split,
    from_arrays,
    label_table,
    single_client,
)
from fedtailor.data.label_table import compute_label_table, compute_stats, sort_by_main_label
from fedtailor.data.store.row_ranges import make_range_split

KINDS = 4


def split(parts: list[list[int]]) -> Split:
    return Split(
        np.array(list(chain(*parts)), np.int64), np.cumsum([0, *map(len, parts)], dtype=np.int64)
    )


@st.composite
def datasets(draw: st.DrawFn) -> FederatedDataset:
    """Clients in four groups or none, who adapt on train, test, or some of both and examples of
    their own.
    """
    sizes = draw(
        st.lists(
            st.tuples(st.integers(1, 6), st.integers(0, 5), st.integers(0, 3)),
            min_size=1,
            max_size=9,
        )
    )
    rows = iter(draw(st.permutations(range(sum(map(sum, sizes)) + 3))))  # three are nobody's
    train, test, adapt = (
        [[next(rows) for _ in range(size)] for size in part] for part in zip(*sizes, strict=True)
    )
    shared = draw(st.integers(0, 3))
    own = [
        one[:shared] + more + other[:shared]
        for one, more, other in zip(train, adapt, test, strict=True)
    ]
    splits = {"train": split(train), "test": split(test)}
    splits["adapt"] = draw(st.sampled_from([splits["train"], splits["test"], split(own)]))
    count = sum(map(sum, sizes)) + 3
    y = np.array(
        draw(st.lists(st.integers(0, KINDS - 1), min_size=count, max_size=count)), np.uint8
    )
    of = draw(
        st.lists(
            st.sampled_from(["train", "participating", "validation", "unseen", ""]),
            min_size=len(sizes),
        )
    )
    groups = {
        kind: np.flatnonzero(np.array(of[: len(sizes)]) == kind)
        for kind in ("participating", "validation", "unseen")
    }
    return FederatedDataset(
        name="made",
        clients=ClientExamples(np.zeros((count, 1)), y, splits),
        client_names=np.array([f"c{number}" for number in range(len(sizes))]),
        groups=groups
        | {"train": np.flatnonzero(np.isin(of[: len(sizes)], ["train", "participating"]))},
        server=single_client(np.ones((5, 1)), y[:3].repeat(2)[:5]) if draw(st.booleans()) else None,
        classes=KINDS,
        should_check=False,
    )


def held(data: FederatedDataset, client: int) -> set[int]:
    return {
        int(row)
        for name in ("train", "test", "adapt")
        for row in data.clients.splits[name].get_rows(client)
    }


@settings(deadline=None)
@given(datasets(), st.integers(1, 7))
def test_a_table_is_what_a_loop_counts(data: FederatedDataset, block: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(label_table, "BLOCK_ROWS", block)
        table = compute_label_table(data)
    assert sorted(table.client_ids.tolist()) == list(range(len(data.client_names)))
    assert table.sizes.tolist() == [
        len(held(data, client)) for client in range(len(data.client_names))
    ]
    assert table.counts is not None
    for place, client in enumerate(table.client_ids.tolist()):
        counted = Counter(int(data.clients.y[row]) for row in held(data, client))
        assert table.counts[place].tolist() == [counted[kind] for kind in range(KINDS)]
        assert table.client_names[place] == data.client_names[client]
        memberships = [
            name
            for name in ("participating", "train", "validation", "unseen")
            if client in data.groups[name]
        ]
        assert table.groups[client] == [*memberships, "no group"][0]
    if data.server is None:
        assert (table.server, table.server_size) == (None, 0)
    else:
        assert table.server is not None
        assert table.server.tolist() == [
            data.server.y.tolist().count(kind) for kind in range(KINDS)
        ]


@settings(deadline=None)
@given(datasets())
def test_figures_are_what_a_loop_makes_of_them(data: FederatedDataset) -> None:
    table = compute_label_table(data)
    found = compute_stats(table)
    labels = [
        [int(data.clients.y[row]) for row in sorted(held(data, client))]
        for client in range(len(data.client_names))
    ]
    sizes = [len(each) for each in labels]
    assert found[:5] == pytest.approx(
        (min(sizes), median(sizes), mean(sizes), pstdev(sizes), max(sizes))
    )
    assert found.labels_per_client == pytest.approx(mean(len(set(each)) for each in labels))
    together = list(chain(*labels))
    assert found.client_distance == pytest.approx(
        float(mean(variation(each, together) for each in labels))
    )
    if data.server is None:
        assert found.server_distance is found.client_server_distance is None
    else:
        server = data.server.y.tolist()
        assert found.server_distance == pytest.approx(float(variation(server, together)))
        assert found.client_server_distance == pytest.approx(
            float(mean(variation(each, server) for each in labels))
        )


def variation(one: list[int], other: list[int]) -> Fraction:
    """Total variation of the shares of labels in two lists: the most that any set of labels differs
    by.
    """
    gaps = [
        Fraction(one.count(kind), len(one)) - Fraction(other.count(kind), len(other))
        for kind in range(KINDS)
    ]
    return sum((gap for gap in gaps if gap > 0), Fraction(0))


@pytest.mark.parametrize("adapt", ["train", "test", 0.5])
def test_examples_to_adapt_on_count_once(adapt: str | float) -> None:
    data = digits(clients=12, adapt=adapt)
    table = compute_label_table(data)
    assert table.counts is not None
    assert table.counts.sum() == table.sizes.sum() == data.describe().examples
    assert np.array_equal(table.counts.sum(axis=1), table.sizes[table.client_ids])


class Watched(np.memmap):
    """A memory map that writes down how many rows were asked for."""

    asked: list[int]

    def __getitem__(self, key: Any) -> Any:
        self.asked.append(np.size(key) if isinstance(key, np.ndarray) else len(self))
        return super().__getitem__(key)


def test_a_column_on_disk_is_read_in_blocks_and_only_where_clients_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draws = np.random.default_rng(0)
    sizes = draws.integers(1, 9, 5000)
    labels = draws.integers(0, KINDS, sizes.sum()).astype(np.uint8)
    labels.tofile(tmp_path / "y")
    y = Watched(tmp_path / "y", np.uint8, "r")
    y.asked = []
    starts = np.cumsum(sizes) - sizes
    splits = {
        "train": make_range_split(starts, sizes - sizes // 2),
        "test": make_range_split(starts + sizes - sizes // 2, sizes // 2),
    }
    people = {
        "train": np.arange(4990),
        "participating": np.arange(4990),
        "validation": np.arange(0),
        "unseen": 4990 + np.arange(10),
    }
    ids = np.arange(5000).astype(str)
    data = FederatedDataset(
        "large", ClientExamples(y, y, splits), ids, people, None, KINDS, should_check=False
    )
    monkeypatch.setattr(label_table, "BLOCK_ROWS", 100)
    table = compute_label_table(data, max_clients=300)
    assert max(y.asked) <= 100
    assert sum(y.asked) == sizes[table.client_ids].sum()
    assert np.array_equal(table.sizes, sizes)
    assert table.counts is not None
    rows = [
        np.bincount(labels[starts[who] : starts[who] + sizes[who]], minlength=KINDS)
        for who in table.client_ids
    ]
    assert np.array_equal(table.counts, rows)
    assert len(np.unique(table.client_ids)) == 300
    assert np.diff(table.client_ids).max() <= 17
    assert (table.client_ids[0], table.client_ids[-1]) == (0, 4999)


def targets(y: Any, **options: Any) -> FederatedDataset:
    return from_arrays(
        np.arange(12)[:, None], y, np.repeat([0, 1, 2], 4), unseen_clients=0, **options
    )


def test_sequences_and_numbers_have_sizes_but_no_labels() -> None:
    tokens = compute_label_table(
        targets(np.zeros((12, 5), np.int64), classes=3, tokens=True, server=2)
    )
    assert (
        tokens.reason
        == "A target is tokens of shape [5], not one label, so there are no labels to count."
    )
    numbers = compute_label_table(targets(np.linspace(0, 1, 12)))
    assert numbers.reason == "Targets are numbers, not labels, so there are no labels to count."
    for table in (tokens, numbers):
        assert table.counts is table.server is None
        assert compute_stats(table)[5:] == (None, None, None, None)
    assert tokens.sizes.sum() == 10
    assert tokens.server_size == 2
    assert compute_stats(numbers)[:5] == (4, 4, 4, 0, 4)


@settings(deadline=None)
@given(datasets())
def test_clients_are_ordered_by_group_and_then_by_main_label(data: FederatedDataset) -> None:
    table = compute_label_table(data)
    assert table.counts is not None
    order = sort_by_main_label(table)
    assert sorted(order.tolist()) == list(range(len(data.client_names)))
    ranks = ["participating", "train", "validation", "unseen", "no group"]
    keys = [
        (ranks.index(table.groups[table.client_ids[place]]), row.index(max(row)), -max(row))
        for place in order.tolist()
        for row in [table.counts[place].tolist()]
    ]
    assert keys == sorted(keys)
