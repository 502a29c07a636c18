"""What the list of methods says is counted here by hand."""

import re
from itertools import permutations
from pathlib import Path

import pytest
import torch

from fedtailor import methods
from fedtailor.cli import catalog
from fedtailor.cli.catalog import (
    build_probe_task,
    describe_method,
    find_secure_aggregation_obstacle,
    measure_cost,
    parse_paper,
)
from fedtailor.errors import InputError

INPUTS, (HIDDEN,), CLASSES = catalog.PROBE_MODEL_SIZES
BASE, HEAD = INPUTS * HIDDEN + HIDDEN, HIDDEN * CLASSES + CLASSES
MODEL = BASE + HEAD


def products(*, head: int, base: int) -> int:
    """Floating-point operations of matrix products: so many with the head's weights, so many with
    the base's.
    """
    return 2 * catalog.PROBE_BATCH_SIZE * (head * HIDDEN * CLASSES + base * INPUTS * HIDDEN)


GRADIENT = products(head=3, base=2)
"""Forward through both layers; backward to both weights, and through the head to what it was given.
"""

FLOPS = [
    ("fedavg", {}, GRADIENT),
    ("fedprox", {}, GRADIENT),
    ("scaffold", {}, GRADIENT),
    ("pfedme", {"inner_steps": 3}, 3 * GRADIENT),
    ("ditto", {}, 2 * GRADIENT),
    ("apfl", {}, 2 * GRADIENT),
    (
        "fedrep",
        {},
        products(head=2, base=1) + products(head=2, base=2),
    ),  # the head's step, then the base's
    ("per-fedavg", {"variant": "fo"}, 2 * GRADIENT),
    ("per-fedavg", {"variant": "hf"}, 4 * GRADIENT),
    ("fedmeta", {"order": 1}, 2 * GRADIENT),
    ("local", {}, 0),
]


@pytest.mark.parametrize(
    ("name", "hyper", "flops"), FLOPS, ids=[f"{row[0]}-{row[1]}" for row in FLOPS]
)
def test_the_work_of_a_step(name: str, hyper: dict[str, object], flops: int) -> None:
    assert measure_cost(methods.build(name, build_probe_task(), **hyper)).flops == flops


SENT = [
    ("fedavg", {}, 2 * MODEL),
    ("local", {}, 0),
    ("scaffold", {}, 4 * MODEL),
    ("feddyn", {}, 2 * MODEL),
    ("fedper", {}, 2 * BASE),
    ("fedper", {"offer": 2}, 2 * BASE + HEAD),  # the head that is offered travels too
    ("lg-fedavg", {}, 2 * HEAD),
    ("fedmeta", {"inner": "meta-sgd"}, 4 * MODEL),
    ("fedmeta-per", {"inner": "meta-sgd"}, 4 * BASE),
    (
        "afml",
        {},
        2 * (MODEL + HIDDEN * HIDDEN + HIDDEN) + BASE,
    ),  # a sample down, its change up, and the mean
    ("fsl+per+fedavg", {}, 2 * BASE),
]


@pytest.mark.parametrize(
    ("name", "hyper", "numbers"), SENT, ids=[f"{row[0]}-{row[1]}" for row in SENT]
)
def test_what_travels_in_a_round(name: str, hyper: dict[str, object], numbers: int) -> None:
    assert measure_cost(methods.build(name, build_probe_task(), **hyper)).bytes_sent == 4 * numbers


def test_an_entry_gives_ratios() -> None:
    entry = describe_method("fedper")
    assert entry.bytes == round(BASE / MODEL, 1)
    assert entry.gradients == 1.0
    assert describe_method("pfedme").gradients == 5.0
    assert describe_method("local").gradients is None


NEEDS = {
    "local": "client state",
    "centralized": "pooled data",
    "fedavg": "-",
    "lg-fedavg": "client state",
    "fsl": "server data",
    "ds": "server data, shared data",
    "fedsim": "server data, individual uploads",
    "fsl+per+fedmeta": "server data, client state",
}


@pytest.mark.parametrize(("name", "needs"), NEEDS.items(), ids=NEEDS)
def test_what_a_method_needs(name: str, needs: str) -> None:
    assert describe_method(name).needs == needs


def median(stacked: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    return stacked.median(0).values


def test_why_a_method_needs_more_than_the_average() -> None:
    task = build_probe_task()
    plain = methods.build("fedavg", task)
    assert find_secure_aggregation_obstacle(plain) == ""
    assert find_secure_aggregation_obstacle(methods.build("fedsim", task, at="mean")) == ""
    assert "each upload" in find_secure_aggregation_obstacle(methods.build("fedsim", task))
    assert "rule" in find_secure_aggregation_obstacle(plain._replace(aggregate=median))
    assert "unseen clients" in find_secure_aggregation_obstacle(
        methods.build("fedper", task, offer=2)
    )
    assert "one place" in find_secure_aggregation_obstacle(methods.build("centralized", task))


def test_papers_are_read_from_the_first_line() -> None:
    assert describe_method("fedavg").paper == "McMahan et al., AISTATS 2017"
    assert (
        describe_method("fedavg").summary
        == "clients train from the global model, the server averages"
    )
    assert describe_method("local").paper == ""
    both = describe_method("fsl+fedsim").paper
    assert "Mai" in both
    assert "Song" in both
    assert parse_paper("A method (in short) of nobody: it averages.\n\n(Elsewhere, 2020)") == ""


def test_every_method_and_every_composition_has_an_entry_or_is_refused() -> None:
    refused = set()
    for word in methods.WRAPPERS:
        for name in methods.NAMES:
            try:
                entry = describe_method(f"{word}+{name}")
            except InputError:
                refused.add(f"{word}+{name}")
                continue
            assert all(row.meaning for row in entry.hparams), entry.method
    assert {"fsl+local", "per+centralized", "ds+ds", "per+afml", "fsl+fsl-p"} <= refused
    assert not refused & {
        f"{word}+{name}" for word in methods.WRAPPERS for name in ("fedavg", "fedsim", "scaffold")
    }


def test_every_hyper_parameter_has_a_meaning() -> None:
    for name in methods.NAMES:
        for row in describe_method(name).hparams:
            assert row.meaning, f"{name}: {row.name}"


def test_values_that_are_allowed_are_shown() -> None:
    rows = [*describe_method("fedmeta").hparams, *describe_method("per+apfl").hparams]
    allowed = {row.name: row.allowed for row in rows}
    assert allowed["lr"] == allowed["finetune_batch"] == "> 0"
    assert allowed["finetune_epochs"] == allowed["weight_decay"] == ">= 0"
    assert allowed["momentum"] == "[0, 1)"
    assert allowed["mixing"] == "[0, 1]"
    assert allowed["optimizer"] == "sgd, adam, adamw"
    assert allowed["order"] == "1, 2"
    assert allowed["adapt"] == "true, false"
    assert allowed["personal"] == ""


def test_a_composition_shows_the_method_s_own_defaults() -> None:
    for first, second in permutations(("fsl", "ds", "per"), 2):
        alone = {row.name: row.default for row in describe_method("fedmeta").hparams}
        try:
            rows = describe_method(f"{first}+{second}+fedmeta").hparams
        except InputError:
            continue
        around = {row.name: row.default for row in rows}
        assert {key: around[key] for key in alone} == alone


def test_a_meaning_is_that_of_the_class_that_names_it_last() -> None:
    def meanings(name: str) -> dict[str, str]:
        return {row.name: row.meaning for row in describe_method(name).hparams}

    assert meanings("fedprox")["finetune_lr"] == "step size of personalizing by SGD; None: lr"
    assert (
        meanings("fedmeta")["finetune_lr"]
        == "inner rate when personalizing; None: alpha; not for meta-sgd"
    )
    assert meanings("fsl+per+fedmeta")["finetune_lr"] == meanings("fedmeta")["finetune_lr"]
    assert "all-but-last, last" in meanings("lg-fedavg")["personal"]
    assert meanings("fsl")["learn_epochs"].endswith("make its work a client's, in Python: 1")


def test_words_that_can_stand_before_a_name() -> None:
    listed = catalog.list_wrappers()
    assert [entry.name for entry in listed] == list(methods.WRAPPERS)
    for entry in listed:
        assert entry.summary
        methods.build(entry.example, build_probe_task())


def test_the_document_states_the_same_costs() -> None:
    document = (Path(__file__).parents[2] / "docs" / "methods.md").read_text()
    stated = dict(re.findall(r"^### `(\S+)`\n\n\*(.+)\.\*$", document, re.MULTILINE))
    assert sorted(stated) == sorted(methods.NAMES)
    for entry in catalog.list_methods():
        gradients = "-" if entry.gradients is None else entry.gradients
        secure, needs = (
            "no" if entry.secure_aggregation_obstacle else "yes",
            entry.needs.replace("-", "nothing more"),
        )
        costs = f"Bytes {entry.bytes}; gradients {gradients}"
        found = f"{costs}; secure aggregation: {secure}; needs: {needs}"
        assert stated[entry.method] == found
