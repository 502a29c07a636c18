"""Several methods and seeds on the same clients, cohorts and first weights: a folder of runs, one table, one report."""

from collections.abc import Callable, Sequence
from pathlib import Path

from fedtailor import engines
from fedtailor.errors import DivergedError, require
from fedtailor.run import build
from fedtailor.run.budget import budgeted
from fedtailor.run.executor import Hear, Run, Stop, execute, refuse_other, status_of
from fedtailor.run.record import Folder
from fedtailor.run.session import Outcome
from fedtailor.run.spec import Comparison, Spec


def compare(
    comparison: Comparison,
    out: Path,
    jobs: int = 1,
    hear: Hear = bool,
    stop: Stop = bool,
    tell: Callable[[str], object] = bool,
) -> list[Outcome]:
    """Runs what has not been run yet, after everything has been checked; ends early when asked to stop.

    `tell` is told, in a line, how many rounds each method gets if these are not what all have equally many of. Returns
    the outcomes of the runs that have begun.
    """
    specs = comparison.specs()
    _refuse_foreign(out)
    specs, said = budgeted(comparison, specs)
    runs = runs_of(specs, out)
    check(runs)
    if said:
        tell(said)
    execute(runs, jobs, hear, stop)
    return [_outcome(run) for run in runs if status_of(run.place)]


def runs_of(specs: Sequence[Spec], out: Path, scenario: str = "") -> list[Run]:
    """Return the runs of a comparison, each with its folder."""
    return [Run(spec, folder_of(out, spec), scenario) for spec in specs]


def check(runs: Sequence[Run], other: str = "a run with another specification") -> None:
    """Refuse what cannot be run, before anything is; of the seeds of a method one stands for all."""
    for run in runs:
        refuse_other(run, other)
    new = [run.spec for run in runs if not run.place.exists()]
    different = {spec.model_copy(update={"seed": 0}).model_dump_json(): spec for spec in new}
    if not different:
        return
    data = build.dataset(new[0])
    for spec in different.values():
        engines.device_named(spec.device)
        build.setting(spec.model_copy(update={"device": "cpu"}), data)  # what fits is the same on every device


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


def _outcome(run: Run) -> Outcome:
    record = Folder(run.place).record()
    if record["status"] == "diverged":
        raise DivergedError(record["problem"])
    return Outcome(record, record["status"] == "finished")


def _refuse_foreign(out: Path) -> None:
    """Refuses a folder that is no comparison's."""
    require(not out.exists() or out.is_dir(), f"'{out}' is a file; choose another folder with out=DIR.")
    require(not (out / "spec.json").exists(), f"'{out}' holds a single run; choose another folder with out=DIR.")
    inside = out.iterdir() if out.exists() else ()
    foreign = [
        path.name for path in inside if not (path.is_dir() and "-seed" in path.name) and "report" not in path.name
    ]
    require(not foreign, f"'{out}' holds '{min(foreign, default='')}'; choose another folder with out=DIR.")
