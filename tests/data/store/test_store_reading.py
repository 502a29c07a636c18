"""Stores as data sets see them: holders, runs of rows, scenarios, the smallest types."""

import os
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtailor import prng
from fedtailor.core.types import BatchPlan, BatchSpec
from fedtailor.data import ClientExamples, FederatedDataset, Split
from fedtailor.data.batching import iter_batch_indices
from fedtailor.data.reader_blocks import Block
from fedtailor.data.store import (
    CachedScenario,
    build,
    load_or_build_scenario,
    make_range_split,
    open_store,
    pick_int_dtype,
)
from fedtailor.data.store.row_ranges import compact
from fedtailor.data.store.verified_column import get_verified_column
from fedtailor.errors import InputError
from stores import MADE, NO_FACTS, full, toy


def test_another_process_is_sent_no_copy() -> None:
    stored = toy([50_000])
    sent = pickle.dumps(stored)
    assert len(sent) < 500
    received = pickle.loads(sent).columns["x"]
    assert get_verified_column(received) is not None
    np.testing.assert_array_equal(received, stored.columns["x"])
    assert len(pickle.dumps(stored.columns["x"])) < 1000


def test_holders_share_the_columns_and_keep_the_promises() -> None:
    stored = toy()
    holders = stored.to_client_examples(
        {
            "train": stored.get_full_split(),
            "test": make_range_split(stored.offsets[:-1], np.zeros(4, np.int64)),
        }
    )
    assert get_verified_column(holders.x) is not None
    assert not holders.x.flags.writeable
    assert np.shares_memory(holders.x, stored.columns["x"])
    assert np.shares_memory(holders.y, stored.columns["y"])
    everybody, nobody = np.arange(4), np.zeros(0, np.int64)
    groups = {
        "train": everybody,
        "participating": everybody,
        "validation": nobody,
        "unseen": nobody,
    }
    dataset = FederatedDataset("toy", holders, stored.client_names, groups, None, 3)
    assert dataset.clients.x is holders.x
    assert dataset.describe().examples == 10
    assert dataset.get_adapt_split() == "train"
    assert dataset.with_pooled_client().clients.splits["train"].get_rows(4).tolist() == list(
        range(10)
    )
    twice = holders._replace(
        splits=holders.splits
        | {"train": make_range_split(np.array([0, 2, 4, 8]), np.array([3, 1, 4, 2]))}
    )
    with pytest.raises(
        InputError,
        match="example 2 must be held once, but is held more often, by client 'c0' and client 'c1'",
    ):
        FederatedDataset("toy", twice, stored.client_names, groups, None, 3)


def test_holders_need_x_and_y() -> None:
    stored = build("toy", [Block("a", {"x": np.zeros((2, 3), np.float32)})], NO_FACTS, MADE)
    with pytest.raises(
        InputError, match="toy: the store must have columns x and y, but has only x"
    ):
        stored.to_client_examples({})


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 5)), min_size=1, max_size=6), st.data()
)
def test_runs_are_the_array_they_stand_for(
    given_runs: list[tuple[int, int]], data: st.DataObject
) -> None:
    starts, sizes = (np.array(each) for each in zip(*given_runs, strict=True))
    split = make_range_split(starts, sizes)
    wanted = np.array(
        [row for start, size in given_runs for row in range(start, start + size)], np.int64
    )
    index, count = split.index, len(wanted)
    assert (len(index), index.shape, index.size, index.dtype) == (
        count,
        (count,),
        count,
        wanted.dtype,
    )
    np.testing.assert_array_equal(index, wanted)
    assert [split.get_rows(who).tolist() for who in range(len(sizes))] == [
        list(range(start, start + size)) for start, size in given_runs
    ]
    if count:
        at = np.array(
            data.draw(
                st.lists(
                    st.lists(st.integers(-count, count - 1), min_size=2, max_size=2), max_size=4
                )
            ),
            int,
        )
        np.testing.assert_array_equal(index[at], wanted[at])
        assert index[at].dtype == np.int64
        assert index[count - 1] == wanted[-1]
    chosen = np.array(data.draw(st.lists(st.booleans(), min_size=count, max_size=count)), bool)
    np.testing.assert_array_equal(index[chosen], wanted[chosen])
    step = data.draw(st.slices(count))
    np.testing.assert_array_equal(index[step], wanted[step])
    np.testing.assert_array_equal((index >= 3) & (index < 20), (wanted >= 3) & (wanted < 20))
    np.testing.assert_array_equal(np.arange(60)[index], wanted)
    for outside in (count, -count - 1):
        with pytest.raises(IndexError, match=f"index {outside} is out of bounds with size {count}"):
            index[outside]
    again = compact(Split(wanted, split.offsets))
    np.testing.assert_array_equal(again.index, wanted)
    assert isinstance(again.index, type(index)) == (count > 0)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=5), st.data())
def test_what_is_not_runs_stays_an_array(sizes: list[int], data: st.DataObject) -> None:
    offsets = np.append(0, np.cumsum(sizes))
    order = np.array(data.draw(st.permutations(range(sum(sizes)))), np.int64)
    split = Split(order, offsets)
    follow = all((np.diff(split.get_rows(who)) == 1).all() for who in range(len(sizes)))
    again = compact(split)
    assert (again is split) == (not follow or not len(order))
    np.testing.assert_array_equal(again.index, order)
    np.testing.assert_array_equal(again.offsets, offsets)


def test_batches_are_those_of_plain_arrays() -> None:
    sizes = [7, 1, 12, 4]
    stored = toy(sizes)
    lazy = stored.to_client_examples({"train": stored.get_full_split()})
    plain = ClientExamples(
        np.asarray(lazy.x),
        np.asarray(lazy.y),
        {"train": Split(np.arange(24), np.append(0, np.cumsum(sizes)))},
    )
    plan, who = BatchPlan((BatchSpec("train", 3),), epochs=2), np.array([2, 0, 3])
    keys = prng.key(0, "batches", torch.from_numpy(who))
    seen, wanted = (
        list(iter_batch_indices(plan, holders, who, keys, 8)) for holders in (lazy, plain)
    )
    assert len(seen) == 8
    for (one,), (other,) in zip(seen, wanted, strict=True):
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(one, other, strict=True))


@pytest.fixture
def making() -> tuple[Callable[[], CachedScenario], list[str]]:
    """Makes a scenario of four clients with ten rows, and a list that grows by it."""
    made: list[str] = []

    def make() -> CachedScenario:
        made.append("made")
        train, mixed = (
            make_range_split(np.array([0, 3, 4, 8]), np.array([2, 1, 3, 1])),
            np.array([2, 9, 7]),
        )
        test = Split(mixed, np.array([0, 2, 2, 2, 3]))
        ends = {"unseen": np.array([3]), "nobody": np.zeros(0, np.int64)}
        return CachedScenario({"train": train, "test": test, "adapt": train}, ends)

    return make, made


def same(one: CachedScenario, other: CachedScenario) -> bool:
    mine, theirs = (
        {**each.arrays, **{f"{n}/{i}": p for n, s in each.splits.items() for i, p in enumerate(s)}}
        for each in (one, other)
    )
    return list(mine) == list(theirs) and all(
        np.array_equal(mine[name], theirs[name]) for name in mine
    )


def test_a_scenario_is_made_once_and_then_mapped(
    making: tuple[Callable[[], CachedScenario], list[str]],
) -> None:
    make, made = making
    first, second = (
        load_or_build_scenario(toy(), {"alpha": 0.5, "seed": seed}, make) for seed in (0, 0)
    )
    assert made == [
        "made",
        "made",
    ]  # the store was built anew in between, and took its scenarios along
    stored = open_store("toy")
    third = load_or_build_scenario(stored, {"seed": 0, "alpha": 0.5}, make)
    assert len(made) == 2
    assert same(first, make())
    assert same(second, make())
    assert same(third, make())
    assert isinstance(third.splits["test"].index, np.memmap)
    assert third.splits["adapt"] is third.splits["train"]
    assert not list(stored.folder.rglob("split-train-index.npy"))


def test_other_options_are_other_files(
    making: tuple[Callable[[], CachedScenario], list[str]],
) -> None:
    make, made = making
    stored = toy()
    for seed in (0, 1, 2, 1):
        load_or_build_scenario(stored, {"seed": seed}, make)
    assert len(made) == 3
    assert len(list((stored.folder / "scenarios").iterdir())) == 3
    open_store("toy").verify()


def test_a_scenario_belongs_to_the_content_it_was_made_for(
    making: tuple[Callable[[], CachedScenario], list[str]],
) -> None:
    make, made = making
    before = toy()
    after = toy(value=1)
    load_or_build_scenario(before, {}, make)  # by somebody who still has the old store open
    load_or_build_scenario(after, {}, make)
    assert len(made) == 2
    assert toy().content_hash == before.content_hash != after.content_hash


def test_contiguous_splits_cost_nothing_for_each_row() -> None:
    stored = toy([100_000, 200_000])
    whole = Split(np.arange(300_000), np.array([0, 100_000, 300_000]))
    read = load_or_build_scenario(stored, {}, lambda: CachedScenario({"train": whole}, {}))
    np.testing.assert_array_equal(read.splits["train"].index, whole.index)
    assert sum(path.stat().st_size for path in (stored.folder / "scenarios").rglob("*.npy")) < 1000


@pytest.mark.parametrize("damage", ["cut", "empty", "missing", "options", "names", "nested"])
def test_a_damaged_scenario_is_made_again(
    damage: str, making: tuple[Callable[[], CachedScenario], list[str]]
) -> None:
    make, made = making
    stored = toy()
    load_or_build_scenario(stored, {}, make)
    (folder,) = (stored.folder / "scenarios").iterdir()
    if damage == "missing":
        (folder / "array-unseen.npy").unlink()
    elif damage == "options":
        os.truncate(folder / "scenario.json", 20)
    elif damage == "names":
        content = (folder / "scenario.json").read_text()
        (folder / "scenario.json").write_text(content.replace('"adapt":', '"adopt":'))
    elif damage == "nested":
        (folder / "scenario.json").write_text("[" * 100_000)
    else:
        os.truncate(folder / "split-test-index.npy", 20 if damage == "cut" else 0)
    assert same(load_or_build_scenario(stored, {}, make), make())
    assert len(made) == 3
    assert same(load_or_build_scenario(stored, {}, make), make())
    assert len(made) == 4


def test_a_flipped_bit_of_any_file_of_a_scenario_is_noticed(
    making: tuple[Callable[[], CachedScenario], list[str]],
) -> None:
    make, _ = making
    stored = toy()
    load_or_build_scenario(stored, {}, make)
    (folder,) = (stored.folder / "scenarios").iterdir()
    names = sorted(path.name for path in folder.iterdir())
    assert len(names) == 7
    positions = np.random.default_rng(0)
    for name in names:
        for _ in range(4):
            path = folder / name
            content = bytearray(path.read_bytes())
            place = int(positions.integers(len(content)))
            content[place] ^= 1 << int(positions.integers(8))
            path.write_bytes(content)
            # Whitespace of JSON alone may be another.
            is_harmless = name == "scenario.json" and chr(content[place]).isspace()
            if not is_harmless:
                with pytest.raises(InputError, match=r"^toy: the scenario in '.*' is damaged, "):
                    stored.verify()
            assert same(load_or_build_scenario(stored, {}, make), make())
            stored.verify()


def test_a_scenario_that_cannot_be_kept_is_used(
    making: tuple[Callable[[], CachedScenario], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    make, made = making
    stored = toy()

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        assert same(load_or_build_scenario(stored, {}, make), make())
    assert list((stored.folder / "scenarios").iterdir()) == []
    load_or_build_scenario(stored, {}, make)
    assert len(made) == 3


@given(st.integers(-(2**63), 2**64 - 1), st.integers(-(2**63), 2**64 - 1))
def test_the_smallest_type_holds_both_ends_and_no_smaller_one_does(one: int, other: int) -> None:
    low, high = min(one, other), max(one, other)

    def holds(kind: str) -> bool:
        limits: np.iinfo[Any] = np.iinfo(kind)
        return bool(limits.min <= low and high <= limits.max)

    good = [
        np.dtype(kind) for kind in ("u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8") if holds(kind)
    ]
    if not good:
        with pytest.raises(InputError, match=f"no type for integers from {low} to {high}"):
            pick_int_dtype(low, high)
        return
    assert pick_int_dtype(low, high) in good
    assert pick_int_dtype(low, high).itemsize == min(kind.itemsize for kind in good)


def test_smallest_of_what_data_sets_have() -> None:
    asked = [(0, 255), (0, 256), (-1, 127), (0, 9_999), (-1, 200), (0, 2**31), (-(2**63), 0)]
    assert [str(pick_int_dtype(*ends)) for ends in asked] == [
        "uint8",
        "uint16",
        "int8",
        "uint16",
        "int16",
        "uint32",
        "int64",
    ]
