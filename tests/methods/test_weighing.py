"""How clients count in averages: `weigh`, a hyper-parameter of every method that averages."""

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from agreement import distance
from contract import ROWS
from fedtailor import methods
from fedtailor.core import trees
from fedtailor.core.types import Tree
from fedtailor.engines import factory
from fedtailor.methods import feddyn, scaffold
from quadratics import LARGEST, SIZES, quadratic_problem, setting_of, vector
from scenarios import kept, toy_data, toy_setting, train

BY_EXAMPLES = ("fedavg", "fedprox", "fedper", "lg-fedavg", "ds", "fedmeta", "fedmeta-per")
"""Methods whose papers weigh clients by their numbers of examples."""
ALIKE = (
    "scaffold",
    "feddyn",
    "pfedme",
    "ditto",
    "apfl",
    "fedrep",
    "reptile",
    "per-fedavg",
    "fsl",
    "fsl-p",
    "fedsim",
    "afml",
)
"""Methods whose papers print the plain mean."""
WITHOUT_AVERAGE = ("local", "centralized")
COMPOSITIONS = ("fsl+fedavg", "fsl-p+fedprox", "per+fedprox", "ds+fedavg", "fsl+per+fedmeta")
QUERY_METHODS = ("fedmeta", "fedmeta-per", "fsl+per+fedmeta", "afml")
"""Methods that learn from query examples, and weigh by their number."""


def test_every_method_weighs_as_its_paper_does() -> None:
    assert {*BY_EXAMPLES, *ALIKE, *WITHOUT_AVERAGE} == set(methods.NAMES)
    for name in BY_EXAMPLES:
        assert methods.make_hparams(name).weigh == "examples"
    for name in ALIKE:
        assert methods.make_hparams(name).weigh == "clients"
    for name in WITHOUT_AVERAGE:
        hparam_names = [hparam.name for hparam in fields(methods.make_hparams(name))]
        assert "weigh" not in hparam_names


def keep_stacked(updates: Tree, weights: Tensor) -> Tree:
    """An aggregation that returns the updates as they come."""
    return updates


@pytest.mark.parametrize("weigh", ["clients", "examples"])
@pytest.mark.parametrize("name", [*BY_EXAMPLES, *ALIKE, *COMPOSITIONS])
def test_the_aggregate_is_the_mean_that_was_asked_for(name: str, weigh: str) -> None:
    setting = toy_setting(name, weigh=weigh)
    cohort = np.array([7, 2, 4, 8])
    state = setting.init_server_state()
    update = factory.make_engine(setting).train(state, cohort, 0).cohort_update.update
    stacking = toy_setting(setting.method._replace(aggregate=keep_stacked))
    stacked = (
        factory.make_engine(stacking, "sequential").train(state, cohort, 0).cohort_update.update
    )
    split = "query" if name in QUERY_METHODS else "train"
    sizes = setting.data.clients.splits[split].compute_sizes()[cohort]
    weights = np.ones(len(cohort)) if weigh == "clients" else sizes
    shares = weights / weights.sum()
    expected = trees.apply(
        lambda leaf: sum(share * row for share, row in zip(shares, leaf, strict=True)), stacked
    )
    assert len(set(sizes.tolist())) == len(cohort)
    assert distance(update, expected) < 1e-12


@pytest.mark.parametrize("name", [*BY_EXAMPLES, *ALIKE, *COMPOSITIONS])
def test_with_equal_sizes_it_changes_nothing(name: str) -> None:
    data = toy_data(sizes=(10,) * 7)
    states = []
    for weigh in ("clients", "examples"):
        setting = toy_setting(name, data=data, weigh=weigh)
        states.append(train(setting, rounds=3, cohort=3)[0])
    assert distance(states[0].params, states[1].params) < 1e-12
    assert distance(states[0].aux, states[1].aux) < 1e-12


def test_the_contract_has_rows_for_both() -> None:
    weighed = {(name, hparams["weigh"]) for name, hparams in ROWS if "weigh" in hparams}
    assert {("fedavg", "clients"), ("scaffold", "examples"), ("fedmeta", "clients")} <= weighed


@pytest.mark.parametrize("cohort", [1, 4, 9])
@pytest.mark.parametrize("name", ["scaffold", "feddyn"])
def test_what_the_server_keeps_is_the_mean_by_examples(name: str, cohort: int) -> None:
    setting = toy_setting(name, epochs=2, weigh="examples")
    state, engine = train(setting, rounds=3, cohort=cohort)
    client_ids = setting.data.groups["train"]
    sizes = setting.data.clients.splits["train"].compute_sizes()[client_ids]
    shares = sizes / sizes.sum()
    expected = trees.apply(
        lambda leaf: sum(share * row for share, row in zip(shares, leaf, strict=True)),
        kept(setting, engine),
    )
    assert distance(state.aux, expected) < 1e-12
    assert float(trees.norm(state.aux)) > 1e-3


@pytest.mark.parametrize(
    ("file", "hparams"),
    [(scaffold, {}), (feddyn, {"alpha": 2.0})],
    ids=["scaffold", "feddyn"],
)
@pytest.mark.parametrize(("cohort", "rounds"), [(6, 45), (4, 60)])
def test_by_examples_the_optimum_is_that_of_all_examples(
    file: Any, hparams: dict[str, Any], cohort: int, rounds: int
) -> None:
    problem = quadratic_problem()
    chosen = file.HParams(lr=0.1, epochs=4, batch=LARGEST, weigh="examples", **hparams)
    setting = setting_of(problem, file.build(problem.task, chosen))
    found = vector(train(setting, rounds, cohort)[0].params)
    shares = np.array(SIZES) / sum(SIZES)
    weighted = np.linalg.solve(
        np.tensordot(shares, problem.curvatures, 1), np.tensordot(shares, problem.slopes, 1)
    )
    assert np.abs(found - weighted).max() < 2e-3
    assert np.abs(weighted - problem.optimum()).max() > 0.05


@pytest.mark.parametrize("wrapper", ["fsl", "fsl-p", "per", "ds"])
def test_wrappers_pass_it_on(wrapper: str) -> None:
    for inner, weigh in (("fedprox", "examples"), ("fedsim", "clients")):
        assert methods.make_hparams(f"{wrapper}+{inner}").weigh == weigh
        by_size = toy_setting(f"{wrapper}+{inner}", weigh="examples").method
        alike = toy_setting(f"{wrapper}+{inner}", weigh="clients").method
        assert (by_size.weight_by, alike.weight_by) == ("train", None)


def test_the_document_says_how_each_method_weighs() -> None:
    document = (Path(__file__).parents[2] / "docs" / "methods.md").read_text()
    section = document.partition("\n## How clients count")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.*?`) \| (\w*) ?\|", section, re.MULTILINE)
    said = {}
    for cell, weigh in rows:
        for name in re.findall(r"`([\w-]+)`", cell):
            said[name] = weigh
    defaults = dict.fromkeys(WITHOUT_AVERAGE, "")
    for name in (*BY_EXAMPLES, *ALIKE):
        defaults[name] = methods.make_hparams(name).weigh
    assert said == defaults
