"""Options of data sets: all that matter are spelt out, and none that does not is taken."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from divided import add_people, data_folder, fingerprint, images_of, saved
from fedtailor.data import (
    BUILT_IN_SOURCES,
    SOURCES,
    add,
    fill_defaults,
    format_option_help,
    get_options,
    load,
)
from fedtailor.data.partition import PARTITIONERS
from fedtailor.data.partition.options import (
    ALL_OPTIONS,
    GENERAL_OPTIONS,
    PARTITION_OPTIONS,
    SERVER_OPTIONS,
)
from fedtailor.data.server_data import SERVER_SOURCES
from fedtailor.data.server_data.damage import DAMAGES
from fedtailor.data.sources import CATALOG
from fedtailor.errors import InputError


@pytest.fixture(scope="module", autouse=True)
def small() -> Iterator[Path]:
    """A folder with a small MNIST and some people, where data is looked for."""
    with data_folder() as path:
        add("mnist", saved(path / "mnist.npz", images_of("mnist", 1000, 200)))
        add_people([[False] * 6] * 8)
        yield path


CHOICES: dict[str, Any] = {
    "partition": st.sampled_from(sorted(PARTITION_OPTIONS)),
    "clients": st.sampled_from([None, 7]),
    "others": st.sampled_from(["", "iid", "dirichlet"]),
    "zeta": st.sampled_from([1, 1.0, 0.5]),
    "server": st.sampled_from([0, 0.0, 0.05, 30]),
    "server_from": st.sampled_from(sorted(SERVER_SOURCES)),
    "server_damage": st.sampled_from(["none", *DAMAGES]),
    "overlap": st.booleans(),
    "split": st.sampled_from(["random", "last", "own"]),
    "seed": st.integers(0, 3),
}


@settings(max_examples=300, deadline=None)
@given(name=st.sampled_from(sorted(CATALOG)), given_=st.fixed_dictionaries({}, optional=CHOICES))
def test_options_that_are_filled_in_may_be_given_again(name: str, given_: dict[str, Any]) -> None:
    """A run's record spells every option out, and is read back."""
    if given_.get("others") and fill_defaults(name, {**given_, "others": ""})["partition"] in (
        "natural",
        "pachinko",
    ):
        with pytest.raises(InputError, match="others cannot go beside"):
            fill_defaults(name, given_)
        return
    once = fill_defaults(name, given_)
    assert fill_defaults(name, once) == once
    assert once.items() >= given_.items()
    assert once.keys() >= GENERAL_OPTIONS.keys()
    useful = {"others_share", "augment", "server_amount"}
    useful |= {
        *PARTITION_OPTIONS[once["partition"]],
        *(PARTITION_OPTIONS[once["others"]] if once["others"] else ()),
    }
    useful |= SERVER_OPTIONS[once["server_from"]].keys()
    assert once.keys() - GENERAL_OPTIONS.keys() <= useful
    assert ("augment" in once) == (once["zeta"] != 1)
    assert ("server_amount" in once) == (once["server_damage"] != "none")


@pytest.mark.parametrize("name", SOURCES)
def test_the_defaults_of_every_source_are_options_that_it_takes(name: str) -> None:
    assert fill_defaults(name, get_options(name)) == get_options(name)
    if name in CATALOG:
        assert CATALOG[name].defaults.keys() <= ALL_OPTIONS
        for option, value in CATALOG[name].defaults.items():
            partition = next(
                rule
                for rule, own in PARTITION_OPTIONS.items()
                if option in GENERAL_OPTIONS or option in own
            )
            given_ = {} if option in GENERAL_OPTIONS else {"partition": partition}
            assert fill_defaults(name, given_)[option] == value


def test_a_set_keeps_its_own_defaults_only_where_they_belong() -> None:
    assert get_options("mnist")["partition"] == "two-labels"
    assert get_options("mnist")["ratio"] == 50
    assert get_options("cifar10")["ratio"] == 2.5
    assert fill_defaults("cifar10", {"partition": "half-and-half"})["images"] == 68
    assert fill_defaults("mnist", {"partition": "half-and-half"})["images"] == 196
    assert "ratio" not in fill_defaults("cifar10", {"partition": "iid"})
    assert get_options("cifar100")["clients"] == 500
    assert fill_defaults("cifar100", {"partition": "natural"})["clients"] is None
    assert get_options("femnist") | {
        "least": 2,
        "clients": None,
        "server_from": "whole-clients",
    } == get_options("femnist")
    assert BUILT_IN_SOURCES.keys() <= set(SOURCES)


def test_numpy_numbers_are_numbers() -> None:
    given_ = {
        "partition": "iid",
        "clients": np.int64(12),
        "seed": np.int32(3),
        "server": np.float64(0.1),
    }
    plain = {"partition": "iid", "clients": 12, "seed": 3, "server": 0.1}
    assert fingerprint(load("mnist", **given_)) == fingerprint(load("mnist", **plain))
    assert [type(fill_defaults("mnist", given_)[key]) for key in plain] == [
        type(value) for value in plain.values()
    ]


def test_options_at_their_defaults_may_be_spelt_out() -> None:
    spelt = fill_defaults("mnist", {"partition": "iid", "clients": 20})
    assert fingerprint(load("mnist", **spelt)) == fingerprint(
        load("mnist", partition="iid", clients=20)
    )


BAD: list[tuple[dict[str, Any], str]] = [
    ({"client": 3}, r"mnist: there is no option 'client'; did you mean clients\?"),
    (
        {"partition": "two-label"},
        r"mnist: there is no partition=two-label; did you mean two-labels\?",
    ),
    ({"partition": ["iid"]}, r"mnist: there is no partition=\['iid'\]; did you mean iid\?"),
    ({"others": "natural"}, "mnist: there is no others=natural; choose from"),
    ({"others": 3}, "mnist: there is no others=3; choose from"),
    (
        {"partition": "natural", "others": "iid"},
        "mnist: others cannot go beside partition=natural; leave it out",
    ),
    (
        {"partition": "pachinko", "others": "iid"},
        "mnist: others cannot go beside partition=pachinko; leave it out",
    ),
    (
        {"server_from": "clients"},
        r"mnist: there is no server_from=clients; did you mean whole-clients\?",
    ),
    ({"server_damage": "blurr"}, r"mnist: there is no server_damage=blurr; did you mean blur\?"),
    ({"split": "first"}, "mnist: there is no split=first; "),
    ({"overlap": 1}, "mnist: overlap must be true or false, got 1"),
    ({"alpha": 0.3}, "mnist: partition two-labels has no use for alpha=0.3; leave it out"),
    ({"reserved": 0.1}, "mnist: partition two-labels has no use for reserved=0.1; leave it out"),
    ({"partition": "iid", "least": 5}, "mnist: partition iid has no use for least=5; leave it out"),
    (
        {"partition": "shards", "others": "iid", "size": 4},
        "mnist: partition shards with iid has no use for size=4",
    ),
    (
        {"others_share": 0.2},
        "mnist: partition two-labels has no use for others_share=0.2; leave it out",
    ),
    ({"augment": True}, "mnist: zeta=1 has no use for augment=True; leave it out"),
    (
        {"server_each": 5},
        "mnist: server=0.05 with server_from=examples has no use for server_each=5; leave it out",
    ),
    (
        {"server_amount": 0.1},
        "mnist: server=0.05 with server_damage=none has no use for server_amount=0.1; leave it",
    ),
    ({"clients": 2000}, "two-labels: clients must be at most the 1140 examples, got 2000"),
    ({"clients": None}, "mnist: clients must be a whole number of at least 1, got None"),
    (
        {"partition": "natural"},
        "mnist: partition=natural needs clients, but this data set has none of its own; choose",
    ),
    ({"partition": "pachinko"}, "mnist: pachinko needs coarse labels, but this set has none"),
    (
        {"partition": "half-and-half"},
        "half-and-half: .* examples of label 0 are needed for .* clients, but there are",
    ),
    ({"partition": "iid", "zeta": 2}, "relabel: zeta must be a number from 0 to 1, got 2"),
    ({"server": 1200}, "mnist: server must leave some of the 1200 examples, got 1200"),
    ({"server": 1.5}, "mnist: server must be"),
    ({"adapt": "nothing"}, "mnist: adapt must be"),
    ({"test_share": 1}, "mnist: test_share must be a share"),
    ({"seed": -1}, "seed must be a whole number of at least 0, got -1"),
]


@pytest.mark.parametrize(("options", "sentence"), BAD, ids=[f"{i}" for i in range(len(BAD))])
def test_what_cannot_be_is_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=f"^(data: )?{sentence}") as refused:
        load(
            "mnist",
            **{"clients": 30}
            | ({"least": 4} if options.keys().isdisjoint({"partition"}) else {})
            | options,
        )
    assert "\n" not in str(refused.value)


BAD_OF_PEOPLE: list[tuple[dict[str, Any], str]] = [
    ({"least": 0}, "least must be a whole number of at least 1, got 0"),
    ({"most": 2.5}, "most must be a whole number of at least 1, got 2.5"),
    ({"least": 7}, "least=7 leaves no client, the largest client has 6"),
    ({"clients": 9}, "clients must be at most the 8 that have least=1 examples, got 9"),
    ({"reserved": -1}, "reserved must be a count or a share from 0 to less than 1, got -1"),
    ({"reserved": 1.5}, "reserved must be a count or a share from 0 to less than 1, got 1.5"),
    ({"reserved": 8}, "server must leave one of the 8 clients that can train, got 8 clients"),
    (
        {"server": 8, "server_from": "whole-clients"},
        "server must leave one of the 8 clients that can train, got 8",
    ),
    (
        {"server": 48, "server_from": "classes"},
        "the server leaves nothing to clients; ask for less than 48",
    ),
    ({"partition": "half-and-half", "clients": 2}, "half-and-half: "),
]


@pytest.mark.parametrize(
    ("options", "sentence"), BAD_OF_PEOPLE, ids=[f"{i}" for i in range(len(BAD_OF_PEOPLE))]
)
def test_what_cannot_be_of_people_is_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=f"^(people: )?{sentence}"):
        load("people", **options)


def test_the_help_has_every_option_every_partition_and_every_source_once() -> None:
    lines = format_option_help().splitlines()
    heads = [line.split(maxsplit=1) for line in lines if re.match(r" {2,4}\S", line)]
    entries = [
        *GENERAL_OPTIONS,
        *("others_share", "augment", "server_amount"),
        *(name for table in (PARTITION_OPTIONS, SERVER_OPTIONS) for name in _with_options(table)),
    ]
    assert [name for name, _ in heads] == entries
    assert all(len(line) <= 80 for line in lines)


def _with_options(table: dict[str, dict[str, Any]]) -> list[str]:
    return [word for name, options in table.items() for word in (name, *options)]


def test_every_partition_has_its_options_from_its_own_function() -> None:
    assert {"alpha", "least"} == PARTITION_OPTIONS["dirichlet"].keys()
    assert PARTITION_OPTIONS.keys() - PARTITIONERS.keys() == {"natural", "pachinko"}
    assert {"natural", "pachinko"}.isdisjoint(PARTITIONERS)
