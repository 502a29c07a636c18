"""What clients adapt on, and support and query: which example is where, and what is refused."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtailor.data import ClientExamples, FederatedDataset, from_arrays
from fedtailor.errors import InputError
from scenarios import split, toy_data

EMPTY = np.array([], dtype=np.int64)
SIZES = (1, 2, 8, 20, 41)


def made(**options: Any) -> FederatedDataset:
    """Five clients with 1 to 41 examples; example i is [i]."""
    whose = np.repeat(np.arange(len(SIZES)), SIZES)
    x = np.arange(float(len(whose)))[:, None]
    return from_arrays(x, np.arange(len(whose)) % 3, whose, **options)


def hands(data: FederatedDataset, name: str) -> list[list[int]]:
    return [
        sorted(data.clients.splits[name].get_rows(who).tolist())
        for who in range(data.clients.count)
    ]


def test_clients_adapt_on_their_train_examples_unless_said_otherwise() -> None:
    data = made()
    assert hands(data, "adapt") == hands(data, "train")
    assert (data.get_adapt_split(), data.get_disjoint_splits()) == ("train", ("train", "test"))
    assert toy_data().get_adapt_split() == "train"  # made without the word


def test_clients_may_adapt_on_their_very_test_examples() -> None:
    data, plain = made(adapt="test"), made()
    assert hands(data, "adapt") == hands(data, "test") == hands(plain, "test")
    assert (data.get_adapt_split(), data.get_disjoint_splits()) == ("test", ("train", "test"))


@pytest.mark.parametrize("share", [0.2, 0.5, 0.99])
def test_clients_may_adapt_on_a_share_of_the_test_part(share: float) -> None:
    data, plain = made(adapt=share, test_share=0.5), made(test_share=0.5)
    assert hands(data, "train") == hands(plain, "train")
    for adapt, test, before in zip(
        hands(data, "adapt"), hands(data, "test"), hands(plain, "test"), strict=True
    ):
        assert sorted(adapt + test) == before
        assert len(adapt) == int(np.floor(share * len(before) + 1e-9))
    assert (data.get_adapt_split(), data.get_disjoint_splits()) == (
        "adapt",
        ("train", "test", "adapt"),
    )


@pytest.mark.parametrize("adapt", ["train", "test", 0.3])
def test_figures_count_each_example_once(adapt: str | float) -> None:
    found = made(adapt=adapt, test_share=0.5).describe()
    assert (found.examples, found.smallest, found.largest) == (sum(SIZES), 1, 41)
    assert found.mean == pytest.approx(np.mean(SIZES))
    with_support = made(adapt=adapt, test_share=0.5).with_support().describe()
    assert with_support == found


def test_in_the_pool_nobody_adapts_on_what_is_not_theirs() -> None:
    data = made(test_share=0.5, adapt=0.5)
    pooled = data.with_pooled_client()
    assert hands(pooled, "adapt") == [*hands(data, "adapt"), []]
    assert pooled.get_adapt_split() == "adapt"
    assert made().with_pooled_client().get_adapt_split() == "train"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"adapt": "tests"},
            "arrays: adapt must be train, test or a share of the test part, got 'tests'.",
        ),
        ({"adapt": 1.0}, "arrays: adapt must be a share from 0 to less than 1, got 1.0."),
        ({"adapt": -0.1}, "arrays: adapt must be a share from 0 to less than 1, got -0.1."),
        ({"adapt": True}, "arrays: adapt must be a share from 0 to less than 1, got True."),
        ({"support": 1.0}, "arrays: support must be a share from 0 to less than 1, got 1.0."),
        ({"support": "half"}, "arrays: support must be a share from 0 to less than 1, got half."),
    ],
)
def test_shares_out_of_range_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        made(**options)


@given(
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=8).filter(lambda sizes: max(sizes) > 1),
    share=st.floats(0, 0.99),
)
@settings(max_examples=60, deadline=None)
def test_support_and_query_share_out_the_train_examples(sizes: list[int], share: float) -> None:
    whose = np.repeat(np.arange(len(sizes)), sizes)
    x = np.random.default_rng(0).permutation(len(whose)).astype(float)[:, None]
    options: dict[str, Any] = {
        "test_share": 0.0,
        "validation_clients": 0,
        "unseen_clients": 0,
        "support": share,
    }
    data = from_arrays(x, x[:, 0], whose, **options).with_support()
    parts = zip(hands(data, "train"), hands(data, "support"), hands(data, "query"), strict=True)
    for train, support, query in parts:
        assert sorted(support + query) == train
        assert len(support) == min(max(round(share * len(train)), 1), max(len(train) - 1, 1))
    again = from_arrays(x, x[:, 0], whose, **options).with_support()
    for name in ("support", "query"):
        assert np.array_equal(again.clients.splits[name].index, data.clients.splits[name].index)
        assert np.array_equal(again.clients.splits[name].offsets, data.clients.splits[name].offsets)


def test_the_support_examples_are_drawn_at_random() -> None:
    data = made(test_share=0.0, support=0.5).with_support()
    train, support = data.clients.splits["train"].get_rows(4).tolist(), hands(data, "support")[4]
    assert support not in (sorted(train[: len(support)]), sorted(train[-len(support) :]))
    assert data.with_support() is data


def test_splits_of_ones_own_are_kept() -> None:
    data = toy_data(sizes=(3, 3, 3, 3))
    splits = data.clients.splits
    own = [splits["train"].get_rows(who) for who in range(4)]
    given_ = {
        **splits,
        "support": split([rows[2:] for rows in own]),
        "query": split([rows[:2] for rows in own]),
    }
    kept = _with(data, given_).with_support()
    assert hands(kept, "support") == [sorted(rows[2:].tolist()) for rows in own]


def test_somebody_must_have_two_examples() -> None:
    with pytest.raises(
        InputError,
        match="toy: no client has two train examples, one to adapt on and one to learn from",
    ):
        toy_data(sizes=(1, 1, 1, 1)).with_support()
    lonely = toy_data(sizes=(1, 2, 1, 1)).with_support()
    assert [len(rows) for rows in hands(lonely, "support")] == [1, 1, 1, 1]
    assert [len(rows) for rows in hands(lonely, "query")] == [0, 1, 0, 0]


def _with(data: FederatedDataset, splits: dict[str, Any]) -> FederatedDataset:
    """The data with other splits, looked at anew."""
    clients = ClientExamples(data.clients.x, data.clients.y, splits)
    return FederatedDataset(
        "toy", clients, data.client_names, data.groups, data.server, data.classes
    )


def test_adapting_on_a_part_of_the_test_examples_is_refused() -> None:
    data = toy_data(sizes=(3, 3, 3, 3))
    splits = data.clients.splits
    for who in range(4):
        some = [splits["test"].get_rows(each)[:1] if each == who else EMPTY for each in range(4)]
        with pytest.raises(
            InputError, match=f"must be held once, but is held more often, by client 'client-{who}'"
        ):
            _with(data, {**splits, "adapt": split(some)})
    equal = [splits["test"].get_rows(who).copy() for who in range(4)]
    with pytest.raises(
        InputError, match="must be held once"
    ):  # all of them, but without naming the same split
        _with(data, {**splits, "adapt": split(equal)})


def test_nobody_adapts_on_what_another_holds() -> None:
    data = toy_data(sizes=(3, 3, 3, 3))
    splits = data.clients.splits
    theirs = [splits["train"].get_rows((who + 1) % 4) for who in range(4)]
    for name in ("adapt", "support"):
        with pytest.raises(
            InputError, match="must be held once, but is held more often, by client 'client-0' and"
        ):
            _with(data, {**splits, name: split(theirs)})
    twice = [np.repeat(splits["train"].get_rows(who)[:1], 2) for who in range(4)]
    with pytest.raises(InputError, match="must be held once"):
        _with(data, {**splits, "adapt": split(twice)})


def test_some_train_examples_may_be_what_a_client_adapts_on() -> None:
    data = toy_data(sizes=(3, 3, 3, 3))
    splits = data.clients.splits
    some = _with(
        data, {**splits, "adapt": split([splits["train"].get_rows(who)[:2] for who in range(4)])}
    )
    assert (some.get_adapt_split(), some.get_disjoint_splits()) == ("train", ("train", "test"))
    assert some.describe().examples == data.describe().examples
