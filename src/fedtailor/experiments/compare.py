"""Compare methods and seeds on the same clients, cohorts and first weights, in a folder of runs."""

from collections.abc import Callable, Sequence
from pathlib import Path

from fedtailor.engines.context import resolve_device
from fedtailor.errors import require
from fedtailor.experiments.budget import apply_budget
from fedtailor.experiments.executor import (
    ENDED_STATUSES,
    OnEvent,
    PlannedRun,
    ShouldStop,
    check_same_run,
    execute,
)
from fedtailor.training import from_config
from fedtailor.training.config import ComparisonConfig, RunConfig
from fedtailor.training.resources import check_threads
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
    """Run what has not been run yet, after everything has been checked.

    A run that diverges has an outcome like any other, with the status of its record.

    Args:
        comparison: The methods and seeds, and what their runs have in common.
        out: The folder of the runs.
        jobs: Number of processes; with 1 the runs go one after another in this process.
        on_event: Called with every event of a run.
        should_stop: Whether to stop after the present rounds.
        on_message: Called with the rounds of each method if the budget is not in rounds.

    Returns:
        The outcomes of the runs that have begun.
    """
    configs = comparison.make_run_configs()
    _check_out_dir(out)
    configs, message = apply_budget(comparison, configs)
    runs = make_runs(configs, out)
    check_runs(runs)
    if message:
        on_message(message)
    execute(runs, jobs, on_event, should_stop)
    return [_read_outcome(run) for run in runs if RunDir(run.path).has_record()]


def make_runs(
    configs: Sequence[RunConfig], out: Path, comparison_name: str = ""
) -> list[PlannedRun]:
    """Return the runs of a comparison.

    Args:
        configs: Their specifications.
        out: The folder that their folders are in.
        comparison_name: The name of the comparison, if there are others beside it.
    """
    return [PlannedRun(config, get_run_path(out, config), comparison_name) for config in configs]


def check_runs(
    runs: Sequence[PlannedRun], description: str = "a run with another specification"
) -> None:
    """Raise an error if a run cannot begin; one seed of a method stands for all of them."""
    for run in runs:
        check_same_run(run, description)
    new = [run.config for run in runs if not run.path.exists()]
    different = {repr(config.model_copy(update={"seed": 0})): config for config in new}
    if not different:
        return
    for config in new:
        check_threads(config.threads)
    data = from_config.load_dataset(new[0])
    for config in different.values():
        resolve_device(config.device)
        # What fits on the CPU fits on every device, and building there is fast.
        from_config.build_context(config.model_copy(update={"device": "cpu"}), data)


def get_run_path(out: Path, config: RunConfig) -> Path:
    """Return the folder of a run in the folder of a comparison."""
    return out / f"{config.label or config.method}-seed{config.seed}"


def _read_outcome(run: PlannedRun) -> RunOutcome:
    record = RunDir(run.path).read_record()
    return RunOutcome(record, record.status in ENDED_STATUSES)


def _check_out_dir(out: Path) -> None:
    """Raise an error for a folder that holds anything but runs and reports of a comparison."""
    require(
        not out.exists() or out.is_dir(), f"'{out}' is a file; choose another folder with out=DIR."
    )
    require(
        not RunDir(out).exists(),
        f"'{out}' holds a single run; choose another folder with out=DIR.",
    )
    for path in sorted(out.iterdir()) if out.exists() else ():
        is_run = path.is_dir() and "-seed" in path.name
        require(
            is_run or "report" in path.name,
            f"'{out}' holds '{path.name}'; choose another folder with out=DIR.",
        )
