"""The study of `fedtailor inspect`: its tables are those of its records, and say what they do."""

import json
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import spearmanr

from fedtailor.data import fill_defaults
from fedtailor.training.overrides import parse_value

STUDY = Path(__file__).parents[2] / "studies" / "inspect"
"""Folder of the study."""


@pytest.fixture
def score(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The study's script that scores forecasts."""
    monkeypatch.syspath_prepend(str(STUDY))
    for name in ("score", "forecasting"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield __import__("score")
    for name in ("score", "forecasting"):
        sys.modules.pop(name, None)


def read_outcomes(score: Any) -> list[Any]:
    predicted = score.read_rows(STUDY / "forecasts.jsonl")
    gains = score.read_rows(STUDY / "gains.jsonl")
    return [
        score.score_row(predicted[scenario.name], gains[scenario.name], stage)
        for scenario in score.read_scenarios(STUDY / "scenarios.toml")
        for stage in ("before", "after")
    ]


def test_every_scenario_was_measured_and_forecast(score: Any) -> None:
    names = [scenario.name for scenario in score.read_scenarios(STUDY / "scenarios.toml")]
    assert len(names) == len(set(names)) >= 30
    assert set(score.read_rows(STUDY / "gains.jsonl")) == set(names)
    assert set(score.read_rows(STUDY / "forecasts.jsonl")) == set(names)


def test_the_document_shows_the_tables_of_the_records(score: Any) -> None:
    outcomes = read_outcomes(score)
    predicted = score.read_rows(STUDY / "forecasts.jsonl")
    shown = (STUDY / "README.md").read_text().partition(score.BEGIN)[2].partition(score.END)[0]
    assert shown.strip() == score.make_tables(outcomes, predicted)


def test_nine_of_ten_clear_gains_have_the_sign_that_was_forecast(score: Any) -> None:
    clear = [each for each in read_outcomes(score) if abs(each.true_gain) > 0.02]
    right = 0
    for each in clear:
        says_gain = each.verdict.value in ("helps", "probably helps")
        says_loss = each.verdict.value in ("harms", "probably harms")
        right += says_gain if each.true_gain > 0 else says_loss
    assert right >= 0.9 * len(clear)


def test_gains_before_personalizing_are_ranked(score: Any) -> None:
    before = [each for each in read_outcomes(score) if each.stage == "before"]
    gains = [(each.gain, each.true_gain) for each in before]
    usual = [(each.usual_gain, each.true_usual_gain) for each in before]
    assert spearmanr(*zip(*gains, strict=True))[0] >= 0.8
    assert spearmanr(*zip(*usual, strict=True))[0] >= 0.85


def test_ranks_are_correlated_as_scipy_does_it(score: Any) -> None:
    first = [0.1, 0.3, 0.3, -0.2, 0.5, 0.0]
    second = [1.0, 2.0, 1.5, -3.0, 2.0, 2.0]
    assert score.rank_correlation(first, second) == pytest.approx(spearmanr(first, second)[0])


def test_scenarios_are_of_options_that_there_are() -> None:
    content = tomllib.loads((STUDY / "scenarios.toml").read_text())
    own_sets = {"posts", "verses", "writers"}  # which prepare.py makes, stored as FEMNIST is
    for group, words_by_name in content["scenarios"].items():
        for words in words_by_name.values():
            text = f"{content['common']} {content['groups'][group]} {words}"
            pairs = dict(word.split("=", 1) for word in text.split())
            options = {
                key[5:]: parse_value(value)
                for key, value in pairs.items()
                if key.startswith("data.")
            }
            name = "femnist" if pairs["data"] in own_sets else pairs["data"]
            assert fill_defaults(name, options).items() >= options.items()


def test_true_gains_are_of_the_settings_that_are_forecast(score: Any) -> None:
    predicted = score.read_rows(STUDY / "forecasts.jsonl")
    for name, row in score.read_rows(STUDY / "gains.jsonl").items():
        measured = set(row["figures"])
        assert {score.find_true_name(label) for label in predicted[name]["settings"]} == measured


def test_gains_shrank_in_the_earlier_study_as_the_document_says() -> None:
    records = json.loads((STUDY / "records.json").read_text())
    ratios = [
        (each["fsl"] - each["fedavg"]) / each["predicted"]
        for each in records
        if each["predicted"] > 0.02
    ]
    assert len(ratios) == 10
    assert np.median(ratios) == pytest.approx(0.62, abs=0.005)
    assert "the median gain about round 80 was 0.62" in " ".join(
        (STUDY.parents[1] / "docs" / "inspect.md").read_text().split()
    )
