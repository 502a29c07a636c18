from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtailor.data import FederatedDataset, from_arrays
from fedtailor.data.examples import Array
from fedtailor.errors import InputError


def columns(sizes: list[int], classes: int = 3) -> tuple[Array, Array, Array]:
    """Examples that are all different, shuffled, with clients of the given sizes called 10, 20,
    ....
    """
    n = sum(sizes)
    order = np.random.Generator(np.random.Philox(n)).permutation(n)
    x = np.stack([np.arange(n), np.arange(n) ** 2], 1).astype(np.float32)
    return (
        x[order],
        np.arange(n)[order] % classes,
        np.repeat(10 * np.arange(1, len(sizes) + 1), sizes)[order],
    )


def arrays_of(dataset: FederatedDataset) -> list[Array]:
    clients, server = dataset.clients, dataset.server
    splits = [part for split in clients.splits.values() for part in split]
    return [
        clients.x,
        clients.y,
        dataset.client_names,
        *splits,
        *dataset.groups.values(),
        *(server[:2] if server else ()),
    ]


def make(**options: Any) -> FederatedDataset:
    return from_arrays(*columns([8, 5, 13, 1, 9, 2, 7, 6, 4, 10]), **options)


@settings(max_examples=80, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 15), min_size=1, max_size=12),
    test_share=st.floats(0, 0.99),
    people=st.tuples(st.floats(0, 0.49), st.floats(0, 0.49)),
    server=st.one_of(st.none(), st.floats(0, 0.3), st.integers(0, 5)),
    seed=st.integers(0, 2**70),
)
def test_nothing_is_lost_or_doubled(
    sizes: list[int],
    test_share: float,
    people: tuple[float, float],
    server: float | None,
    seed: int,
) -> None:
    x, y, client = columns(sizes)
    wanted = (
        0
        if server is None
        else server
        if isinstance(server, int)
        else max(round(server * len(x)), int(server > 0))
    )
    spare = sum(sizes) - len(sizes)
    options: dict[str, Any] = {"server": server, "seed": seed, "test_share": test_share}
    options |= {"validation_clients": people[0], "unseen_clients": people[1]}
    if wanted > spare:
        with pytest.raises(InputError, match=f"at most {spare}, got {wanted}"):
            from_arrays(x, y, client, **options)
        return
    made = from_arrays(x, y, client, **options)

    train, test = made.clients.splits["train"], made.clients.splits["test"]
    served = [] if made.server is None else made.server.x[:, 0].tolist()
    assert len(served) == wanted
    held = made.clients.x[np.concatenate([train.index, test.index]), 0].tolist()
    assert Counter(held + served) == Counter(range(len(x)))

    for k, own in enumerate(made.client_names.tolist()):
        mine = np.concatenate([train.get_rows(k), test.get_rows(k)])
        assert (client[mine] == int(own)).all()
        assert len(test.get_rows(k)) == min(
            int(np.floor(test_share * len(mine) + 1e-9)), len(mine) - 1
        )
        assert len(train.get_rows(k)) >= 1

    count = len(sizes)
    groups = {group: set(who.tolist()) for group, who in made.groups.items()}
    assert groups["train"] == groups["participating"] != set()
    assert sum(len(groups[group]) for group in ("train", "validation", "unseen")) == count
    assert groups["train"] | groups["validation"] | groups["unseen"] == set(range(count))
    if round(people[0] * count) + round(people[1] * count) < count:
        assert (len(groups["validation"]), len(groups["unseen"])) == (
            round(people[0] * count),
            round(people[1] * count),
        )

    again = from_arrays(x, y, client, **options)
    assert all(np.array_equal(a, b) for a, b in zip(arrays_of(made), arrays_of(again), strict=True))


def test_seeds_differ_and_purposes_do_not_disturb_each_other() -> None:
    one, other, served = make(seed=1), make(seed=2), make(seed=1, server=5)
    assert not np.array_equal(
        one.clients.splits["train"].index, other.clients.splits["train"].index
    )
    assert not np.array_equal(one.groups["unseen"], other.groups["unseen"])
    np.testing.assert_array_equal(one.groups["unseen"], served.groups["unseen"])
    fewer = make(seed=1, test_share=0.1)
    np.testing.assert_array_equal(one.groups["validation"], fewer.groups["validation"])


def test_server_examples_are_taken_evenly_over_examples_and_never_the_last_of_a_client() -> None:
    sizes = [1, 2, 17]
    x, y, client = columns(sizes)
    taken: Counter[int] = Counter()
    for seed in range(500):
        made = from_arrays(x, y, client, server=1, seed=seed)
        assert made.server is not None
        taken[int(client[(x == made.server.x[0]).all(axis=1)][0])] += 1
    assert taken[10] == 0
    assert abs(taken[20] / 500 - 2 / 19) < 0.055  # four standard deviations
    every = from_arrays(x, y, client, server=17)
    assert (every.clients.splits["train"].compute_sizes() == 1).all()


def test_splits_are_shuffled_within_every_client() -> None:
    x, y, client = columns([4])
    firsts = {
        int(from_arrays(x, y, client, seed=seed).clients.splits["test"].get_rows(0)[0])
        for seed in range(60)
    }
    assert firsts == {0, 1, 2, 3}


def test_test_shares_are_exact_where_floats_are_not() -> None:
    assert make_sizes(100, 0.29) == (71, 29)
    assert make_sizes(100, 0.57) == (43, 57)
    assert make_sizes(1, float(np.nextafter(1, 0))) == (1, 0)
    assert make_sizes(8, 0.0) == (8, 0)


def make_sizes(n: int, share: float) -> tuple[int, int]:
    splits = from_arrays(*columns([n]), test_share=share).clients.splits
    return int(splits["train"].compute_sizes()[0]), int(splits["test"].compute_sizes()[0])


def test_tensors_lists_and_strings_give_what_arrays_give() -> None:
    x, y, client = columns([8, 5, 13])
    plain = from_arrays(x, y, client, server=3)
    tensors = from_arrays(
        torch.tensor(x).requires_grad_(), torch.tensor(y), torch.tensor(client), server=3
    )
    named = from_arrays(x.tolist(), y.tolist(), [f"user {value}" for value in client], server=3)
    objects = from_arrays(x, y, np.array([f"user {value}" for value in client], object), server=3)
    for other in (tensors, named, objects):
        for kind in ("train", "test"):
            np.testing.assert_array_equal(
                other.clients.splits[kind].index, plain.clients.splits[kind].index
            )
    assert plain.client_names.tolist() == ["10", "20", "30"]
    assert (
        named.client_names.tolist()
        == objects.client_names.tolist()
        == ["user 10", "user 20", "user 30"]
    )


def test_arrays_are_neither_copied_nor_changed() -> None:
    x, y, client = columns([8, 5])
    before = x.copy()
    x.flags.writeable = False
    made = from_arrays(x, y, client, server=2)
    assert np.shares_memory(made.clients.x, x)
    np.testing.assert_array_equal(x, before)


def test_classes_are_counted() -> None:
    x, y, client = columns([8, 5], classes=4)
    assert from_arrays(x, y, client).classes == 4
    assert from_arrays(x, y, client, classes=9).classes == 9
    assert from_arrays(x, y > 1, client).classes == 2
    assert from_arrays(x, y / 1, client).classes is None
    assert from_arrays(x, y, client, classes=None).classes is None
    assert from_arrays(x, y, client, server=([[0.5, 0.5]], [6])).classes == 7
    with pytest.raises(
        InputError, match=r"classes must be given for integer targets of shape \[2\]"
    ):
        from_arrays(x, np.stack([y, y], 1), client)
    assert from_arrays(x, np.stack([y, y], 1), client, classes=4).clients.y.shape == (13, 2)


def test_server_arrays_take_the_clients_type_of_number() -> None:
    x, y, client = columns([8, 5])
    rounded = from_arrays(x, y, client, server=([[0.1, 0.2]], [1])).server
    assert rounded is not None
    assert rounded.x.dtype == np.float32
    whole = from_arrays(x, y, client, server=(np.array([[-1, 2]]), np.array([1], np.uint8))).server
    assert whole is not None
    assert whole.x.dtype == np.float32
    assert whole.y.dtype == np.int64
    with pytest.raises(InputError, match=r"of uint8 as the clients', got shape \[2\] of int64"):
        from_arrays(x.astype(np.uint8), y, client, server=([[1, 256]], [1]))
    with pytest.raises(InputError, match="its example 0 equals example 3 of client"):
        from_arrays(x, y, client, server=(x[3:4].astype(np.float64), y[3:4]))
    assert from_arrays(x, y, client, server=(x, y), overlap=True).server is not None


def test_equal_rows_of_a_table_are_different_examples() -> None:
    """The server takes rows of a table whose rows repeat; no other row goes with them."""
    x = np.zeros((60, 2))
    y = np.arange(60) % 2
    client = np.arange(60) % 3
    unique = from_arrays(np.arange(120.0).reshape(60, 2), y, client, server=0.1, seed=4)
    dataset = from_arrays(x, y, client, server=0.1, seed=4)
    assert dataset.server is not None
    assert len(dataset.server.x) == 6
    for split_name in ("train", "test"):
        np.testing.assert_array_equal(
            dataset.clients.splits[split_name].index, unique.clients.splits[split_name].index
        )
    assert dataset.row_counts == unique.row_counts
    assert str(dataset.row_counts) == (
        "60 rows read: 54 used by clients, 6 held by the server, 0 left out."
    )


def test_with_overlap_clients_keep_what_the_server_draws_and_it_gives_up_what_is_tested() -> None:
    x, y, client = columns([20, 20, 20])
    dataset = from_arrays(x, y, client, server=30, overlap=True)
    apart = from_arrays(x, y, client, server=30)
    alone = from_arrays(x, y, client)
    assert dataset.server is not None
    assert apart.server is not None
    for split_name in ("train", "test"):
        np.testing.assert_array_equal(
            dataset.clients.splits[split_name].index, alone.clients.splits[split_name].index
        )
    tested = set(x[alone.clients.splits["test"].index, 0].tolist())
    drawn = set(apart.server.x[:, 0].tolist())
    assert set(dataset.server.x[:, 0].tolist()) == drawn - tested
    counts = dataset.row_counts
    assert counts.server == counts.shared == len(drawn - tested)
    assert counts.given_up == len(drawn & tested) > 0
    assert (counts.read, counts.clients) == (60, 60)


X, Y, CLIENT = columns([8, 5, 3])

BAD: list[tuple[dict[str, Any], str]] = [
    ({"y": Y[:-1]}, r"x, y and client must be equally long, got lengths \[16, 15, 16\]"),
    ({"client": CLIENT[:4]}, r"equally long, got lengths \[16, 16, 4\]"),
    ({"x": [], "y": [], "client": []}, "must hold examples, got none"),
    ({"x": X.astype(str)}, "x must be floating or integer numbers, got <U"),
    ({"x": X.astype(object)}, "x must be floating or integer numbers, got object"),
    ({"x": X.astype(complex)}, "x must be floating or integer numbers, got complex128"),
    ({"y": ["cat"] * 16}, "y must be floating or integer numbers, got <U3"),
    ({"x": [[1.0], [2.0, 3.0]] * 8}, "x must be readable as an array"),
    ({"x": torch.tensor(X).bfloat16()}, "x must be readable as an array"),
    ({"client": CLIENT / 2}, "client must be integers or strings, got float64"),
    ({"client": [None] * 16}, "client must be integers or strings, got object"),
    (
        {"client": CLIENT[:, None]},
        r"client must be one value for each example, got shape \[16, 1\]",
    ),
    ({"test_share": 1.0}, "test_share must be a share from 0 to less than 1, got 1.0"),
    ({"unseen_clients": -0.1}, "unseen_clients must be a share"),
    ({"validation_clients": float("nan")}, "validation_clients must be a share"),
    (
        {"validation_clients": 0.5, "unseen_clients": 0.5},
        "must leave clients for training, got 0.5 and 0.5",
    ),
    ({"server": 14}, "at most 13, got 14"),
    ({"server": -1}, "server must be at least 0 examples, got -1"),
    ({"server": 1.5}, "server must be .* a share from 0 to less than 1, got 1.5"),
    ({"server": True}, "server must be .* got True"),
    ({"server": "some"}, "server must be .* got 'some'"),
    ({"server": (X,)}, r"server must be the pair \(x, y\), got 1 values"),
    ({"server": (3.0, 1)}, "the server's x must have shape"),
    ({"seed": -1}, "seed must be a whole number of at least 0, got -1"),
    ({"seed": 0.5}, "seed must be a whole number of at least 0, got 0.5"),
    ({"classes": 2}, "labels must be from 0 to 1, but example"),
    ({"y": -Y}, "labels must be from 0 to 0, but example .* has -"),
    ({"scale": 1 / 255}, "scale must be 1 unless x is integer"),
    ({"tokens": True}, "tokens must be integers"),
    (
        {"x": np.where(X.max() == X, np.nan, X)},
        "x must be finite, but example .* of client '(10|20|30)'",
    ),
    (
        {"server": (X[3:4], Y[3:4])},
        "the server's examples must not be clients', but its example 0 equals example 3 of "
        "client '20' in x and y",
    ),
    ({"overlap": "it is public"}, "overlap must be true or false, got 'it is public'"),
]


@pytest.mark.parametrize(("changes", "sentence"), BAD, ids=[f"{i}" for i in range(len(BAD))])
def test_bad_input_is_refused_in_one_sentence(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        from_arrays(**({"x": X, "y": Y, "client": CLIENT} | changes))
