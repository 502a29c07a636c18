import pickle
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedtailor.data import (
    ClientExamples,
    FederatedDataset,
    Split,
    equality,
    from_arrays,
    single_client,
    validate_dataset,
    validation,
)
from fedtailor.data.content_hash import hash_rows
from fedtailor.data.equality import find_equal_examples
from fedtailor.data.examples import UNASSIGNED, Array
from fedtailor.errors import InputError


def split(*hands: list[int]) -> Split:
    return Split(
        np.array([example for hand in hands for example in hand], np.int64),
        np.cumsum([0, *map(len, hands)]),
    )


def people(**groups: list[int]) -> dict[str, Array]:
    everybody: dict[str, list[int]] = {
        "train": [0, 1],
        "participating": [0, 1],
        "validation": [2],
        "unseen": [3],
    }
    return {group: np.array(who, np.int64) for group, who in (everybody | groups).items()}


TRAIN, TEST = split([0, 1], [4, 3], [5], [7, 8]), split([2], [], [6], [9])


def make(**changes: Any) -> FederatedDataset:
    """Four clients with ten examples between them; example i is [i, -i], the server's are [100, 0]
    and [101, 0].
    """
    columns = {"x": np.stack([np.arange(10.0), -np.arange(10.0)], 1), "y": np.arange(10) % 3}
    columns |= {key: changes.pop(key) for key in ("x", "y") if key in changes}
    splits = changes.pop("splits", {"train": TRAIN, "test": TEST})
    fields: dict[str, Any] = {
        "name": "toy",
        "clients": ClientExamples(**columns, splits=splits),
        "client_names": np.array(["ann", "bob", "cat", "dan"]),
        "groups": people(),
        "server": single_client(np.array([[100.0, 0], [101, 0]]), np.array([0, 2])),
        "classes": 3,
    }
    return FederatedDataset(**(fields | changes))


def changed(values: Array, at: Any, to: float) -> Array:
    values = values.copy()
    values[at] = to
    return values


X, Y = make().clients.x, make().clients.y


def test_split_says_who_has_what() -> None:
    assert [TEST.get_rows(k).tolist() for k in range(4)] == [[2], [], [6], [9]]
    assert TEST.compute_sizes().tolist() == [1, 0, 1, 1]
    assert TEST.compute_owners().tolist() == [0, 2, 3]
    assert make().clients.count == 4


BROKEN: list[tuple[dict[str, Any], str]] = [
    ({"splits": {"train": split([0], [1], [], [2]), "test": TEST}}, "but client 'cat' has none"),
    ({"splits": {"train": TRAIN}}, r"splits must include \['test', 'train'\], got \['train'\]"),
    (
        {"splits": {"train": TRAIN, "test": split([2], [10], [], [])}},
        "test split must point at examples from 0 to 9",
    ),
    (
        {"splits": {"train": TRAIN, "test": split([2], [-1], [], [])}},
        "test split must point at examples from 0 to 9",
    ),
    (
        {"splits": {"train": TRAIN, "test": split([2], [6])}},
        "must have 5 offsets that rise from 0 to 2",
    ),
    (
        {"splits": {"train": TRAIN, "test": TEST._replace(offsets=np.array([0, 2, 1, 2, 3]))}},
        "offsets that rise from 0 to 3",
    ),
    (
        {"splits": {"train": TRAIN, "test": TEST._replace(index=TEST.index.astype(np.int32))}},
        "must be int64, got int32",
    ),
    (
        {"splits": {"train": split([0], [1, 0], [5], [7]), "test": TEST}},
        "example 0 .* by client '(ann|bob)' and client",
    ),
    (
        {"splits": {"train": TRAIN, "test": split([2], [8], [], [])}},
        "example 8 .* by client 'bob' and client 'dan'",
    ),
    (
        {"splits": {"train": TRAIN, "test": split([0], [], [], [])}},
        "example 0 .* held more often, by client 'ann'\\.",
    ),
    (
        {"splits": {"train": TRAIN, "test": split([2, 2], [], [], [])}},
        "example 2 .* held more often, by client 'ann'\\.",
    ),
    ({"x": changed(X, (3, 1), np.nan)}, "x must be finite, but example 3 of client 'bob'"),
    ({"x": changed(X, (9, 0), -np.inf)}, "x must be finite, but example 9 of client 'dan'"),
    (
        {"y": changed(Y / 2, 5, np.inf), "classes": None, "server": None},
        "y must be finite, but example 5 of client 'cat'",
    ),
    ({"y": changed(Y, 4, 3)}, "labels must be from 0 to 2, but example 4 of client 'bob' has 3"),
    ({"y": changed(Y, 6, -1)}, "labels must be from 0 to 2, but example 6 of client 'cat' has -1"),
    ({"y": np.stack([Y, changed(Y, 1, 7)], 1), "server": None}, "example 1 of client 'ann' has 7"),
    ({"y": Y / 2}, "labels must be integers where classes is given, got float64"),
    ({"classes": 0}, "classes must be at least 1"),
    ({"y": Y[:9]}, r"the clients' x and y must pair up, got \[10, 2\] and \[9\]"),
    ({"x": X[:0], "y": Y[:0]}, r"must hold examples, got \[0, 2\] and \[0\]"),
    ({"x": X.astype(object)}, "x must be floating or integer numbers, got object"),
    (
        {"x": X.astype(X.dtype.newbyteorder())},
        "the clients' x must be in this machine's byte order, got [<>]f8; convert",
    ),
    ({"y": Y.astype(str)}, "y must be floating or integer numbers, got <U"),
    (
        {"groups": people(unseen=[1])},
        r"groups 'train' and 'unseen' must be different clients, but share \['bob'\]",
    ),
    ({"groups": people(validation=[3])}, r"groups 'validation' and 'unseen' .* share \['dan'\]"),
    (
        {"groups": people(participating=[0, 3])},
        r"groups 'participating' and 'unseen' .* share \['dan'\]",
    ),
    (
        {"groups": people(unseen=[4])},
        "group 'unseen' must list different clients by number, from 0 to 3",
    ),
    ({"groups": people(train=[0, 0])}, "group 'train' must list different clients"),
    ({"groups": people(train=[])}, "group 'train' must have at least one client"),
    (
        {"groups": {"train": np.array([0])}},
        "groups must be train, participating, validation, unseen, got train",
    ),
    ({"client_names": np.array(["ann", "bob", "cat", "bob"])}, "ids must be 4 different strings"),
    ({"client_names": np.arange(4)}, "ids must be 4 different strings"),
    ({"tokens": True}, "tokens must be integers, got x of float64"),
    ({"scale": 0.5}, "scale must be 1 unless x is integer and not tokens, got 0.5"),
    ({"scale": -1.0}, "scale must be positive and finite, got -1.0"),
    (
        {"server": single_client(np.ones((2, 3)), np.zeros(2, int))},
        r"server's x must have shape \[2\] .* got shape \[3\]",
    ),
    (
        {"server": single_client(np.ones((2, 2), np.float32), np.zeros(2, int))},
        "server's x .* of float64 .* of float32",
    ),
    (
        {"server": single_client(np.ones((2, 2)), np.zeros((2, 1), int))},
        r"server's y must have shape \[\] .* shape \[1\]",
    ),
    (
        {"server": single_client(np.ones((2, 2)), np.zeros(3, int))},
        "the server's x and y must pair up",
    ),
    ({"server": single_client(np.ones((2, 2)), np.array([0, 3]))}, "example 1 of the server has 3"),
    (
        {"server": single_client(np.array([[np.nan, 1]]), np.array([0]))},
        "example 0 of the server has a NaN",
    ),
    ({"server": single_client(X[:0], Y[:0])}, "the server's x and y must hold examples"),
    ({"server": make().clients}, "must have a single owner, got 4"),
    (
        {"server": single_client(X[[2]] + [[0, 0]], Y[[2]])},
        "its example 0 equals example 2 of client 'ann'",
    ),
    (
        {"server": single_client(np.stack([X[9] + 0.5, X[9]]), Y[[0, 9]])},
        "its example 1 equals example 9 of client 'dan'",
    ),
]


@pytest.mark.skipif(
    np.dtype(np.longdouble).itemsize == 8, reason="long doubles are plain ones here"
)
def test_long_doubles_are_refused_because_their_padding_says_nothing() -> None:
    with pytest.raises(InputError, match="x must be floating or integer numbers, got"):
        make(x=X.astype(np.longdouble))


@pytest.mark.parametrize("block_bytes", [1, 1 << 22])
@pytest.mark.parametrize(("changes", "sentence"), BROKEN, ids=[sentence for _, sentence in BROKEN])
def test_a_broken_promise_is_refused_in_one_sentence(
    changes: dict[str, Any], sentence: str, block_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(validation, "BLOCK_BYTES", block_bytes)
    with pytest.raises(InputError, match=sentence) as caught:
        make(**changes)
    message = str(caught.value)
    assert message.startswith("toy: ")
    assert message.endswith(".")
    assert "\n" not in message


def test_nobodys_examples_are_not_looked_at() -> None:
    x = changed(np.concatenate([X, [[100.0, 0], [0, 0]]]), (11, 0), np.nan)
    made = make(x=x, y=np.append(Y, [0, 99]))
    assert len(made.clients.x) == 12


def test_declared_overlap_lets_the_server_have_clients_examples_and_counts_them() -> None:
    dataset = make(server=single_client(X[:2], Y[:2]), overlap=True)
    assert dataset.describe().overlap is True
    assert dataset.row_counts.equal == 2
    assert "2 examples of the server are from elsewhere, of which 2 equal" in str(
        dataset.describe()
    )
    with pytest.raises(InputError, match=r"toy: overlap must be true or false, got 'a reason'\."):
        make(overlap="a reason")


def test_examples_are_equal_only_in_x_and_y_together() -> None:
    other_labels = (Y[:2] + 1) % 3
    assert make(server=single_client(X[:2], other_labels)).row_counts.equal == 0
    with pytest.raises(InputError, match=r"example 1 equals example 1 of client 'ann' in x and y"):
        make(server=single_client(X[:2], np.array([2, Y[1]])))


def test_rows_of_the_same_table_are_told_apart_by_their_row() -> None:
    x = np.zeros((12, 2))
    y = np.zeros(12, np.int64)
    server = single_client(x[10:], y[10:])
    dataset = make(x=x, y=y, server=server, server_rows=np.array([10, 11]))
    counts = dataset.row_counts
    assert (counts.read, counts.clients, counts.server, counts.shared) == (12, 10, 2, 0)
    with pytest.raises(InputError, match=r"it has row 3, which client 'bob' has"):
        make(x=x, y=y, server=server, server_rows=np.array([10, 3]))
    with pytest.raises(InputError, match=r"server_rows must be 2 rows from 0 to 11"):
        make(x=x, y=y, server=server, server_rows=np.array([10, 12]))
    shared = make(x=x, y=y, server=server, server_rows=np.array([10, 3]), overlap=True)
    assert (shared.row_counts.shared, shared.row_counts.left_out) == (
        1,
        {"assigned to no client": 1},
    )
    with pytest.raises(InputError, match=r"it has row 2, which client 'ann' has"):
        make(x=x, y=y, server=server, server_rows=np.array([10, 2]), overlap=True)


@pytest.mark.parametrize(("num_repeats", "is_refused"), [(0, True), (9, True), (10, False)])
def test_equality_is_natural_where_clients_own_examples_repeat(
    num_repeats: int, is_refused: bool
) -> None:
    """One repeat in a hundred examples is the limit; then equality is counted, not refused."""
    x = np.arange(1000.0)[:, None]
    x[1000 - num_repeats :] = x[0]
    client = np.arange(1000) % 10
    server = (x[[5, 6]], np.array([0.0, 1.0]))
    if is_refused:
        with pytest.raises(InputError, match="its example 0 equals example 5 of client '5'"):
            from_arrays(x, np.zeros(1000), client, server=server)
        return
    dataset = from_arrays(x, np.zeros(1000), client, server=server)
    assert dataset.row_counts.equal == 1
    assert dataset.row_counts.clients == 1000


def test_a_query_set_may_come_from_train_but_not_from_others() -> None:
    make(splits={"train": TRAIN, "test": TEST, "query": split([1], [3], [5], [7])})
    with pytest.raises(InputError, match=r"example 3 .* by client 'ann' and client 'bob'"):
        make(splits={"train": TRAIN, "test": TEST, "query": split([3], [], [], [])})
    with pytest.raises(InputError, match=r"example 6 .* by client 'cat'"):
        make(splits={"test": TEST, "train": TRAIN, "query": split([], [], [6], [])})


def test_negative_zero_is_zero() -> None:
    with pytest.raises(InputError, match="its example 0 equals example 0 of client 'ann'"):
        make(server=single_client(np.array([[-0.0, 0.0]]), np.array([0])))


def test_hashes_tell_apart_what_multiplication_alone_would_not() -> None:
    signs = np.array(np.meshgrid(*[[-1.0, 1.0]] * 10)).reshape(10, -1).T
    assert len(np.unique(hash_rows(signs))) == 1024
    bits = np.unpackbits(
        np.arange(4096, dtype=">u2").view(np.uint8).reshape(-1, 2), axis=1
    ) * np.uint8(128)
    assert len(np.unique(hash_rows(bits))) == 4096
    swapped = np.array([[1, 2, 3], [3, 2, 1], [2, 1, 3]])
    assert len(np.unique(hash_rows(swapped))) == 3


small = hnp.arrays(
    st.sampled_from([np.uint8, np.int64, np.float32, np.float16]),
    st.tuples(st.integers(1, 12), st.integers(1, 3)),
    elements=st.integers(0, 2),
)


@settings(max_examples=60, deadline=None)
@given(small, st.data())
def test_shared_example_is_found_exactly_when_there_is_one(
    many: Array, data: st.DataObject
) -> None:
    width = many.shape[1]
    few = data.draw(
        hnp.arrays(
            many.dtype, st.tuples(st.integers(1, 5), st.just(width)), elements=st.integers(0, 2)
        )
    )
    held = data.draw(hnp.arrays(bool, len(many)))
    many_labels = data.draw(hnp.arrays(np.int64, len(many), elements=st.integers(0, 1)))
    few_labels = data.draw(hnp.arrays(np.int64, len(few), elements=st.integers(0, 1)))
    expected = {
        (i, j)
        for i, a in enumerate(few)
        for j, b in enumerate(many)
        if held[j] and a.tolist() == b.tolist() and few_labels[i] == many_labels[j]
    }
    for block_bytes in (1, 16, 1 << 22):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(validation, "BLOCK_BYTES", block_bytes)
            found = find_equal_examples(
                single_client(few, few_labels), ClientExamples(many, many_labels, {}), held
            )
        matches = {(i, j) for i, j in enumerate(found.tolist()) if j != UNASSIGNED}
        assert matches <= expected
        assert {i for i, _ in matches} == {i for i, _ in expected}


def test_equal_hashes_are_not_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(equality, "hash_rows", lambda rows: np.zeros(len(rows), np.uint64))
    clients = make().clients
    x = np.concatenate([X[:3] + 50, X[7:8]])
    found = find_equal_examples(single_client(x, Y[[0, 1, 2, 7]]), clients, np.ones(10, bool))
    assert found.tolist() == [UNASSIGNED, UNASSIGNED, UNASSIGNED, 7]


def test_columns_may_be_memory_maps_and_are_read_in_blocks(tmp_path: Path) -> None:
    n = 80_000
    written = np.memmap(tmp_path / "x", np.uint8, "w+", shape=(n, 784))
    written[:, :4] = np.arange(n, dtype=np.uint32)[:, None].view(np.uint8)
    del written
    x = np.memmap(tmp_path / "x", np.uint8, "r", shape=(n, 784))
    train = Split(np.arange(n), np.array([0, 10, 20, 30, n]))
    splits = {"train": train, "test": Split(np.arange(0), np.zeros(5, np.int64))}
    tracemalloc.start()
    with pytest.raises(InputError, match=f"equals example {n - 1} of client 'dan'"):
        make(x=x, y=np.zeros(n, int), splits=splits, server=single_client(x[-1:], np.array([0])))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < x.nbytes / 3


def test_pooled_adds_one_holder_of_all_that_is_trained_on() -> None:
    made = make()
    pool = made.with_pooled_client()
    assert pool.clients.count == 5
    assert pool.client_names.tolist() == ["ann", "bob", "cat", "dan", "pooled"]
    assert pool.clients.splits["train"].get_rows(4).tolist() == [0, 1, 4, 3]
    assert pool.clients.splits["test"].get_rows(4).tolist() == []
    assert {group: who.tolist() for group, who in pool.groups.items()} == {
        "train": [4], "participating": [0, 1], "validation": [2], "unseen": [3],
    }  # fmt: skip
    for kind in ("train", "test"):
        for k in range(4):
            assert (
                pool.clients.splits[kind].get_rows(k).tolist()
                == made.clients.splits[kind].get_rows(k).tolist()
            )
    assert pool.clients.x is made.clients.x
    assert pool.server is made.server
    assert made.clients.count == 4
    assert made.groups["train"].tolist() == [0, 1]


def test_describe_gives_the_figures() -> None:
    summary = make().describe()
    assert summary.groups == {"train": 2, "participating": 2, "validation": 1, "unseen": 1}
    assert (summary.examples, summary.smallest, summary.largest, summary.mean) == (10, 2, 3, 2.5)
    assert (summary.classes, summary.server, summary.overlap) == (3, 2, False)
    assert str(summary).splitlines() == [
        "toy: 10 examples, 3 classes",
        "  10 rows read: 10 used by clients, 0 held by the server, 0 left out. 2 examples of the "
        "server are from elsewhere, of which 0 equal a client's in x and y.",
        "  clients: 2 train, 2 participating, 1 validation, 1 unseen",
        "  examples per client: 2 to 3, mean 2.5",
        "  server: 2 examples",
    ]
    assert "real-valued targets" in str(make(classes=None, y=Y / 2, server=None).describe())


def test_a_dataset_pickles_and_is_checked_when_replaced() -> None:
    made = make()
    again = pickle.loads(pickle.dumps(made.with_pooled_client()))
    np.testing.assert_array_equal(
        again.clients.splits["train"].index, made.with_pooled_client().clients.splits["train"].index
    )
    assert replace(made, server=None).describe().server == 0
    with pytest.raises(InputError, match="labels must be from 0 to 1"):
        replace(made, classes=2)


def test_promises_that_were_checked_before_are_not_checked_again_but_changes_are() -> None:
    broken = make(y=changed(Y, 4, 3), should_check=False)
    for check_it in (validate_dataset, replace):
        with pytest.raises(
            InputError, match="labels must be from 0 to 2, but example 4 of client 'bob' has 3"
        ):
            check_it(broken)
    with pytest.raises(InputError, match=r"example 0 .* by client 'ann' and client 'pooled'\."):
        replace(make().with_pooled_client())
