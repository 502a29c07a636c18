"""Options of data sets: all that matter are spelt out, and none that does not is taken."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from divided import add_people, data_folder, fingerprint, images_of, saved
from fedtailor.data import OWN, SOURCES, add, filled, load, options_of
from fedtailor.data.options import EVERY, GENERAL, RULES, SERVER_OPTIONS
from fedtailor.data.partitions import PARTITIONS
from fedtailor.data.server.damage import DAMAGES
from fedtailor.data.server.drawing import SERVERS
from fedtailor.data.sets import KNOWN
from fedtailor.errors import InputError


@pytest.fixture(scope="module", autouse=True)
def small() -> Iterator[Path]:
    """A folder with a small MNIST and some people, where data is looked for."""
    with data_folder() as path:
        add("mnist", saved(path / "mnist.npz", images_of("mnist", 1000, 200)))
        add_people([[False] * 6] * 8)
        yield path


CHOICES: dict[str, Any] = {
    "partition": st.sampled_from(sorted(RULES)),
    "clients": st.sampled_from([None, 7]),
    "others": st.sampled_from(["", "iid", "dirichlet"]),
    "zeta": st.sampled_from([1, 1.0, 0.5]),
    "server": st.sampled_from([0, 0.0, 0.05, 30]),
    "server_from": st.sampled_from(SERVERS),
    "server_damage": st.sampled_from(["none", *DAMAGES]),
    "overlap": st.booleans(),
    "split": st.sampled_from(["random", "last", "own"]),
    "seed": st.integers(0, 3),
}


@settings(max_examples=300, deadline=None)
@given(name=st.sampled_from(sorted(KNOWN)), given_=st.fixed_dictionaries({}, optional=CHOICES))
def test_options_that_are_filled_in_may_be_given_again(name: str, given_: dict[str, Any]) -> None:
    """A run's record spells every option out, and is read back."""
    if given_.get("others") and filled(name, {**given_, "others": ""})["partition"] in ("natural", "pachinko"):
        with pytest.raises(InputError, match="others cannot go beside"):
            filled(name, given_)
        return
    once = filled(name, given_)
    assert filled(name, once) == once
    assert once.items() >= given_.items()
    assert once.keys() >= GENERAL.keys()
    useful = {"others_share", "augment", "server_amount"}
    useful |= {*RULES[once["partition"]], *(RULES[once["others"]] if once["others"] else ())}
    useful |= SERVER_OPTIONS[once["server_from"]].keys()
    assert once.keys() - GENERAL.keys() <= useful
    assert ("augment" in once) == (once["zeta"] != 1)
    assert ("server_amount" in once) == (once["server_damage"] != "none")


@pytest.mark.parametrize("name", SOURCES)
def test_the_defaults_of_every_source_are_options_that_it_takes(name: str) -> None:
    assert filled(name, options_of(name)) == options_of(name)
    if name in KNOWN:
        assert KNOWN[name].defaults.keys() <= EVERY
        for option, value in KNOWN[name].defaults.items():
            partition = next(rule for rule, own in RULES.items() if option in GENERAL or option in own)
            given_ = {} if option in GENERAL else {"partition": partition}
            assert filled(name, given_)[option] == value


def test_a_set_keeps_its_own_defaults_only_where_they_belong() -> None:
    assert options_of("mnist")["partition"] == "two-labels"
    assert options_of("mnist")["ratio"] == 50
    assert options_of("cifar10")["ratio"] == 2.5
    assert filled("cifar10", {"partition": "half-and-half"})["images"] == 68
    assert filled("mnist", {"partition": "half-and-half"})["images"] == 196
    assert "ratio" not in filled("cifar10", {"partition": "iid"})
    assert options_of("cifar100")["clients"] == 500
    assert filled("cifar100", {"partition": "natural"})["clients"] is None
    assert options_of("femnist") | {"least": 2, "clients": None, "server_from": "people"} == options_of("femnist")
    assert OWN.keys() <= set(SOURCES)


def test_numpy_numbers_are_numbers() -> None:
    given_ = {"partition": "iid", "clients": np.int64(12), "seed": np.int32(3), "server": np.float64(0.1)}
    plain = {"partition": "iid", "clients": 12, "seed": 3, "server": 0.1}
    assert fingerprint(load("mnist", **given_)) == fingerprint(load("mnist", **plain))
    assert [type(filled("mnist", given_)[key]) for key in plain] == [type(value) for value in plain.values()]


def test_options_at_their_defaults_may_be_spelt_out() -> None:
    spelt = filled("mnist", {"partition": "iid", "clients": 20})
    assert fingerprint(load("mnist", **spelt)) == fingerprint(load("mnist", partition="iid", clients=20))


BAD: list[tuple[dict[str, Any], str]] = [
    ({"client": 3}, r"mnist: there is no option 'client'; did you mean clients\?"),
    ({"partition": "two-label"}, r"mnist: there is no partition 'two-label'; did you mean two-labels\?"),
    ({"partition": ["iid"]}, r"mnist: there is no partition '\['iid'\]'; did you mean iid\?"),
    ({"others": "natural"}, "mnist: there is no partition 'natural'; known are"),
    ({"others": 3}, "mnist: there is no partition '3'; known are"),
    ({"partition": "natural", "others": "iid"}, "mnist: others cannot go beside partition=natural; leave it out"),
    ({"partition": "pachinko", "others": "iid"}, "mnist: others cannot go beside partition=pachinko; leave it out"),
    ({"server_from": "client"}, r"mnist: there is no place for the server's examples 'client'; did you mean clients\?"),
    ({"server_damage": "blurr"}, r"mnist: there is no damage 'blurr'; did you mean blur\?"),
    ({"split": "first"}, "mnist: there is no split 'first'; "),
    ({"overlap": 1}, "mnist: overlap must be true or false, got 1"),
    ({"alpha": 0.3}, "mnist: partition two-labels has no use for alpha=0.3; leave it out"),
    ({"reserved": 0.1}, "mnist: partition two-labels has no use for reserved=0.1; leave it out"),
    ({"partition": "iid", "least": 5}, "mnist: partition iid has no use for least=5; leave it out"),
    ({"partition": "shards", "others": "iid", "size": 4}, "mnist: partition shards with iid has no use for size=4"),
    ({"others_share": 0.2}, "mnist: partition two-labels has no use for others_share=0.2; leave it out"),
    ({"augment": True}, "mnist: zeta=1 has no use for augment=True; leave it out"),
    ({"server_each": 5}, "mnist: server=0.05 with server_from=examples has no use for server_each=5; leave it out"),
    ({"server_amount": 0.1}, "mnist: server=0.05 with server_damage=none has no use for server_amount=0.1; leave it"),
    ({"clients": 2000}, "two-labels: clients must be at most the 1140 examples, got 2000"),
    ({"clients": None}, "mnist: clients must be a whole number of at least 1, got None"),
    ({"partition": "natural"}, r"mnist: there are no people in this set; choose a partition \(partition=dirichlet"),
    ({"partition": "pachinko"}, "mnist: pachinko needs coarse labels, but this set has none"),
    ({"partition": "half-and-half"}, "half-and-half: .* examples of label 0 are needed for .* clients, but there are"),
    ({"partition": "iid", "zeta": 2}, "relabelled: zeta must be a number from 0 to 1, got 2"),
    ({"server": 1200}, "mnist: server must leave some of the 1200 examples, got 1200"),
    ({"server": 1.5}, "mnist: server must be"),
    ({"adapt": "nothing"}, "mnist: adapt must be"),
    ({"test_share": 1}, "mnist: test_share must be a share"),
    ({"seed": -1}, "seed must be a whole number of at least 0, got -1"),
]


@pytest.mark.parametrize(("options", "sentence"), BAD, ids=[f"{i}" for i in range(len(BAD))])
def test_what_cannot_be_is_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=f"^(data: )?{sentence}") as refused:
        load("mnist", **{"clients": 30} | ({"least": 4} if options.keys().isdisjoint({"partition"}) else {}) | options)
    assert "\n" not in str(refused.value)


BAD_OF_PEOPLE: list[tuple[dict[str, Any], str]] = [
    ({"least": 0}, "least must be a whole number of at least 1, got 0"),
    ({"most": 2.5}, "most must be a whole number of at least 1, got 2.5"),
    ({"least": 7}, "least=7 leaves nobody, the largest client has 6"),
    ({"clients": 9}, "clients must be at most 8, who have least=1, got 9"),
    ({"reserved": -1}, "reserved must be a count or a share from 0 to less than 1, got -1"),
    ({"reserved": 1.5}, "reserved must be a count or a share from 0 to less than 1, got 1.5"),
    ({"reserved": 8}, "server must leave somebody of the 8 people who can train, got 8 people"),
    ({"server": 8, "server_from": "people"}, "server must leave somebody of the 8 people who can train, got 8"),
    ({"server": 48, "server_from": "classes"}, "the server leaves nothing to clients; ask for less than 48"),
    ({"partition": "half-and-half", "clients": 2}, "half-and-half: "),
]


@pytest.mark.parametrize(("options", "sentence"), BAD_OF_PEOPLE, ids=[f"{i}" for i in range(len(BAD_OF_PEOPLE))])
def test_what_cannot_be_of_people_is_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=f"^(people: )?{sentence}"):
        load("people", **options)


def test_every_partition_has_its_options_from_its_own_function() -> None:
    assert {"alpha", "least"} == RULES["dirichlet"].keys()
    assert RULES.keys() - PARTITIONS.keys() == {"natural", "pachinko"}
    assert {"natural", "pachinko"}.isdisjoint(PARTITIONS)
