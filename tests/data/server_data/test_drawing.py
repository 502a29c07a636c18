"""What the server draws from the data: how many, from which clients, and no client's equal."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from divided import (
    add_people,
    contents,
    data_folder,
    group,
    held,
    images_of,
    labels_of,
    rows_of,
    saved,
    served,
    writers,
)
from fedtailor.data import FederatedDataset, add, load
from fedtailor.data.server_data import holdout
from fedtailor.data.server_data.damage import damage_examples
from fedtailor.data.sources import open_dataset
from fedtailor.errors import InputError

pytest_plugins = ["places"]

RULED = {"partition": "iid", "clients": 30}
DRAWN: dict[str, dict[str, Any]] = {
    "examples": {"server": 63},
    "classes": {"server": 63},
    "whole-clients": {"server": 3},
    "client-samples": {"server": 4, "server_each": 6},
}


@pytest.fixture(scope="module", autouse=True)
def small() -> Iterator[Path]:
    """A folder with small data sets, where data is looked for."""
    with data_folder() as path:
        add("mnist", saved(path / "mnist.npz", images_of("mnist", 1000, 200)))
        add("femnist", saved(path / "femnist.npz", writers()))
        yield path


def options_of(name: str, source: str, **more: Any) -> dict[str, Any]:
    drawn = {"server": 0} if more.get("server") == 0 else DRAWN[source]
    return {**(RULED if name == "mnist" else {"least": 1}), "server_from": source, **drawn, **more}


def rows_served(dataset: FederatedDataset) -> list[int]:
    """Which rows of its data set the server has; no two of these sets' images are alike."""
    places = {image: row for row, image in enumerate(contents(dataset.clients.x))}
    return [places[image] for image in contents(served(dataset)[0])]


def whose_rows(dataset: FederatedDataset) -> dict[int, str]:
    index, whose = held(dataset)
    return dict(zip(index.tolist(), dataset.client_names[whose].tolist(), strict=True))


@pytest.mark.parametrize("name", ["mnist", "femnist"])
@pytest.mark.parametrize("source", DRAWN)
def test_the_server_has_what_it_asked_for_and_clients_have_the_rest(name: str, source: str) -> None:
    made, alone = (
        load(name, **options_of(name, source)),
        load(name, **options_of(name, source, server=0)),
    )
    rows, left, before = rows_served(made), whose_rows(made), whose_rows(alone)
    assert set(rows).isdisjoint(left)
    assert set(rows) | set(left) == set(before) == set(range(open_dataset(name).num_rows))
    assert served(made)[1].tolist() == open_dataset(name).columns["y"][rows].tolist()
    assert made.overlap is False
    gave = [before[row] for row in rows]
    if (
        source in ("whole-clients", "client-samples") or name == "femnist"
    ):  # everybody else is as if there were no server
        assert left == {row: who for row, who in before.items() if row not in set(rows)}
    if source == "whole-clients":
        assert len(set(gave)) == 3
        assert set(gave).isdisjoint(made.client_names.tolist())
    elif source == "client-samples":
        assert sorted(gave.count(who) for who in set(gave)) == [6] * 4
    else:
        assert len(rows) == 63


def test_equally_many_of_each_class_give_or_take_one() -> None:
    counts = np.bincount(served(load("mnist", **options_of("mnist", "classes")))[1])
    assert sorted(counts.tolist()) == [6] * 7 + [7] * 3
    plain = np.bincount(served(load("mnist", **options_of("mnist", "examples")))[1], minlength=10)
    assert plain.max() - plain.min() > 1


def test_a_share_is_of_examples_or_of_people() -> None:
    for source in ("examples", "classes", "whole-clients"):  # 3 of 30 people have 40 examples each
        assert len(rows_served(load("mnist", **RULED, server=0.1, server_from=source))) == 120
    each = load("mnist", **RULED, server=0.1, server_from="client-samples", server_each=7)
    assert len(rows_served(each)) == 21


@pytest.mark.parametrize("name", ["mnist", "femnist"])
@pytest.mark.parametrize("source", DRAWN)
def test_with_overlap_clients_keep_what_the_server_draws(name: str, source: str) -> None:
    made = load(name, **options_of(name, source, overlap=True))
    alone = load(name, **options_of(name, source, overlap=True, server=0))
    assert whose_rows(made) == whose_rows(alone)
    assert set(rows_served(made)) <= set(whose_rows(made))
    assert made.overlap is True
    assert "clients may have, too (overlap)" in str(made.describe())
    tested = set(made.clients.splits["test"].index.tolist())
    assert tested.isdisjoint(rows_served(made))
    most = len(rows_served(load(name, **options_of(name, source))))
    assert most / 3 < len(rows_served(made)) < most
    assert alone.overlap is False


@pytest.mark.parametrize("source", [*DRAWN, "rendered", "set"])
def test_no_server_is_no_server_wherever_it_would_be_from(source: str) -> None:
    made = load("mnist", **RULED, server=0, server_from=source)
    assert made.server is None
    assert made.describe().examples == 1200


def test_the_servers_examples_do_not_change_with_the_partition() -> None:
    one, other = load("mnist", clients=30), load("mnist", partition="iid", clients=10, server=0.05)
    np.testing.assert_array_equal(served(one)[0], served(other)[0])


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("source", DRAWN)
def test_images_that_repeat_are_dealt_out_like_all_others(source: str, place: Path) -> None:
    """Draws depend on labels and numbers of rows alone, not on what the images show."""
    arrays = images_of("mnist", 400, 100)
    options = {"partition": "iid", "clients": 10, "server_from": source} | DRAWN[source]
    add("mnist", saved(place / "mnist.npz", arrays), replace=True)
    unique = load("mnist", **options)
    arrays["x_train"][200:] = arrays["x_train"][:200]
    arrays["x_test"][50:] = arrays["x_train"][:50]
    add("mnist", saved(place / "repeated.npz", arrays), replace=True)
    made = load("mnist", **options)
    assert whose_rows(made) == whose_rows(unique)
    assert served(made)[1].tolist() == served(unique)[1].tolist()
    counts = made.row_counts
    assert counts == unique.row_counts
    assert (counts.read, counts.given_up, counts.left_out) == (500, 0, {})
    assert counts.clients + counts.server == 500


@pytest.mark.parametrize(
    ("damage", "amount"), [("invert", 1.0), ("noise", 0.2), ("wrong-labels", 0.5)]
)
def test_only_the_server_is_damaged(damage: str, amount: float) -> None:
    plain, truth = load("mnist", **RULED, server=50), labels_of("mnist")
    for _ in range(2):
        made = load("mnist", **RULED, server=50, server_damage=damage, server_amount=amount)
        assert whose_rows(made) == whose_rows(plain)
        np.testing.assert_array_equal(made.clients.x, plain.clients.x)
        np.testing.assert_array_equal(made.clients.y, plain.clients.y)
        (x, y), (was_x, was_y) = served(made), served(plain)
        if damage == "invert":
            np.testing.assert_array_equal(x, 255 - was_x)
            np.testing.assert_array_equal(y, was_y)
        elif damage == "noise":
            assert (x != was_x).mean() > 0.9
        else:
            np.testing.assert_array_equal(x, was_x)
            assert (y != was_y).sum() == 25
    assert [truth[image] for image in contents(was_x)] == was_y.tolist()
    nothing = damage_examples(
        was_x, was_y, 10, damage=damage, amount=0, rng=np.random.default_rng(0)
    )
    np.testing.assert_array_equal(nothing[0], was_x)


def test_people_who_gave_to_the_server_keep_their_name_and_their_group() -> None:
    made = load("femnist", server_from="client-samples", server=2, server_each=10)
    alone = load("femnist", server_from="client-samples", server=0)
    assert made.client_names.tolist() == alone.client_names.tolist()
    assert [group(made, name) for name in made.groups] == [
        group(alone, name) for name in alone.groups
    ]
    sizes = [
        {name: len(rows) for name, rows in rows_of(each, "train").items()} for each in (made, alone)
    ]
    assert sum(sizes[0][name] < sizes[1][name] for name in sizes[0]) == 2


def test_what_cannot_be_drawn_is_refused() -> None:
    draws, labels, whose = (
        np.random.default_rng(0),
        np.array([0] * 9 + [1]),
        np.array([0, 0, 0, -1, 1]),
    )
    with pytest.raises(
        InputError, match=r"^d: server must be at most 1 examples of label 1, got 2 by server=4"
    ):
        holdout.draw_balanced("d", labels, 4, draws)
    with pytest.raises(
        InputError, match=r"^d: server_from=classes needs one label for each example"
    ):
        holdout.draw_balanced("d", np.zeros((3, 2), np.int64), 2, draws)
    with pytest.raises(
        InputError,
        match=r"^d: server must be at most 1 clients, got 2: only 1 of 2 clients have more",
    ):
        holdout.draw_from_clients("d", whose, 2, draws, server_each=1)
    with pytest.raises(
        InputError, match=r"^d: server_each must be a whole number of at least 1, got 0"
    ):
        holdout.draw_from_clients("d", whose, 1, draws, server_each=0)
    with pytest.raises(InputError, match=r"^d: server must leave some of the 10 examples, got 10"):
        holdout.draw_examples("d", labels, 10, draws)


@settings(max_examples=80, deadline=None)
@given(
    whose=st.lists(st.integers(-1, 6), min_size=1, max_size=60).filter(lambda them: max(them) >= 0),
    server=st.integers(1, 3),
    each=st.integers(1, 5),
    seed=st.integers(0, 9),
)
def test_so_many_of_each_of_so_many_clients(
    whose: list[int], server: int, each: int, seed: int
) -> None:
    column = np.array(whose)
    large = [who for who in set(whose) - {-1} if whose.count(who) > each]
    try:
        rows = holdout.draw_from_clients(
            "d", column, server, np.random.default_rng(seed), server_each=each
        )
    except InputError:
        assert len(large) < server
        return
    kinds, counts = np.unique(column[rows], return_counts=True)
    assert len(set(rows.tolist())) == len(rows)
    assert (len(kinds), set(counts.tolist())) == (server, {each})
    assert set(kinds.tolist()) <= set(large)


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("tokens", [False, True])
def test_equal_rows_of_a_stored_table_all_stay(tokens: bool) -> None:
    """Rows are dealt out by their number: equal ones are neither removed nor given up."""
    x = np.zeros((20, 1), np.int64)
    add_people([[False] * 4] * 5, x=x, tokens=tokens)
    made = load("people", server=3)
    assert len(served(made)[0]) == 3
    assert len(held(made)[0]) == 17
    assert str(made.row_counts) == (
        "20 rows read: 17 used by clients, 3 held by the server, 0 left out."
    )
    assert load("people", server=3).row_counts == made.row_counts  # from the cached scenario
    whole = load("people", server=1, server_from="whole-clients")
    assert len(served(whole)[0]) == 4
    assert len(held(whole)[0]) == 16


@pytest.mark.usefixtures("place")
def test_rows_that_are_left_out_are_counted_by_reason() -> None:
    add_people([[False] * size for size in (1, 2, 5, 6, 7)])
    made = load("people", server=1, least=2, most=4, reserved=2, server_from="whole-clients")
    counts = made.row_counts
    sizes = dict(
        zip(made.client_names.tolist(), made.clients.splits["train"].compute_sizes(), strict=True)
    )
    assert len(sizes) == 2
    assert counts.read == 21
    assert counts.left_out["of clients with fewer than least=2 examples"] == 1
    assert counts.read == counts.clients + counts.server + sum(counts.left_out.values())
    assert set(counts.left_out) <= {
        "of clients with fewer than least=2 examples",
        "of reserved clients",
        "beyond most=4 of a client",
    }
    few = load("people", server=0, clients=3)
    assert few.row_counts.left_out == {
        "of clients that were not drawn": 21 - few.describe().examples
    }


@pytest.mark.usefixtures("place")
def test_a_server_whose_examples_are_all_tested_is_told() -> None:
    add_people([[False, False, True, True]] * 5)
    said = r"^people: .* are tested on all \d drawn for it; ask for more than 1\.$"
    options = {"server": 1, "server_from": "client-samples", "server_each": 1, "split": "own"}
    made = load("people", overlap=True, seed=0, **options)
    assert made.row_counts.shared == made.row_counts.server == 1
    with pytest.raises(InputError, match=said):
        load("people", overlap=True, seed=1, **options)
