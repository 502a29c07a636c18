"""A study that takes no time: two methods on a dozen clients with embedded digits."""

import json
from pathlib import Path
from typing import Any

from fedtailor.studies.config import Study, read_study
from fedtailor.studies.execute import prepare_study, run_study
from fedtailor.studies.plan import StudyRequest, plan_study
from fedtailor.studies.publish import write_part
from fedtailor.studies.record import PartRecord

COMPARISON = """
data = "digits"
methods = ["fedavg", "fedprox"]
baselines = false
seeds = [0, 1]
rounds = 6
cohort = 4
hidden = [8]
threads = 1
compile = false
evaluate_every = 1
checkpoint_every = 2
[data_options]
clients = 12
[hparams]
batch = 200
finetune_epochs = 1
"""
HEAD = 'title = "Small"\nquestion = "Does it work?"\n'
PART = '[[parts]]\nname = "one"\ntitle = "Two methods"\n'
TIMES = {"seconds", "scoring_seconds", "times"}


def written(folder: Path, study: str = HEAD + PART, **comparisons: str) -> Path:
    """The folder of a study with these files."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "study.toml").write_text(study)
    for name, content in (comparisons or {"one": COMPARISON}).items():
        (folder / f"{name}.toml").write_text(content)
    return folder


def small(tmp_path: Path, more: str = "", comparison: str = COMPARISON) -> Study:
    """A study with one part, of which more is said."""
    return read_study(written(tmp_path / "studies" / "small", HEAD + PART + more, one=comparison))


def done(
    study: Study, out: Path, *words: str, jobs: int = 1, scale: Any = "paper", **how: Any
) -> dict[str, PartRecord]:
    """Run a study, and return the records of its finished parts by name."""
    asked = StudyRequest(study, scale, words)
    ran = run_study(prepare_study(asked, plan_study(asked)[0], out), jobs, **how)
    return {
        each.planned.part.name: write_part(asked, each, out) for each in ran if each.is_finished
    }


def figures(record: PartRecord) -> str:
    """Return the runs of a record as JSON, without their seconds."""
    runs = [run.model_dump(mode="json", exclude={"cost": TIMES}) for run in record.runs]
    return json.dumps(runs)
