"""People as a data set says: who they are, what each has for train and test, who is new, and what
the server takes.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from divided import add_people, data_folder, fingerprint, group, person, rows_of, served
from fedtailor.data import FederatedDataset, load
from fedtailor.data.store import RowRanges
from fedtailor.errors import InputError

pytest_plugins = ["places"]

ORDERED = [
    [False] * 5 + [True] * 2,
    [False] * 3,
    [True] * 4,
    [False, True],
    [False] * 9 + [True],
    [False] * 4,
]
MIXED = [
    [False, True, False, False, True],
    [True, False],
    [True] * 3,
    [False, False, True, False],
    [False] * 3,
]
BY_ROW = 0.999
"""With so large a zeta nobody gets labels of their own, but examples are handed out row by row."""


def starts_of(testing: Sequence[Sequence[bool]]) -> list[int]:
    return np.append(0, np.cumsum([len(own) for own in testing])).tolist()


def as_runs(dataset: FederatedDataset) -> bool:
    return all(isinstance(split.index, RowRanges) for split in dataset.clients.splits.values())


def everything(dataset: FederatedDataset) -> dict[str, set[int]]:
    parts = [rows_of(dataset, part) for part in dataset.get_disjoint_splits()]
    return {name: set().union(*(part[name] for part in parts)) for name in parts[0]}


@pytest.mark.usefixtures("place")
def test_everybody_comes_with_their_own_name_and_all_that_is_theirs() -> None:
    add_people(ORDERED)
    made, starts = load("people", server=0), starts_of(ORDERED)
    assert made.client_names.tolist() == [person(number) for number in range(6)]
    assert everything(made) == {person(k): set(range(starts[k], starts[k + 1])) for k in range(6)}
    np.testing.assert_array_equal(made.clients.x[:, 0], np.arange(starts[-1]))


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("split", ["random", "last", "own"])
def test_least_most_and_how_many(split: str) -> None:
    add_people(ORDERED)
    sizes = {person(k): len(own) for k, own in enumerate(ORDERED)}
    for least in (1, 3, 4, 7, 10):
        made = load(
            "people", server=0, least=least, split=split, unseen_clients=0, validation_clients=0
        )
        assert set(made.client_names.tolist()) == {
            name for name, size in sizes.items() if size >= least
        }
    kept = everything(load("people", server=0, most=3, split=split))
    starts, tests = starts_of(ORDERED), {person(k): sum(own) for k, own in enumerate(ORDERED)}
    for number, (name, rows) in enumerate(kept.items()):
        first = set(range(starts[number], starts[number] + min(3, sizes[name])))
        if split == "own":  # of train and test rows each
            begin = starts[number] + sizes[name] - tests[name]
            first = set(range(starts[number], min(starts[number] + 3, begin)))
            first |= set(range(begin, begin + min(3, tests[name])))
        assert rows == first
    two = [load("people", server=0, clients=2, split=split, seed=seed) for seed in range(12)]
    assert all(made.clients.count == 2 for made in two)
    assert len({tuple(made.client_names.tolist()) for made in two}) > 4


@pytest.mark.usefixtures("place")
def test_the_last_examples_are_for_test_and_of_these_the_first_to_adapt_on() -> None:
    add_people([[False] * 10, [False] * 7, [False]])
    for zeta in (1, BY_ROW):
        made = load("people", server=0, split="last", test_share=0.5, adapt=0.4, zeta=zeta)
        assert rows_of(made, "train") == {
            "p90": [0, 1, 2, 3, 4],
            "p80": [10, 11, 12, 13],
            "p70": [17],
        }
        assert rows_of(made, "adapt") == {"p90": [5, 6], "p80": [14], "p70": []}
        assert rows_of(made, "test") == {"p90": [7, 8, 9], "p80": [15, 16], "p70": []}


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("testing", [ORDERED, MIXED], ids=["ordered", "mixed"])
def test_the_own_test_part_is_for_test(testing: list[list[bool]]) -> None:
    add_people(testing)
    made, starts = load("people", server=0, split="own", test_share=0.5), starts_of(testing)
    assert as_runs(made) == (testing is ORDERED)
    train, test = rows_of(made, "train"), rows_of(made, "test")
    for number, own in enumerate(testing):
        name, rows = person(number), np.arange(starts[number], starts[number + 1])
        if all(own):
            assert len(test[name]) == len(own) // 2
            assert sorted(train[name] + test[name]) == rows.tolist()
            assert name in group(made, "unseen")
        else:
            assert sorted(train[name]) == rows[~np.array(own)].tolist()
            assert sorted(test[name]) == rows[own].tolist()


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("split", ["last", "own"])
@pytest.mark.parametrize("adapt", ["train", "test", 0.5])
def test_adapting_is_the_very_split_also_when_it_is_read_back(
    split: str, adapt: str | float
) -> None:
    add_people(ORDERED)
    for _ in range(2):
        splits = load("people", server=0, split=split, adapt=adapt).clients.splits
        if isinstance(adapt, str):
            assert splits["adapt"] is splits[adapt]
        assert len({*map(id, splits.values())}) == (2 if isinstance(adapt, str) else 3)


@pytest.mark.usefixtures("place")
def test_a_set_without_a_test_part_of_its_own_is_told() -> None:
    from fedtailor.data import add_custom
    from fedtailor.data.reader_blocks import Block

    add_custom("plain", [Block(who, {"x": np.zeros((3, 1)), "y": np.zeros(3)}) for who in "ab"])
    for options in ({}, {"zeta": 0.5}, {"server_from": "client-samples", "server_each": 1}):
        with pytest.raises(
            InputError,
            match=r"^plain: split=own needs a test part, but this set has none; take random",
        ):
            load("plain", split="own", **options)
    with pytest.raises(
        InputError,
        match=r"^plain: zeta needs one label for each example|^relabel: labels must be",
    ):
        load("plain", zeta=0.5, server=0)
    with pytest.raises(
        InputError, match=r"^plain: partition=iid needs one label for each example; take natural"
    ):
        load("plain", partition="iid", clients=2)
    assert load("plain", server=0).classes is None


testing_columns = st.lists(
    st.lists(st.booleans(), min_size=1, max_size=9), min_size=2, max_size=12
).filter(lambda people: not all(all(own) for own in people))
OPTIONS: dict[str, Any] = {
    "split": st.sampled_from(["last", "own"]),
    "most": st.sampled_from([None, 1, 2, 5]),
    "test_share": st.sampled_from([0.0, 0.25, 0.6]),
    "adapt": st.sampled_from(["train", "test", 0.3]),
    "unseen_clients": st.sampled_from([0.0, 0.2, 0.5]),
    "seed": st.integers(0, 5),
}


@settings(max_examples=35, deadline=None)
@given(people=testing_columns, ordered=st.booleans(), options=st.fixed_dictionaries(OPTIONS))
def test_runs_and_rows_are_two_ways_to_the_same_division(
    people: list[list[bool]], ordered: bool, options: dict[str, Any]
) -> None:
    with data_folder():
        add_people([sorted(own) for own in people] if ordered else people)
        runs, rows = (load("people", server=0, zeta=zeta, **options) for zeta in (1, BY_ROW))
    assert as_runs(runs) or not (ordered or options["split"] == "last")
    assert runs.client_names.tolist() == rows.client_names.tolist()
    for name in runs.groups:
        assert runs.groups[name].tolist() == rows.groups[name].tolist()
    assert everything(runs) == everything(rows)
    for name, split in runs.clients.splits.items():
        assert split.compute_sizes().tolist() == rows.clients.splits[name].compute_sizes().tolist()
        if options["split"] == "last":
            assert rows_of(runs, name) == rows_of(rows, name)
    only_test = {person(number) for number, own in enumerate(people) if all(own)}
    for made in (runs, rows):
        people_of_train = [
            rows_of(made, "train")[name]
            for name in made.client_names.tolist()
            if name not in only_test
        ]
        if options["split"] == "own":
            flat = np.concatenate([sorted(own) if ordered else own for own in people])
            assert not flat[np.concatenate(people_of_train)].any()
            assert only_test <= set(group(made, "unseen"))


@settings(max_examples=35, deadline=None)
@given(
    people=testing_columns,
    split=st.sampled_from(["random", "last", "own"]),
    reserved=st.sampled_from([0, 0.3]),
    server=st.integers(1, 4),
    seed=st.integers(0, 5),
)
def test_people_for_the_server_are_first_those_who_cannot_train(
    people: list[list[bool]], split: str, reserved: float, server: int, seed: int
) -> None:
    with data_folder():
        add_people(people)
        options = {
            "split": split,
            "reserved": reserved,
            "server_from": "whole-clients",
            "seed": seed,
        }
        only_test = {
            person(number) for number, own in enumerate(people) if all(own) and split == "own"
        }
        kept = max(server, round(reserved * len(people)), int(reserved > 0))
        if kept >= len(people):
            with pytest.raises(InputError, match="server must leave one of the"):
                load("people", server=server, **options)
            return
        made = load("people", server=server, **options)
        again = load("people", server=server, **options)
    assert fingerprint(again) == fingerprint(made)
    x, starts = served(made)[0][:, 0], starts_of(people)
    own = {person(k) for k in range(len(people)) if starts[k] in x}
    assert x.tolist() == [
        row
        for k in range(len(people))
        if person(k) in own
        for row in range(starts[k], starts[k + 1])
    ]
    assert len(own) == server
    assert made.clients.count == len(people) - kept
    assert own.isdisjoint(made.client_names.tolist())
    assert (
        own <= only_test or only_test <= own
    )  # whoever can train is taken only when nobody else is left
    assert only_test.isdisjoint(group(made, "train"))


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("split", ["random", "own", "last"])
def test_what_is_reserved_for_the_server_leaves_the_clients_alone(split: str) -> None:
    add_people([[False] * (3 + number % 4) for number in range(60)])
    made = [
        load("people", server=server, server_from="whole-clients", reserved=0.05, split=split)
        for server in (0, 0.02, 0.05)
    ]
    for other in made[1:]:
        assert other.client_names.tolist() == made[0].client_names.tolist()
        assert all(
            other.groups[name].tolist() == who.tolist() for name, who in made[0].groups.items()
        )
        assert all(rows_of(other, name) == rows_of(made[0], name) for name in ("train", "test"))
    assert made[0].server is None
    assert made[0].clients.count == 57
    few, many = (set(served(each)[0][:, 0].tolist()) for each in made[1:])
    assert few < many
    assert load("people", server=0, split=split).clients.count == 60


def test_the_index_of_runs_takes_no_room(place: Path) -> None:
    sizes = []
    for length in (2, 200):
        add_people([[False] * length] * 30, name=f"of{length}")
        load(f"of{length}", server=0, split="last")
        files = (place / "stores" / f"of{length}" / "scenarios").rglob("*")
        sizes.append(sum(file.stat().st_size for file in files if file.suffix == ".npy"))
    assert sizes[0] == sizes[1]
