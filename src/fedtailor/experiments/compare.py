"""Compare methods on the same clients, cohorts and first weights, in a folder of runs."""

from collections.abc import Callable, Sequence
from pathlib import Path

from fedtailor.data.dataset import FederatedDataset
from fedtailor.engines.context import resolve_device
from fedtailor.errors import InputError, require
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

DatasetSizes = tuple[int | None, ...]


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
    """Raise an error if a run cannot begin.

    The data of every seed are loaded. Of runs that differ in their seeds alone, one stands for all
    whose data have groups of the same sizes.
    """
    for run in runs:
        check_same_run(run, description)
    new = [run.config for run in runs if not run.path.exists()]
    for config in new:
        check_threads(config.threads)
        resolve_device(config.device)
    configs_by_data: dict[str, list[RunConfig]] = {}
    for config in new:
        configs_by_data.setdefault(repr((config.data, config.data_options)), []).append(config)
    checked: set[tuple[str, DatasetSizes]] = set()
    for configs in configs_by_data.values():
        try:
            _check_on_same_data(configs, checked)
        except InputError as problem:
            if not checked:
                raise
            seed = configs[0].data_seed
            raise InputError(f"With the data of seed {seed}: {problem}") from None


def _check_on_same_data(
    configs: Sequence[RunConfig], checked: set[tuple[str, DatasetSizes]]
) -> None:
    """Raise an error if a run cannot begin, and add those that can to `checked`.

    Args:
        configs: Runs with the same data.
        checked: Runs without their seeds, with the sizes of their data.
    """
    data = from_config.load_dataset(configs[0])
    sizes = _get_sizes(data)
    for config in configs:
        key = (repr(config.without_seeds()), sizes)
        if key not in checked:
            # What fits on the CPU fits on every device, and building there is fast.
            from_config.build_context(config.model_copy(update={"device": "cpu"}), data)
            checked.add(key)


def _get_sizes(data: FederatedDataset) -> DatasetSizes:
    """Return the sizes of groups and server data, by which a run can begin or cannot."""
    num_server_examples = None if data.server is None else len(data.server.x)
    num_clients = (len(data.groups[name]) for name in sorted(data.groups))
    return (num_server_examples, *num_clients)


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
