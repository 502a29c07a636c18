"""Tune hyper-parameters on validation clients alone, with as many trials for every method.

Trials evaluate validation clients only, so no score of a test client can influence the choice.
Where each seed of the comparison has a split of the data of its own, so do trials, and what a seed
runs with is chosen by its own validation clients: those of another seed may be among the clients
that it scores. All other draws of trials have a seed of their own. The score of a trial is the mean
headline metric of validation clients after personalizing, over the evaluations in the last fifth of
the rounds. The choice is written as a comparison that can be run.
"""

import hashlib
import itertools
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pydantic import RootModel
from rich.table import Table

from fedtailor.errors import InputError, is_number, require, require_distinct, suggest_name
from fedtailor.experiments.budget import apply_budget
from fedtailor.experiments.compare import check_runs
from fedtailor.experiments.executor import OnEvent, PlannedRun, ShouldStop, execute
from fedtailor.storage.manifest import ListedFolder
from fedtailor.storage.typed_json import encode_model, parse_model
from fedtailor.training import from_config
from fedtailor.training.config import ComparisonConfig, list_hparam_names, parse_method
from fedtailor.training.overrides import format_toml, parse_value
from fedtailor.training.record.schema import MetricInfo, RecordPart, RunRecord
from fedtailor.training.record.summary import compute_final_window
from fedtailor.training.run_dir import RunDir

HParamPoint = dict[str, Any]
"""Values of hyper-parameters by name."""
MAX_POINTS = 1_000_000
"""Points of a grid at most; they are all listed before trials are drawn from them."""
TRIALS_FILE = "trials.json"
TUNED_FILE = "tuned.toml"
TRIALS_KIND = "trials"
"""What the manifest says that the folder of trials holds."""
TRIALS_REMEDY = "repeat the command with the same out, which writes it again from the trials."
"""End of a message about a file that is not what was written: what to do."""


class Trial(NamedTuple):
    """A point of the search space with its score: NaN if it diverged, None if it has not ended."""

    variant: str
    point: HParamPoint
    data_seed: int
    run: PlannedRun
    score: float | None


class TrialEntry(RecordPart):
    """A trial that has ended, as `trials.json` lists it."""

    method: str  # with the label that tells variants of it apart
    point: HParamPoint
    data_seed: int
    validation: float | None  # the score; None if it diverged
    run: str  # the name of its folder


class TrialsFile(RootModel[list[TrialEntry]]):
    """The content of `trials.json`."""


def tune(
    comparison: ComparisonConfig,
    out: Path,
    jobs: int = 1,
    on_event: OnEvent = bool,
    should_stop: ShouldStop = bool,
    on_message: Callable[[str], object] = bool,
) -> list[Trial]:
    """Run the trials that have not ended, and write their scores.

    Once all have ended, the choice is written too.

    Args:
        comparison: The methods, and what is tried of each.
        out: The folder of the trials, of `trials.json`, of `tuned.toml` and of their manifest.
        jobs: Number of processes.
        on_event: Called with every event of a trial.
        should_stop: Whether to stop after the present rounds.
        on_message: Called with the number of trials, and with the rounds of each method if the
            budget is not in rounds.
    """
    trials = prepare_trials(comparison, out, on_message)
    execute([trial.run for trial in trials], jobs, on_event, should_stop)
    return evaluate_trials(comparison, trials, out)


def prepare_trials(
    comparison: ComparisonConfig,
    out: Path,
    on_message: Callable[[str], object] = bool,
    comparison_name: str = "",
) -> list[Trial]:
    """Return the trials, none of them run, after everything has been checked.

    Args:
        comparison: The methods, and what is tried of each.
        out: The folder of the trials.
        on_message: Called with the number of trials, and with the rounds of each method if the
            budget is not in rounds.
        comparison_name: The name of the comparison, if there are others beside it.
    """
    trials = make_trials(comparison, out, comparison_name)
    if _open_folder(out).has_manifest():
        _open_folder(out).read_manifest()  # refuses one that is not what was written
    data = from_config.load_dataset(trials[0].run.config)
    num_clients = len(data.groups["validation"])
    require(
        num_clients > 0,
        f"tune: data set '{data.name}' has no validation clients; give it some "
        "(validation_clients=0.1).",
    )
    configs, message = apply_budget(comparison, [trial.run.config for trial in trials])
    prepared = [
        trial._replace(run=trial.run._replace(config=config))
        for trial, config in zip(trials, configs, strict=True)
    ]
    check_runs([trial.run for trial in prepared], "another trial")
    on_message(_describe_trials(comparison))
    if message:
        on_message(message)
    return prepared


def evaluate_trials(
    comparison: ComparisonConfig, trials: Iterable[Trial], out: Path
) -> list[Trial]:
    """Return the trials with their scores, and write these.

    Once all have ended, the choice is written too.

    Args:
        comparison: The methods, and what was tried of each.
        trials: All trials.
        out: The folder of `trials.json` and `tuned.toml`.
    """
    evaluated = [trial._replace(score=_read_score(trial.run.path)) for trial in trials]
    ended = [trial for trial in evaluated if trial.score is not None]
    contents = {}
    if ended:
        contents[TRIALS_FILE] = encode_model(TrialsFile([_make_entry(trial) for trial in ended]))
    if len(ended) == len(evaluated):
        contents[TUNED_FILE] = format_tuned_comparison(comparison, evaluated).encode()
    if contents:
        _open_folder(out).create_or_write(TRIALS_KIND, contents)
    return evaluated


def read_trials(out: Path) -> list[TrialEntry] | None:
    """Return the trials in a folder that have ended; None if none has."""
    path = out / TRIALS_FILE
    if not path.exists() and not _open_folder(out).has_manifest():
        return None
    return parse_model(path, _open_folder(out).read(TRIALS_FILE), TrialsFile).root


def _open_folder(out: Path) -> ListedFolder:
    return ListedFolder(out, TRIALS_REMEDY)


def make_trials(comparison: ComparisonConfig, out: Path, comparison_name: str = "") -> list[Trial]:
    """Return every trial of every method: the same points for all seeds of the data.

    Args:
        comparison: The methods, and what is tried of each.
        out: The folder of the trials.
        comparison_name: The name of the comparison, if there are others beside it.
    """
    trials = []
    for variant in comparison.methods:
        points = make_points(comparison, variant)
        for data_seed in comparison.list_data_seeds():
            on_data = comparison.fix_data_seed(data_seed)
            for index, point in enumerate(points):
                config = on_data.make_run_config(
                    variant, comparison.tuning_seed, hparams=point, eval_groups="validation"
                )
                path = out / "trials" / f"{variant}-{index}-data{data_seed}"
                run = PlannedRun(config, path, comparison_name)
                trials.append(Trial(variant, point, data_seed, run, None))
    return trials


def _describe_trials(comparison: ComparisonConfig) -> str:
    """Return how many trials there are, and of what."""
    num_methods = len(comparison.methods)
    num_trials = comparison.trials * num_methods
    per_method = f"{_count(comparison.trials, 'trial')} of {_count(num_methods, 'method')}"
    if comparison.data_options.get("seed") is not None:
        seed = comparison.get_data_seed(0)
        return f"{per_method} on the data of seed {seed}, for all runs: {num_trials} in all."
    data_seeds = comparison.list_data_seeds()
    return (
        f"{per_method} on the data of {_count(len(data_seeds), 'seed')} "
        f"({', '.join(map(str, data_seeds))}): {num_trials * len(data_seeds)} in all. "
        "With data.seed=N all runs share one split of the data, and trials are run once."
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def make_points(comparison: ComparisonConfig, variant: str) -> list[HParamPoint]:
    """Return the points of a method: drawn from its ranges, or distinct ones drawn from its grid.

    The draws depend on the name of the variant alone.
    """
    space = _build_space(comparison, variant)
    trials = comparison.trials
    digest = hashlib.blake2b(variant.encode(), digest_size=8).digest()
    rng = np.random.default_rng(int.from_bytes(digest, "little"))
    if any(isinstance(values, _Range) for values in space.values()):
        return [
            {key: _sample_value(values, rng) for key, values in space.items()}
            for _ in range(trials)
        ]
    num_points = math.prod(map(len, space.values()))
    require(
        num_points <= MAX_POINTS,
        f"{variant}: there are {num_points:,} points to try, more than {MAX_POINTS:,}; "
        "name fewer values, or a range.",
    )
    grid = [dict(zip(space, values, strict=True)) for values in itertools.product(*space.values())]
    require(
        len(grid) >= trials,
        f"{variant}: there are {len(grid)} points to try, but {trials} trials; "
        f"name more values, or take fewer trials (trials={len(grid)}).",
    )
    return [grid[index] for index in np.sort(rng.permutation(len(grid))[:trials])]


def select_best(trials: Iterable[Trial], higher_is_better: bool = True) -> Trial:
    """Return the trial with the best score, the first of equal ones."""
    sign = 1 if higher_is_better else -1

    def rank(trial: Trial) -> float:
        if trial.score is None or _has_failed(trial):
            return -math.inf
        return sign * trial.score

    best = max(trials, key=rank)
    require(not _has_failed(best), f"{best.variant}: every trial diverged; try smaller steps.")
    return best


def select_winner(trials: list[Trial]) -> Trial:
    """Return the best trial of a method on the same data by the headline metric of its records."""
    metric = _find_metric(trials)
    if metric is None:
        raise InputError(f"tune: no trial of {trials[0].variant} has a record.")
    return select_best(trials, metric.higher_is_better)


def select_points(trials: Iterable[Trial]) -> dict[str, dict[int, HParamPoint]]:
    """Return the best points by variant and by the seed of the data that chose them."""
    points: dict[str, dict[int, HParamPoint]] = {}
    for (variant, data_seed), group in _group_trials(trials).items():
        points.setdefault(variant, {})[data_seed] = select_winner(group).point
    return points


def _group_trials(trials: Iterable[Trial]) -> dict[tuple[str, int], list[Trial]]:
    """Return the trials that compete with each other: of one variant, on the same data."""
    groups: dict[tuple[str, int], list[Trial]] = {}
    for trial in trials:
        groups.setdefault((trial.variant, trial.data_seed), []).append(trial)
    return groups


def format_tuned_comparison(comparison: ComparisonConfig, trials: list[Trial]) -> str:
    """Return the comparison with the chosen values as TOML, below comments with all scores."""
    tuned = comparison.add_tuned(select_points(trials))
    metric = _find_metric(trials)
    comments = []
    for (variant, data_seed), group in _group_trials(trials).items():
        reached = ", ".join(_format_trial(trial, metric) for trial in group)
        comments.append(
            f"# {variant}, data of seed {data_seed}: validation clients reached {reached}\n"
        )
    heading = f"# Scores are {_format_unit(metric)}.\n"
    return "".join([heading, *comments]) + format_toml(tuned)


def build_trial_table(trials: list[Trial]) -> Table:
    """Return a table with a row for each point of a method, and a column for each seed of the data.

    The best trial of a method on the same data is marked once all of these have ended.
    """
    metric = _find_metric(trials)
    table = Table("method", "tried", box=None, pad_edge=False)
    for data_seed in dict.fromkeys(trial.data_seed for trial in trials):
        table.add_column(f"seed {data_seed}", justify="right", no_wrap=True)
    cells_by_row: dict[tuple[str, int], list[str]] = {}
    for (variant, _), group in _group_trials(trials).items():
        winner = _find_winner(group)
        for index, trial in enumerate(group):
            cells = cells_by_row.setdefault((variant, index), [_format_point(trial)])
            mark = "*" if trial is winner else " "
            cells.append(format_score(trial, metric) + mark)
    for (variant, _), cells in cells_by_row.items():
        table.add_row(variant, *cells)
    return table


def format_score(trial: Trial, metric: MetricInfo | None) -> str:
    """Return the score of a trial, in percent where the metric is; "" if it has not ended."""
    if trial.score is None:
        return ""
    if math.isnan(trial.score):
        return "diverged"
    is_percent = metric is not None and metric.is_percent
    return f"{100 * trial.score:.2f}" if is_percent else f"{trial.score:.4f}"


def describe_trial_table(trials: Iterable[Trial]) -> str:
    """Return what the figures and marks of the table of trials are."""
    return (
        f"Validation clients after personalizing, {_format_unit(_find_metric(trials))}; "
        "*: chosen for the runs on the data of that seed."
    )


def _find_winner(trials: list[Trial]) -> Trial | None:
    """Return the best of the trials that compete; None until all have ended, or if none could."""
    is_complete = all(trial.score is not None for trial in trials)
    has_score = any(not _has_failed(trial) for trial in trials)
    return select_winner(trials) if is_complete and has_score else None


class _Range(NamedTuple):
    low: float
    high: float


def _build_space(comparison: ComparisonConfig, variant: str) -> dict[str, Any]:
    """Return the values that are tried of a variant, by hyper-parameter.

    Values for all methods are overridden by those for its method, and these by those for itself.
    """
    valid = list_hparam_names(variant)
    for_all = {
        key: values
        for key, values in comparison.tune.items()
        if not isinstance(values, dict) and key in valid
    }
    for_method = comparison.tune.get(parse_method(variant), {})
    for_variant = comparison.tune.get(variant, {})
    for key in for_method | for_variant:
        require(
            key in valid,
            f"tune: {variant} has no hyper-parameter '{key}'; {suggest_name(key, valid)}",
        )
    all_values = for_all | for_method | for_variant
    space = {key: _parse_values(key, values) for key, values in all_values.items()}
    require(
        bool(space),
        f"tune: nothing to try is named for {variant}; say, for example, "
        "tune.lr=0.01,0.03,0.1,0.3.",
    )
    return space


def _parse_values(key: str, raw: Any) -> list[Any] | _Range:
    if isinstance(raw, str) and ".." in raw:
        low, high = (parse_value(part) for part in raw.split("..", 1))
        is_valid = is_number(low) and is_number(high) and 0 < low < high
        require(
            is_valid,
            f"tune: {key} must be like 0.01..0.3, from a positive number to a larger one, got "
            f"{raw!r}.",
        )
        return _Range(float(low), float(high))
    values = raw if isinstance(raw, list) else [raw]
    require(bool(values), f"tune: {key} must have values to try, got none.")
    require_distinct(f"tune: {key}", values)
    return values


def _sample_value(values: list[Any] | _Range, rng: np.random.Generator) -> Any:
    """Return a value of a list, or a log-uniform number from a range, rounded to three digits."""
    if isinstance(values, _Range):
        log_value = rng.uniform(math.log(values.low), math.log(values.high))
        return float(f"{math.exp(log_value):.3g}")
    return values[rng.integers(len(values))]


def _read_score(run_path: Path) -> float | None:
    """Return the score of a trial: NaN if it diverged, None if it has not ended."""
    run_dir = RunDir(run_path)
    status = run_dir.read_status()
    if status == "diverged":
        return math.nan
    if status == "finished":
        return compute_validation_score(run_dir.read_record())
    return None


def compute_validation_score(record: RunRecord) -> float:
    """Return the mean headline metric of validation clients after personalizing.

    The mean is over clients, and over the evaluations in the last fifth of the rounds.
    """
    window = compute_final_window(record.rounds, record.num_rounds)
    value = window.mean["validation"]["after"][record.metric.name]
    return math.nan if value is None else value


def _has_failed(trial: Trial) -> bool:
    return trial.score is None or not math.isfinite(trial.score)


def _find_metric(trials: Iterable[Trial]) -> MetricInfo | None:
    """Return the metric of the scores; None if no trial has a record."""
    for trial in trials:
        try:
            return RunDir(trial.run.path).read_record().metric
        except (InputError, OSError):
            continue
    return None


def _format_unit(metric: MetricInfo | None) -> str:
    """Return the name of the metric with its unit; "score" if no trial has a record."""
    if metric is None:
        return "score"
    return f"{metric.name} in %" if metric.is_percent else metric.name


def _format_trial(trial: Trial, metric: MetricInfo | None) -> str:
    score = "nothing (diverged)" if _has_failed(trial) else format_score(trial, metric)
    return f"{score} ({_format_point(trial)})"


def _format_point(trial: Trial) -> str:
    return " ".join(f"{key}={value}" for key, value in trial.point.items())


def _make_entry(trial: Trial) -> TrialEntry:
    score = None if _has_failed(trial) else trial.score
    return TrialEntry(
        method=trial.variant,
        point=trial.point,
        data_seed=trial.data_seed,
        validation=score,
        run=trial.run.path.name,
    )
