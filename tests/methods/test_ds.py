"""Data sharing: FedAvg on clients who were given the server's examples."""

from typing import Any

import numpy as np
import pytest

import fedtailor as ft
from agreement import distance
from fedtailor import methods
from fedtailor.core import trees
from fedtailor.data import ClientExamples, FederatedDataset
from fedtailor.engines import factory
from fedtailor.errors import InputError
from scenarios import split, toy_data, toy_setting, toy_task, train

DATA = toy_data(sizes=(9, 1, 17, 4, 6, 3, 2, 5), test=3)
"""Five clients that train, one that validates and two new ones."""


def given_the_servers_examples(data: FederatedDataset) -> FederatedDataset:
    """The same by hand: every training client has a copy of its own of what the server has, which
    keeps nothing.
    """
    (x, y, splits), server = data.clients, data.server
    assert server is not None
    people = data.groups["train"]
    copies = {
        int(who): len(x) + place * len(server.x) + np.arange(len(server.x))
        for place, who in enumerate(people)
    }
    theirs = [splits["train"].get_rows(who) for who in range(data.clients.count)]
    train = split(
        [np.concatenate([rows, copies.get(who, rows[:0])]) for who, rows in enumerate(theirs)]
    )
    more_x, more_y = (
        np.concatenate([mine, *[own] * len(people)]) for mine, own in ((x, server.x), (y, server.y))
    )
    return FederatedDataset(
        name="by hand",
        clients=ClientExamples(
            more_x, more_y, {"train": train, "test": splits["test"], "adapt": split(theirs)}
        ),
        client_names=data.client_names,
        groups=data.groups,
        server=None,
        classes=data.classes,
    )


@pytest.mark.parametrize(
    ("name", "inner", "hyper"),
    [
        ("ds", "fedavg", {"epochs": 2}),
        ("ds+fedprox", "fedprox", {"lam": 0.3}),
        ("ds+scaffold", "scaffold", {}),
        ("ds+fedmeta", "fedmeta", {}),
        ("ds+per+fedavg", "fedper", {}),
    ],
)
def test_it_is_the_method_on_clients_who_hold_more(
    name: str, inner: str, hyper: dict[str, Any]
) -> None:
    by_hand, everybody, results = given_the_servers_examples(DATA), np.arange(8), []
    for setting in (
        toy_setting(name, data=DATA, **hyper),
        toy_setting(inner, data=by_hand, **hyper),
    ):
        state, engine = train(setting, 2, 3)
        memory = engine.client_states.gather(everybody, setting.method.init_client_state(state))
        results.append((tuple(state), memory, tuple(engine.score(state, everybody))))
    assert distance(*results) < 1e-12
    plain = train(toy_setting(inner, data=DATA, **hyper), 2, 3)[0]
    assert distance(plain.params, results[0][0][0]) > 1e-3


def test_whole_cohorts_train() -> None:
    fitted = ft.fit("ds", toy_task(), DATA, rounds=2, cohort=3, batch=8)
    assert fitted.cost.bytes_down == 2 * 3 * trees.nbytes(fitted.params)
    state, _ = train(toy_setting("ds", data=DATA, seed=0), 2, 3)
    assert distance(fitted.params, state.params) == 0.0


def test_clients_adapt_on_their_own_examples_alone() -> None:
    setting, before = toy_setting("ds", data=DATA), DATA.clients.splits
    splits, server = setting.data.clients.splits, DATA.server
    assert server is not None
    for who in range(8):
        assert splits["adapt"].get_rows(who).tolist() == before["train"].get_rows(who).tolist()
        assert splits["test"].get_rows(who).tolist() == before["test"].get_rows(who).tolist()
        given = splits["train"].get_rows(who)[before["train"].compute_sizes()[who] :]
        assert len(given) == (len(server.x) if who in DATA.groups["train"] else 0)
        assert np.array_equal(setting.data.clients.x[given], server.x[: len(given)])
        assert np.array_equal(setting.data.clients.y[given], server.y[: len(given)])
    assert setting.data.get_adapt_split() == "train"
    assert np.array_equal(setting.data.clients.x[: len(DATA.clients.x)], DATA.clients.x)


def test_the_overlap_is_declared() -> None:
    assert DATA.overlap is False
    view = toy_setting("ds", data=DATA).data
    assert view.overlap is True
    assert view.server is DATA.server
    assert "clients may have, too (overlap)" in str(view.describe())


def test_it_can_be_learned_from_at_the_server_too() -> None:
    both, alone = (toy_setting(name, data=DATA) for name in ("ds+fsl", "fsl"))
    runs = [
        train(setting, 1, 3)[0].params for setting in (both, alone, toy_setting("ds", data=DATA))
    ]
    assert min(distance(runs[0], other) for other in runs[1:]) > 1e-3
    assert factory.make_engine(both).notes == ()


@pytest.mark.parametrize(
    ("name", "hyper", "said"),
    [
        ("ds+centralized", {}, "data sharing: centralized does not train on clients' data alone."),
        ("ds+ds", {}, "data sharing: ds does not train on clients' data alone."),
        ("ds+local", {}, "data sharing: the clients of local do not train in rounds."),
    ],
)
def test_what_makes_no_sense_is_refused(name: str, hyper: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        methods.build(name, toy_task(), **hyper)


def test_a_server_without_data_has_nothing_to_share() -> None:
    with pytest.raises(
        InputError, match="toy: the server must have examples to share with clients, but has none"
    ):
        toy_setting("ds", data=toy_data(server=0))
