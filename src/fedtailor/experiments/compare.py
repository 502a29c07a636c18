"""Several methods and seeds on the same clients, cohorts and first weights: a folder of runs, one table, one report."""

from collections.abc import Callable, Sequence
from pathlib import Path

from fedtailor.engines import factory
from fedtailor.errors import DivergedError, require
from fedtailor.experiments.budget import apply_budget
from fedtailor.experiments.executor import (
    OnEvent,
    Run,
    ShouldStop,
    check_same_run,
    execute,
    read_status,
)
from fedtailor.training import build
from fedtailor.training.config import ComparisonConfig, RunConfig
from fedtailor.training.run_dir import RunDir
from fedtailor.training.runner import RunOutcome


def compare(
    comparison: ComparisonConfig,
    out: Path,
    jobs: int = 1,
    on_event: OnEvent = bool,
    should_stop: ShouldStop = bool,
    on_message: Callable[[str], object] = bool,
) -> list[RunOutcome]:
    """Runs what has not been run yet, after everything has been checked; ends early when asked to stop.

    `on_message` is told how many rounds each method gets if these are not what all have equally many of. Returns
    the outcomes of the runs that have begun.
    """
    configs = comparison.make_run_configs()
    _check_out_dir(out)
    configs, message = apply_budget(comparison, configs)
    runs = make_runs(configs, out)
    check_runs(runs)
    if message:
        on_message(message)
    execute(runs, jobs, on_event, should_stop)
    return [_read_outcome(run) for run in runs if read_status(run.path)]


def make_runs(configs: Sequence[RunConfig], out: Path, scenario: str = "") -> list[Run]:
    """Return the runs of a comparison, each with its folder."""
    return [Run(config, get_run_path(out, config), scenario) for config in configs]


def check_runs(runs: Sequence[Run], description: str = "a run with another specification") -> None:
    """Refuse what cannot be run, before anything is; of the seeds of a method one stands for all."""
    for run in runs:
        check_same_run(run, description)
    new = [run.config for run in runs if not run.path.exists()]
    different = {config.model_copy(update={"seed": 0}).model_dump_json(): config for config in new}
    if not different:
        return
    data = build.load_dataset(new[0])
    for config in different.values():
        factory.resolve_device(config.device)
        build.build_context(
            config.model_copy(update={"device": "cpu"}), data
        )  # what fits is the same on every device


def get_run_path(out: Path, config: RunConfig) -> Path:
    """Where in a comparison's folder a run is."""
    return out / f"{config.label or config.method}-seed{config.seed}"


def find_runs(out: Path) -> list[Path]:
    """The runs of a folder: itself, or those of a comparison."""
    if (out / "config.json").exists():
        return [out]
    found = sorted(
        (path.parent for path in out.glob("*/config.json")),
        key=lambda run: (run / "config.json").stat().st_mtime_ns,
    )
    require(bool(found), f"'{out}' holds no run.")
    return found


def _read_outcome(run: Run) -> RunOutcome:
    record = RunDir(run.path).read_record()
    if record["status"] == "diverged":
        raise DivergedError(record["problem"])
    return RunOutcome(record, record["status"] == "finished")


def _check_out_dir(out: Path) -> None:
    """Refuses a folder that is no comparison's."""
    require(
        not out.exists() or out.is_dir(), f"'{out}' is a file; choose another folder with out=DIR."
    )
    require(
        not (out / "config.json").exists(),
        f"'{out}' holds a single run; choose another folder with out=DIR.",
    )
    inside = out.iterdir() if out.exists() else ()
    foreign = [
        path.name
        for path in inside
        if not (path.is_dir() and "-seed" in path.name) and "report" not in path.name
    ]
    require(
        not foreign,
        f"'{out}' holds '{min(foreign, default='')}'; choose another folder with out=DIR.",
    )
