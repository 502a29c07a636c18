"""Studies name the defaults that their records were made with, so that others change no study."""

import json
from pathlib import Path
from typing import Any

import pytest

from fedtailor.studies.config import Part, Study, read_study
from fedtailor.studies.plan import (
    PlannedPart,
    StudyRequest,
    make_scenarios,
    make_tuning_comparison,
    resolve_vary,
)
from fedtailor.studies.record import PartRecord
from fedtailor.training.config import ComparisonConfig, RunConfig, parse_method
from fedtailor.training.overrides import read_toml, validate_config

STUDIES = Path(__file__).parents[2] / "studies"
FOLDERS = sorted(path.parent for path in STUDIES.glob("*/study.toml"))
RECORDS = sorted(
    path for path in STUDIES.glob("*/*.json") if "comparison" in json.loads(path.read_text())
)
UNWEIGHED = ("local", "centralized")


def list_comparisons(study: Study, part: Part) -> list[ComparisonConfig]:
    """Return the comparisons of a part at paper scale, and that of its trials."""
    request = StudyRequest(study, "paper")
    planned = PlannedPart(part, resolve_vary(request, part, False), False, "")
    scenarios = make_scenarios(request, planned, Path("unused"))
    tuning = make_tuning_comparison(request, planned)
    comparisons = [scenario.comparison for scenario in scenarios]
    return comparisons if tuning is None else [*comparisons, tuning]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_studies_pin_how_clients_weigh_and_personalize(folder: Path) -> None:
    study = read_study(folder)
    for part in study.parts:
        for comparison in list_comparisons(study, part):
            assert comparison.finetune == "paper"
            for variant in comparison.methods:
                check_pins(variant, comparison.collect_hparams(variant))


def check_pins(variant: str, hparams: dict[str, Any]) -> None:
    """Check what a study gives a variant: records were made with it as a default."""
    method = parse_method(variant)
    if method == "local":
        assert hparams["local_epochs"] == 50
    if method not in UNWEIGHED:
        assert hparams["weigh"] == ("examples" if "fedmeta" in method else "clients"), variant


@pytest.mark.parametrize("path", sorted(STUDIES.glob("data/*.toml")), ids=lambda path: path.name)
def test_single_runs_pin_them_too(path: Path) -> None:
    config = validate_config(RunConfig, read_toml(path))
    assert (config.finetune, config.hparams["weigh"]) == ("paper", "clients")


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_records_are_not_reinterpreted(path: Path) -> None:
    content = json.loads(path.read_text())
    record = PartRecord.model_validate(content)
    assert content["comparison"].get("finetune", "paper") == record.comparison.finetune
    assert record.comparison.hparams == content["comparison"]["hparams"]
