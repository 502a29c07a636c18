"""The study of `fedtailor inspect`: its tables are those of its records, and its orders are good
enough.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedtailor.data import fill_defaults
from fedtailor.training.overrides import parse_value

STUDY = Path(__file__).parents[2] / "studies" / "inspect"


def module(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(STUDY))
    monkeypatch.delitem(sys.modules, name, raising=False)
    made = __import__(name)
    monkeypatch.delitem(sys.modules, name)
    return made


def content(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((STUDY / f"{name}.json").read_text())
    return found


def ranks(values: list[float]) -> np.ndarray:
    """Ranks, the mean of them where values are equal."""
    given = np.array(values)
    return np.array([(given < value).sum() + ((given == value).sum() - 1) / 2 for value in given])


def test_the_document_shows_the_tables_of_the_records(monkeypatch: pytest.MonkeyPatch) -> None:
    table = module("verdicts", monkeypatch)
    assert table.shown_in((STUDY / "README.md").read_text()) == table.tables(content("records"))


def test_predicted_and_measured_gains_have_the_same_order_where_it_was_not_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table, judged = module("verdicts", monkeypatch), 0
    for _, own in table.sets(content("records")):
        if len(own) < 12:
            continue
        measured = [each["fsl"] - each["fedavg"] for each in own]
        expected = np.corrcoef(ranks([each["predicted"] for each in own]), ranks(measured))[0, 1]
        assert table.correlation(own) == pytest.approx(expected)
        assert expected >= 0.7
        assert (own[0]["scenario"], own[0]["seed"]) != ("mnist", 0)
        judged += 1
    assert judged == 2


def test_three_kinds_of_server_data_of_femnist_have_three_verdicts() -> None:
    for seed in (0, 1):
        own = [
            each
            for each in content("records")
            if each["scenario"] == "femnist" and each["seed"] == seed
        ]
        assert [each["verdict"] for each in own] == ["helps", "little", "harms"]


def test_every_scenario_was_measured_and_is_made_of_options_that_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kinds = module("server_kinds", monkeypatch)
    measured = [
        (each["scenario"], each["seed"], each["server_data"]) for each in content("records")
    ]
    wanted = [(name, seed, each) for name, seed in kinds.RUNS for each in kinds.SERVER_DATA[name]]
    assert measured == wanted
    for scenario, own in kinds.SERVER_DATA.items():
        for words in own.values():
            pairs = dict(
                word.split("=", 1) for word in f"{kinds.SCENARIOS[scenario]} {words}".split()
            )
            options = {
                key[5:]: parse_value(text) for key, text in pairs.items() if key.startswith("data.")
            }
            assert fill_defaults(pairs["data"], options).items() >= options.items()
