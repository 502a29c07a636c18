"""Choosing hyper-parameters: as many trials for every method, judged by validation clients alone.

Trials run on a seed of their own and score nobody but validation clients, so no figure of a test client can have a part
in what is chosen. A trial's figure is the mean, over its looks in the last fifth of the rounds, of what validation
clients reach after personalizing. What was chosen is written as a comparison, ready to be run.
"""

import hashlib
import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.table import Column, Table

from fedtailor.errors import InputError, require, suggest_name
from fedtailor.evaluation.summary import get_last_eval_points
from fedtailor.experiments.budget import apply_budget
from fedtailor.experiments.compare import check_runs
from fedtailor.experiments.executor import OnEvent, Run, ShouldStop, execute, read_status
from fedtailor.storage.atomic import write_bytes
from fedtailor.storage.files import read_json, write_json
from fedtailor.training import build
from fedtailor.training.config import ComparisonConfig, list_hparam_names, parse_method
from fedtailor.training.overrides import parse_value, to_toml
from fedtailor.training.run_dir import RunDir

HParamPoint = dict[str, Any]


class Trial(NamedTuple):
    """One point that was tried: its figure, NaN if it diverged, None if it has not been run to the end."""

    variant: str
    point: HParamPoint
    run: Run
    score: float | None


def tune(
    comparison: ComparisonConfig,
    out: Path,
    jobs: int = 1,
    on_event: OnEvent = bool,
    should_stop: ShouldStop = bool,
    on_message: Callable[[str], object] = bool,
) -> list[Trial]:
    """Runs the trials that have not been run, and writes what they were and, once all are there, what is chosen.

    `on_message` is told, in a line, how many rounds each method gets if these are not what all have equally many of.
    """
    trials = prepare_trials(comparison, out, on_message)
    execute([trial.run for trial in trials], jobs, on_event, should_stop)
    return evaluate_trials(comparison, trials, out)


def prepare_trials(
    comparison: ComparisonConfig,
    out: Path,
    on_message: Callable[[str], object] = bool,
    scenario: str = "",
) -> list[Trial]:
    """The trials, none of them run, after everything has been checked, with the rounds that each can afford."""
    trials = make_trials(comparison, out, scenario)
    data = build.load_dataset(trials[0].run.config)
    num_clients = len(data.groups["validation"])
    require(
        num_clients > 0,
        f"tune: data set '{data.name}' has no validation clients; give it some (validation_clients=0.1).",
    )
    configs, message = apply_budget(comparison, [trial.run.config for trial in trials])
    if message:
        on_message(message)
    prepared = [
        trial._replace(run=trial.run._replace(config=config))
        for trial, config in zip(trials, configs, strict=True)
    ]
    check_runs([trial.run for trial in prepared], "another trial")
    return prepared


def evaluate_trials(
    comparison: ComparisonConfig, trials: Iterable[Trial], out: Path
) -> list[Trial]:
    """The trials with what they reached, which is written down, as is what they have chosen once all have ended."""
    evaluated = [trial._replace(score=_read_score(trial.run.path)) for trial in trials]
    ended = [trial for trial in evaluated if trial.score is not None]
    if ended:
        write_json(out / "trials.json", [_trial_to_json(each) for each in ended])
    if len(ended) == len(evaluated):
        write_bytes(out / "tuned.toml", format_tuned_comparison(comparison, evaluated).encode())
    return evaluated


def make_trials(comparison: ComparisonConfig, out: Path, scenario: str = "") -> list[Trial]:
    """Every trial of every method, none of them run."""
    trials = []
    for variant in comparison.methods:
        for index, point in enumerate(make_points(comparison, variant)):
            config = comparison.make_run_config(
                variant, comparison.tuning_seed, hparams=point, eval_groups="validation"
            )
            run = Run(config, out / "trials" / f"{variant}-{index}", scenario)
            trials.append(Trial(variant, point, run, None))
    return trials


def make_points(comparison: ComparisonConfig, variant: str) -> list[HParamPoint]:
    """The points that a method is tried at: all of a grid, or as many as there are trials, drawn from it."""
    space, trials = _build_space(comparison, variant), comparison.trials
    rng = np.random.default_rng(
        int.from_bytes(hashlib.blake2b(variant.encode(), digest_size=8).digest(), "little")
    )
    if any(isinstance(values, _Range) for values in space.values()):
        return [
            {key: _sample_value(values, rng) for key, values in space.items()}
            for _ in range(trials)
        ]
    grid = [dict(zip(space, values, strict=True)) for values in itertools.product(*space.values())]
    few = f"{variant}: there are {len(grid)} points to try, but {trials} trials"
    require(
        len(grid) >= trials, f"{few}; name more values, or take fewer trials (trials={len(grid)})."
    )
    return [grid[index] for index in np.sort(rng.permutation(len(grid))[:trials])]


def select_best(trials: Iterable[Trial], higher_is_better: bool = True) -> Trial:
    """The trial with the best figure; the first of equals."""
    sign = 1 if higher_is_better else -1
    found = max(
        trials,
        key=lambda trial: -math.inf if _has_failed(trial) else sign * float(trial.score or 0),
    )
    require(not _has_failed(found), f"{found.variant}: every trial diverged; try smaller steps.")
    return found


def select_winner(trials: list[Trial]) -> Trial:
    """The best trial of a method, by the figure that its records are about."""
    return select_best(trials, _is_higher_better(trials))


def format_tuned_comparison(comparison: ComparisonConfig, trials: list[Trial]) -> str:
    """Return the comparison with what was chosen, as a TOML file that begins with what every trial reached."""
    own = {
        variant: [trial for trial in trials if trial.variant == variant]
        for variant in comparison.methods
    }
    points = {variant: select_winner(tried).point for variant, tried in own.items()}
    hparams = {
        variant: comparison.hparams.get(variant, {}) | point for variant, point in points.items()
    }
    tuned = comparison.model_copy(update={"hparams": comparison.hparams | hparams, "tuned": points})
    reached = [
        f"# {variant}: validation clients reached {', '.join(map(_format_trial, tried))}\n"
        for variant, tried in own.items()
    ]
    return "".join(reached) + to_toml(tuned)


def build_trial_table(trials: list[Trial]) -> Table:
    """Every trial in a line, with the chosen one of each method marked once all of these are there."""
    table = Table(
        "method",
        "tried",
        Column("validation clients", justify="right"),
        "",
        box=None,
        pad_edge=False,
    )
    for variant in dict.fromkeys(trial.variant for trial in trials):
        own = [trial for trial in trials if trial.variant == variant]
        is_complete = all(trial.score is not None for trial in own) and not all(
            _has_failed(trial) for trial in own
        )
        winner = select_winner(own) if is_complete else None
        for trial in own:
            reached = (
                ""
                if trial.score is None
                else "diverged"
                if _has_failed(trial)
                else f"{trial.score:.4f}"
            )
            table.add_row(
                variant, _format_point(trial), reached, "tuned" if trial is winner else ""
            )
    return table


class _Range(NamedTuple):
    low: float
    high: float


def _build_space(comparison: ComparisonConfig, variant: str) -> dict[str, Any]:
    """What is tried of a method: what is meant for all that have it, for the method, and for this one of its kind."""
    valid = list_hparam_names(variant)
    for_all = {
        key: values
        for key, values in comparison.tune.items()
        if not isinstance(values, dict) and key in valid
    }
    own = {**comparison.tune.get(parse_method(variant), {}), **comparison.tune.get(variant, {})}
    for key in own:
        require(
            key in valid,
            f"tune: {variant} has no hyper-parameter '{key}'; {suggest_name(key, valid)}",
        )
    space = {key: _parse_values(key, values) for key, values in {**for_all, **own}.items()}
    require(
        bool(space),
        f"tune: nothing to try is named for {variant}; say, for example, tune.lr=0.01,0.03,0.1,0.3.",
    )
    return space


def _parse_values(key: str, raw: Any) -> list[Any] | _Range:
    if isinstance(raw, str) and ".." in raw:
        low, high = (parse_value(part) for part in raw.split("..", 1))
        is_valid = all(isinstance(end, int | float) for end in (low, high)) and 0 < low < high
        require(
            is_valid,
            f"tune: {key} must be like 0.01..0.3, from a positive number to a larger one, got {raw!r}.",
        )
        return _Range(float(low), float(high))
    values = raw if isinstance(raw, list) else [raw]
    require(bool(values), f"tune: {key} must have values to try, got none.")
    return values


def _sample_value(values: list[Any] | _Range, rng: np.random.Generator) -> Any:
    """A value of a list, or a number between two, evenly on a logarithmic scale, with three digits."""
    if isinstance(values, _Range):
        return float(f"{math.exp(rng.uniform(math.log(values.low), math.log(values.high))):.3g}")
    return values[rng.integers(len(values))]


def _read_score(run_path: Path) -> float | None:
    """What a trial has reached; NaN if it diverged, None if it has not come to its end."""
    status = read_status(run_path)
    if status == "diverged":
        return math.nan
    return (
        compute_validation_score(RunDir(run_path).read_record()) if status == "finished" else None
    )


def compute_validation_score(record: Mapping[str, Any]) -> float:
    """What validation clients reached after personalizing, over the looks in the last fifth of the rounds."""
    metric, total = record["metric"]["name"], record["config"]["rounds"]
    eval_points = get_last_eval_points(record["rounds"], total)
    figures = [entry["scores"]["validation"]["after"][metric] for entry in eval_points]
    return float(np.mean(figures))


def _has_failed(trial: Trial) -> bool:
    return trial.score is None or not math.isfinite(trial.score)


def _is_higher_better(trials: list[Trial]) -> bool:
    for trial in trials:
        try:
            return bool(read_json(trial.run.path / "record.json")["metric"]["higher_is_better"])
        except (InputError, OSError, KeyError):
            continue
    raise InputError(f"tune: no trial of {trials[0].variant} has a record.")


def _format_trial(trial: Trial) -> str:
    return f"{'nothing (diverged)' if _has_failed(trial) else f'{trial.score:.4f}'} ({_format_point(trial)})"


def _format_point(trial: Trial) -> str:
    return " ".join(f"{key}={value}" for key, value in trial.point.items())


def _trial_to_json(trial: Trial) -> dict[str, Any]:
    score = None if _has_failed(trial) else trial.score
    return {
        "method": trial.variant,
        "point": trial.point,
        "validation": score,
        "run": str(trial.run.path.name),
    }
