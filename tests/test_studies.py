"""The tables in the documents are those that the records make."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedtailor.data import filled
from fedtailor.data.options import RULES
from fedtailor.data.server.drawing import SERVERS
from fedtailor.run.study.planning import Asked, Planned, read, scenarios, tuning_of, vary_of
from fedtailor.run.study.reading import Part, Study, read_study
from fedtailor.run.study.records import read_record
from fedtailor.run.study.written import marked, pictures, refreshed
from fedtailor.run.tuning import trials_of

STUDY = Path(__file__).parents[1] / "studies" / "methods"
DOCUMENTS = (STUDY / "README.md", STUDY.parents[1] / "docs" / "methods.md")


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module of the study that makes the table."""
    monkeypatch.syspath_prepend(str(STUDY))
    monkeypatch.delitem(sys.modules, "table", raising=False)
    return __import__("table")


@pytest.fixture
def records() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((STUDY / "records.json").read_text())
    return found


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.parent.name)
def test_a_document_shows_the_table_of_the_records(document: Path, table: Any, records: dict[str, Any]) -> None:
    assert table.shown_in(document.read_text()) == table.table(records)


def test_fsls_gaps_are_those_of_their_record(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = STUDY.parent / "fsl"
    monkeypatch.syspath_prepend(str(folder))
    gaps, record = __import__("gaps"), folder / "gaps.json"
    shown = gaps.shown_in((folder / "README.md").read_text())
    assert shown == (gaps.table(json.loads(record.read_text())) if record.exists() else "")
    looks = [{"round": look, "clients": 10.0 + look, "server": 0.5, "loss": 1.0} for look in gaps.LOOKS]
    made = [{"labels": each, "server": size, "along": looks} for each in gaps.LABELS for size in gaps.SERVER]
    assert gaps.table(made).splitlines()[2].startswith("| 1 | 10 | 0.5 | 0.5 | 60 | 0.5 |")


FOLDERS = sorted(path.parent for path in STUDY.parent.glob("*/study.toml"))
EVERY = [read_study(folder) for folder in FOLDERS]
PARTS = [pytest.param(study, part, id=f"{study.name}-{part.name}") for study in EVERY for part in study.parts]


@pytest.mark.parametrize("study", EVERY, ids=lambda study: study.name)
def test_the_marked_tables_of_a_study_are_those_of_its_records(study: Study) -> None:
    text = (study.folder / "README.md").read_text()
    assert refreshed(study, text) == text
    shown = {(found["part"], found["table"]) for found in marked(study, text)}
    made = {(part.name, table) for part in study.parts if study.record_of(part).exists() for table in part.show}
    assert made <= shown


@pytest.mark.parametrize("study", EVERY, ids=lambda study: study.name)
def test_the_figures_of_a_study_are_those_of_its_records(study: Study) -> None:
    shown = pictures(study, (study.folder / "README.md").read_text())
    kept = {path.name: path.read_text() for path in study.folder.glob("figures/*")}
    assert kept == shown


@pytest.mark.parametrize(("study", "part"), PARTS)
def test_the_record_of_a_part_is_small_and_of_that_part(study: Study, part: Part) -> None:
    path = study.record_of(part)
    if path.exists():
        record = read_record(path)
        assert path.stat().st_size < 150_000
        assert (record["part"], record["about"]["scale"]) == (part.name, "paper")
        assert {run["name"] for run in record["runs"]} <= {*read(Asked(study, "paper"), part).methods}
        assert {*part.published} <= {*read(Asked(study, "paper"), part).methods}


@pytest.mark.parametrize("scale", ["quick", "embedded", "paper"])
@pytest.mark.parametrize(("study", "part"), PARTS)
def test_every_comparison_of_a_study_resolves_at_every_scale(study: Study, part: Part, scale: str) -> None:
    if scale == "embedded" and part.embedded is None:
        return
    asked = Asked(study, "paper" if scale == "paper" else "quick")
    planned = Planned(part, vary_of(asked, part, scale == "embedded"), scale == "embedded", "")
    for scenario in scenarios(asked, planned, Path("out")):
        assert scenario.comparison.specs()
    tuned = tuning_of(asked, planned)
    assert tuned is None or trials_of(tuned, Path("out"))


def test_every_scenario_of_the_document_is_made_of_options_that_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(STUDY.parent / "data"))
    scenarios = __import__("scenarios_of_data")
    shown = (STUDY.parents[1] / "docs" / "data.md").read_text()
    chosen = set()
    for scenario in scenarios.SCENARIOS:
        name, *words = scenario.words.split()
        options = filled(name, scenarios.options(words))
        chosen |= {options["partition"], options["server_from"]}
        assert f"| {scenario.of} | `{scenario.words}` |" in shown
    assert chosen >= {*RULES, *SERVERS}


def test_the_runs_of_the_document_on_data_are_those_of_its_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(STUDY.parent / "data"))
    monkeypatch.syspath_prepend(str(STUDY))
    runs = __import__("runs_of_data")
    records = json.loads((STUDY.parent / "data" / "records.json").read_text())
    assert tuple(records) == runs.NAMES
    assert runs.table(records) in (STUDY.parents[1] / "docs" / "data.md").read_text()
    for run in records.values():
        for group in runs.GROUPS:
            assert run[f"{group} before"]["micro"] > 1.5 * run["trivial"][group]


def cells(table: Any, records: dict[str, Any]) -> dict[str, list[str]]:
    """The table's rows by the method's name."""
    lines = [line for line in table.table(records).splitlines()[2:] if line.startswith("|")]
    rows = [line.strip("| ").split(" | ") for line in lines]
    return {re.findall(r"`(.+)`", row[0])[0]: row[1:] for row in rows}


def test_the_figures_are_means_and_standard_deviations_over_seeds(table: Any, records: dict[str, Any]) -> None:
    shown = cells(table, records)
    assert set(shown) == {run["name"] for run in records["runs"]}
    columns = (("local before", "macro"), ("local after", "macro"), ("local after", "worst tenth"))
    for name, row in shown.items():
        own = [run for run in records["runs"] if run["name"] == name]
        assert sorted(run["seed"] for run in own) == [0, 1, 2]
        for cell, (column, figure) in zip(
            row, (*columns, ("new before", "macro"), ("new after", "macro")), strict=False
        ):
            values = 100 * np.array([run[column][figure] for run in own])
            assert cell == f"{values.mean():.1f} ± {values.std(ddof=1):.1f}"
        sent = np.mean([run["cost"]["bytes_down"] + run["cost"]["bytes_up"] for run in own])
        assert row[-1] == f"{sent / 1e6:.0f}"
    order = [float(row[1].split()[0]) for row in shown.values()]
    assert order == sorted(order, reverse=True)


def test_every_method_of_the_comparison_is_in_the_table(table: Any, records: dict[str, Any]) -> None:
    from fedtailor.run.spec import read_comparison

    assert set(cells(table, records)) == set(read_comparison([str(STUDY / "compare.toml")]).methods)
