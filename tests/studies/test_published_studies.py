"""The tables in the documents are those that the records make."""

import json
from pathlib import Path

import numpy as np
import pytest

from fedtailor.data import fill_defaults
from fedtailor.data.partition.options import PARTITION_OPTIONS
from fedtailor.data.server_data import SERVER_SOURCES
from fedtailor.experiments.tune import make_trials
from fedtailor.studies.config import Part, Study, read_study
from fedtailor.studies.plan import (
    PlannedPart,
    StudyRequest,
    make_scenarios,
    make_tuning_comparison,
    read_part_comparison,
    resolve_vary,
)
from fedtailor.studies.publish import (
    find_marked_tables,
    list_documents,
    render_linked_figures,
    replace_tables,
)
from fedtailor.studies.record import read_record
from fedtailor.training.overrides import read_toml
from known import known

STUDIES = Path(__file__).parents[2] / "studies"


def test_fsls_gaps_are_those_of_their_record(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = STUDIES / "fsl"
    monkeypatch.syspath_prepend(str(folder))
    gaps, record = __import__("gaps"), folder / "gaps.json"
    shown = gaps.shown_in((folder / "README.md").read_text())
    assert shown == (gaps.table(json.loads(record.read_text())) if record.exists() else "")
    looks = [
        {"round": look, "clients": 10.0 + look, "server": 0.5, "loss": 1.0} for look in gaps.LOOKS
    ]
    made = [
        {"labels": each, "server": size, "along": looks}
        for each in gaps.LABELS
        for size in gaps.SERVER
    ]
    assert gaps.table(made).splitlines()[2].startswith("| 1 | 10 | 0.5 | 0.5 | 60 | 0.5 |")


FOLDERS = sorted(path.parent for path in STUDIES.glob("*/study.toml"))
EVERY = [read_study(folder) for folder in FOLDERS]
PARTS = [
    pytest.param(study, part, id=f"{study.name}-{part.name}")
    for study in EVERY
    for part in study.parts
]


@pytest.mark.parametrize("study", EVERY, ids=lambda study: study.name)
def test_the_marked_tables_of_a_study_are_those_of_its_records(study: Study) -> None:
    for path in list_documents(study):
        text = path.read_text()
        assert replace_tables(study, text, path) == text
        assert path.name == "README.md" or any(find_marked_tables(study, text, path))
    text = (study.folder / "README.md").read_text()
    shown = {(found["part"], found["table"]) for found in find_marked_tables(study, text)}
    made = {
        (part.name, table)
        for part in study.parts
        if study.get_record_path(part).exists()
        for table in part.tables
    }
    assert made <= shown


@pytest.mark.parametrize("study", EVERY, ids=lambda study: study.name)
def test_the_figures_of_a_study_are_those_of_its_records(study: Study) -> None:
    shown = render_linked_figures(study, (study.folder / "README.md").read_text())
    kept = {path.name: path.read_text() for path in study.folder.glob("figures/*")}
    assert kept == shown


@pytest.mark.parametrize(("study", "part"), PARTS)
def test_the_record_of_a_part_is_small_and_of_that_part(study: Study, part: Part) -> None:
    path = study.get_record_path(part)
    if path.exists():
        record = read_record(path)
        assert path.stat().st_size < 150_000
        assert (record.part, record.about.scale) == (part.name, "paper")
        assert {run.name for run in record.runs} <= {
            *read_part_comparison(StudyRequest(study, "paper"), part).methods
        }
        assert {*part.published} <= {
            *read_part_comparison(StudyRequest(study, "paper"), part).methods
        }


@pytest.mark.parametrize(("study", "part"), PARTS)
def test_every_study_names_its_seeds_and_its_split(study: Study, part: Part) -> None:
    """So that other defaults change no record's meaning."""
    written = read_toml(study.get_comparison_path(part))
    assert written["data_options"]["seed"] == 0
    assert len(written["seeds"]) >= 2
    comparison = read_part_comparison(StudyRequest(study, "paper"), part)
    assert {spec.data_seed for spec in comparison.make_run_configs()} == {0}


@pytest.mark.parametrize("scale", ["quick", "embedded", "paper"])
@pytest.mark.parametrize(("study", "part"), PARTS)
def test_every_comparison_of_a_study_resolves_at_every_scale(
    study: Study, part: Part, scale: str
) -> None:
    if scale == "embedded" and part.embedded is None:
        return
    asked = StudyRequest(study, "paper" if scale == "paper" else "quick")
    planned = PlannedPart(
        part, resolve_vary(asked, part, scale == "embedded"), scale == "embedded", ""
    )
    for scenario in make_scenarios(asked, planned, Path("out")):
        assert scenario.comparison.make_run_configs()
    tuned = make_tuning_comparison(asked, planned)
    assert tuned is None or make_trials(tuned, Path("out"))


def test_every_scenario_of_the_document_is_made_of_options_that_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(STUDIES / "data"))
    scenarios = __import__("scenarios_of_data")
    shown = (STUDIES.parent / "docs" / "data.md").read_text()
    chosen = set()
    for scenario in scenarios.SCENARIOS:
        name, *words = scenario.words.split()
        options = fill_defaults(name, scenarios.parse_options(words))
        chosen |= {options["partition"], options["server_from"]}
        assert f"| {scenario.title} | `{scenario.words}` |" in shown
    # The server's own examples come with a set, such as an .npz file, and none of these has them.
    assert chosen >= {*PARTITION_OPTIONS, *SERVER_SOURCES} - {"own"}


def test_the_runs_of_the_document_on_data_are_those_of_its_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(STUDIES / "data"))
    runs = __import__("runs_of_data")
    records = json.loads((STUDIES / "data" / "records.json").read_text())
    assert tuple(records) == runs.NAMES
    assert runs.format_table(records) in (STUDIES.parent / "docs" / "data.md").read_text()
    for run in records.values():
        for group in runs.GROUPS:
            assert run[f"{group} before"]["micro"] > 1.5 * run["trivial"][group]


def test_the_overview_of_methods_is_of_every_method_with_means_and_deviations_over_seeds() -> None:
    study = read_study(STUDIES / "methods")
    (part,) = study.parts
    runs = read_record(study.get_record_path(part)).runs
    (found,) = find_marked_tables(study, (study.folder / "README.md").read_text())
    lines = [
        line.strip("| ").split(" | ")
        for line in found["shown"].splitlines()
        if line.startswith("| `")
    ]
    shown = {row[0].strip("`"): row[1:] for row in lines}
    assert (
        set(shown)
        == {run.name for run in runs}
        == {*read_part_comparison(StudyRequest(study, "paper"), part).methods}
    )
    columns = [
        (column, "macro")
        for column in (
            "participating before",
            "participating after",
            "unseen before",
            "unseen after",
        )
    ]
    for name, row in shown.items():
        own = [run for run in runs if run.name == name]
        assert sorted(run.seed for run in own) == [0, 1, 2]
        for cell, (column, figure) in zip(
            row[1:6], (*columns, ("participating after", "worst tenth")), strict=True
        ):
            figures = [known(run.figures[column].get_statistic(figure)) for run in own]
            values = 100 * np.array(figures)
            assert cell == f"{values.mean():.2f} ± {values.std(ddof=1):.2f}"
        sent = [known(run.cost.bytes_down) + known(run.cost.bytes_up) for run in own]
        assert (row[0], row[6:]) == ("3", [f"{np.mean(sent) / 1e6:.0f}"])
    order = [float(row[2].split()[0]) for row in shown.values()]
    assert order == sorted(order, reverse=True)
