"""Several methods and seeds on the same clients, cohorts and first weights: a folder of runs, one table, one report."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from fedtailor.engines import Party
from fedtailor.errors import require
from fedtailor.run import build
from fedtailor.run.abreast import abreast, in_groups
from fedtailor.run.budget import budgeted
from fedtailor.run.record import Folder
from fedtailor.run.session import FirstModels, Listener, Outcome, resume, start
from fedtailor.run.spec import Comparison, Spec

HOW_COMPUTED = {"engine", "device", "chunk", "compile", "threads", "memory", "checkpoint_every", "log"}
"""Keys that say how a run's figures are worked out, and not which they are."""


def compare(
    comparison: Comparison,
    out: Path,
    listeners: tuple[Listener, ...] = (),
    stop: Callable[[], bool] = bool,
    tell: Callable[[str], object] = bool,
) -> list[Outcome]:
    """Runs what has not been run yet, after everything has been checked; ends early when asked to stop.

    `tell` is told, in a line, how many rounds each method gets if these are not what all have equally many of.
    """
    specs = comparison.specs()
    _refuse_foreign(out)
    data = build.dataset(specs[0])
    specs, said = budgeted(comparison, specs, data)
    for spec in specs:
        build.setting(spec, data)
        refuse_other(spec, folder_of(out, spec))
    if said:
        tell(said)
    outcomes: list[Outcome] = []
    firsts: FirstModels = {}
    for group in in_groups(specs, lambda spec: spec.label or spec.method, comparison.at_once()):
        outcomes += abreast(
            [partial(start_or_resume, spec, folder_of(out, spec), listeners, stop, firsts) for spec in group]
        )
        if not all(outcome.finished for outcome in outcomes):
            break
    return outcomes


def start_or_resume(
    spec: Spec,
    place: Path,
    listeners: tuple[Listener, ...],
    stop: Callable[[], bool],
    firsts: FirstModels,
    party: Party | None,
) -> Outcome:
    """Starts a run, or goes on with it."""
    again = (place, listeners, stop, firsts, party)
    return resume(*again) if (place / "spec.json").exists() else start(spec, *again)


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


def refuse_other(spec: Spec, place: Path) -> None:
    """Refuses a folder that holds a run of another specification; one that has ended may have been made elsewhere."""
    if not (place / "spec.json").exists():
        return
    folder = Folder(place)
    if (found := folder.spec()) != spec and folder.begun() and folder.record()["status"] in ("finished", "diverged"):
        found = found.model_copy(update=spec.model_dump(include=HOW_COMPUTED))
    require(found == spec, f"'{place}' holds a run with another specification; choose another folder with out=DIR.")


def _refuse_foreign(out: Path) -> None:
    """Refuses a folder that is no comparison's."""
    require(not out.exists() or out.is_dir(), f"'{out}' is a file; choose another folder with out=DIR.")
    require(not (out / "spec.json").exists(), f"'{out}' holds a single run; choose another folder with out=DIR.")
    inside = out.iterdir() if out.exists() else ()
    foreign = [
        path.name for path in inside if not (path.is_dir() and "-seed" in path.name) and "report" not in path.name
    ]
    require(not foreign, f"'{out}' holds '{min(foreign, default='')}'; choose another folder with out=DIR.")
