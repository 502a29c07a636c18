"""Several methods and seeds on the same clients, cohorts and first weights: a folder of runs, one table, one report."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.table import Table

from fedtailor.errors import require
from fedtailor.run import build
from fedtailor.run.metrics import spread
from fedtailor.run.record import Folder
from fedtailor.run.session import FirstModels, Listener, Outcome, resume, start
from fedtailor.run.spec import Comparison, Spec

Record = Mapping[str, Any]


def compare(
    comparison: Comparison, out: Path, listeners: tuple[Listener, ...] = (), stop: Callable[[], bool] = bool
) -> list[Outcome]:
    """Runs what has not been run yet, after everything has been checked; ends early when asked to stop."""
    specs = comparison.specs()
    _refuse_foreign(out)
    data = build.dataset(specs[0])
    for spec in specs:
        build.setting(spec, data)
        _refuse_other(spec, folder_of(out, spec))
    outcomes: list[Outcome] = []
    firsts: FirstModels = {}
    for spec in specs:
        place = folder_of(out, spec)
        begun = (place / "spec.json").exists()
        again = (place, listeners, stop, firsts)
        outcomes.append(resume(*again) if begun else start(spec, *again))
        if not outcomes[-1].finished:
            break
    return outcomes


def folder_of(out: Path, spec: Spec) -> Path:
    """Where in a comparison's folder a run is."""
    return out / f"{spec.label or spec.method}-seed{spec.seed}"


def runs_in(out: Path) -> list[Path]:
    """The runs of a folder: itself, or those of a comparison."""
    if (out / "spec.json").exists():
        return [out]
    found = sorted(
        (path.parent for path in out.glob("*/spec.json")), key=lambda run: (run / "spec.json").stat().st_mtime_ns
    )
    require(bool(found), f"'{out}' holds no run.")
    return found


def _refuse_other(spec: Spec, place: Path) -> None:
    if (place / "spec.json").exists():
        same = Folder(place).spec() == spec
        require(same, f"'{place}' holds a run with another specification; choose another folder with out=DIR.")


def _refuse_foreign(out: Path) -> None:
    """Refuses a folder that is no comparison's."""
    require(not out.exists() or out.is_dir(), f"'{out}' is a file; choose another folder with out=DIR.")
    require(not (out / "spec.json").exists(), f"'{out}' holds a single run; choose another folder with out=DIR.")
    inside = out.iterdir() if out.exists() else ()
    foreign = [
        path.name for path in inside if not (path.is_dir() and "-seed" in path.name) and "report" not in path.name
    ]
    require(not foreign, f"'{out}' holds '{min(foreign, default='')}'; choose another folder with out=DIR.")


def table(records: Sequence[Record], title: str) -> Table:
    """Mean, standard deviation and worst tenth over clients, before and after personalising, and costs."""
    made = Table(title=title, caption=_CAPTION, box=box.SIMPLE_HEAD, padding=0, pad_edge=False)
    made.title_justify = made.caption_justify = "left"
    for heading in ("method", "clients"):
        made.add_column(heading, no_wrap=True)
    for heading in ("before", "worst\ntenth", "after", "worst\ntenth", "MB", "s"):
        made.add_column(heading, justify="right", no_wrap=True)
    for name in dict.fromkeys(record["name"] for record in records):
        of_method = [record for record in records if record["name"] == name]
        if name == "fedavg":
            _add_rows(made, name, of_method, ("before",))
            name = "fedavg + fine-tuning"
        _add_rows(made, name, of_method, ("before", "after"))
    return made


_CAPTION = (
    "Test figures (accuracy in %, averaged over seeds): mean ± standard deviation over clients, and mean of the worst "
    "tenth of them; before and after personalising. local: clients who took part in training; new: people never seen. "
    "MB: sent down and up in all rounds; s: seconds of training and scoring."
)


def _add_rows(made: Table, name: str, records: Sequence[Record], shown: tuple[str, ...]) -> None:
    groups = list(records[0]["scores"])
    for number, group in enumerate(groups):
        cells = [name if number == 0 else "", group]
        for when in ("before", "after"):
            cells += _figures(records, group, when) if when in shown else ["", ""]
        cost = [record["cost"] for record in records]
        sent = np.mean([each["bytes_down"] + each["bytes_up"] for each in cost]) / 1e6
        seconds = np.mean([each["seconds"] + each["scoring_seconds"] for each in cost])
        costs = (f"{sent:.1f}", f"{seconds:.1f}") if number == 0 else ()
        made.add_row(*cells, *costs, end_section=number == len(groups) - 1)


def _figures(records: Sequence[Record], group: str, when: str) -> list[str]:
    metric = records[0]["metric"]
    per_seed = [record["scores"][group][when][metric["name"]] for record in records]
    found = [spread(np.array(values, dtype=float), metric["higher_is_better"]) for values in per_seed]
    mean, std, worst = np.mean(found, axis=0) * (100 if metric["name"] in ("accuracy", "f1") else 1)
    return [f"{mean:.1f} ±{std:4.1f}", f"{worst:.1f}"]
