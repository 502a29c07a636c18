"""Choosing hyper-parameters: as many trials for every method, judged by validation clients alone.

Trials run on a seed of their own and score nobody but validation clients, so no figure of a test client can have a part
in what is chosen. A trial's figure is the mean, over its looks in the last fifth of the rounds, of what validation
clients reach after personalising. What was chosen is written as a comparison, ready to be run.
"""

import hashlib
import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.table import Column, Table

from fedtailor.disk import write_bytes
from fedtailor.errors import InputError, nearest, require
from fedtailor.run import build
from fedtailor.run.budget import budgeted
from fedtailor.run.compare import check
from fedtailor.run.executor import Hear, Run, Stop, execute, status_of
from fedtailor.run.files import read_json, write_json
from fedtailor.run.record import Folder
from fedtailor.run.spec import Comparison, hyper_names, method_in, shown, value_of
from fedtailor.run.summary import last_looks

Point = dict[str, Any]


class Trial(NamedTuple):
    """One point that was tried: its figure, NaN if it diverged, None if it has not been run to the end."""

    word: str
    point: Point
    run: Run
    figure: float | None


def tune(
    comparison: Comparison,
    out: Path,
    jobs: int = 1,
    hear: Hear = bool,
    stop: Stop = bool,
    tell: Callable[[str], object] = bool,
) -> list[Trial]:
    """Runs the trials that have not been run, and writes what they were and, once all are there, what is chosen.

    `tell` is told, in a line, how many rounds each method gets if these are not what all have equally many of.
    """
    trials = ready(comparison, out, tell)
    execute([trial.run for trial in trials], jobs, hear, stop)
    return judged(comparison, trials, out)


def ready(comparison: Comparison, out: Path, tell: Callable[[str], object] = bool, scenario: str = "") -> list[Trial]:
    """The trials, none of them run, after everything has been checked, with the rounds that each can afford."""
    trials = trials_of(comparison, out, scenario)
    data = build.dataset(trials[0].run.spec)
    people = len(data.groups["validation"])
    require(
        people > 0, f"tune: data set '{data.name}' has no validation clients; give it some (validation_clients=0.1)."
    )
    specs, said = budgeted(comparison, [trial.run.spec for trial in trials])
    if said:
        tell(said)
    made = [trial._replace(run=trial.run._replace(spec=spec)) for trial, spec in zip(trials, specs, strict=True)]
    check([trial.run for trial in made], "another trial")
    return made


def judged(comparison: Comparison, trials: Iterable[Trial], out: Path) -> list[Trial]:
    """The trials with what they reached, which is written down, as is what they have chosen once all have ended."""
    found = [trial._replace(figure=_figure(trial.run.place)) for trial in trials]
    ended = [trial for trial in found if trial.figure is not None]
    if ended:
        write_json(out / "trials.json", [_listed(each) for each in ended])
    if len(ended) == len(found):
        write_bytes(out / "chosen.toml", chosen_file(comparison, found).encode())
    return found


def trials_of(comparison: Comparison, out: Path, scenario: str = "") -> list[Trial]:
    """Every trial of every method, none of them run."""
    made = []
    for word in comparison.methods:
        for number, point in enumerate(points(comparison, word)):
            spec = comparison.spec_of(word, comparison.tune_seed, hyper=point, scored="validation")
            run = Run(spec, out / "trials" / f"{word}-{number}", scenario)
            made.append(Trial(word, point, run, None))
    return made


def points(comparison: Comparison, word: str) -> list[Point]:
    """The points that a method is tried at: all of a grid, or as many as there are trials, drawn from it."""
    space, trials = _space(comparison, word), comparison.trials
    draws = np.random.default_rng(int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "little"))
    if any(isinstance(values, _Range) for values in space.values()):
        return [{key: _drawn(values, draws) for key, values in space.items()} for _ in range(trials)]
    grid = [dict(zip(space, values, strict=True)) for values in itertools.product(*space.values())]
    few = f"{word}: there are {len(grid)} points to try, but {trials} trials"
    require(len(grid) >= trials, f"{few}; name more values, or take fewer trials (trials={len(grid)}).")
    return [grid[place] for place in np.sort(draws.permutation(len(grid))[:trials])]


def best(trials: Iterable[Trial], higher_is_better: bool = True) -> Trial:
    """The trial with the best figure; the first of equals."""
    sign = 1 if higher_is_better else -1
    found = max(trials, key=lambda trial: -math.inf if _failed(trial) else sign * float(trial.figure or 0))
    require(not _failed(found), f"{found.word}: every trial diverged; try smaller steps.")
    return found


def winner_of(trials: list[Trial]) -> Trial:
    """The best trial of a method, by the figure that its records are about."""
    return best(trials, _higher(trials))


def chosen_file(comparison: Comparison, trials: list[Trial]) -> str:
    """Return the comparison with what was chosen, as a TOML file that begins with what every trial reached."""
    own = {word: [trial for trial in trials if trial.word == word] for word in comparison.methods}
    points = {word: winner_of(tried).point for word, tried in own.items()}
    hyper = {word: comparison.hyper.get(word, {}) | point for word, point in points.items()}
    chosen = comparison.model_copy(update={"hyper": comparison.hyper | hyper, "chosen": points})
    reached = [f"# {word}: validation clients reached {', '.join(map(_said, tried))}\n" for word, tried in own.items()]
    return "".join(reached) + shown(chosen)


def table(trials: list[Trial]) -> Table:
    """Every trial in a line, with the chosen one of each method marked once all of these are there."""
    made = Table("method", "tried", Column("validation clients", justify="right"), "", box=None, pad_edge=False)
    for word in dict.fromkeys(trial.word for trial in trials):
        own = [trial for trial in trials if trial.word == word]
        whole = all(trial.figure is not None for trial in own) and not all(_failed(trial) for trial in own)
        winner = winner_of(own) if whole else None
        for trial in own:
            reached = "" if trial.figure is None else "diverged" if _failed(trial) else f"{trial.figure:.4f}"
            made.add_row(word, _at(trial), reached, "chosen" if trial is winner else "")
    return made


class _Range(NamedTuple):
    low: float
    high: float


def _space(comparison: Comparison, word: str) -> dict[str, Any]:
    """What is tried of a method: what is meant for all that have it, for the method, and for this one of its kind."""
    valid = hyper_names(word)
    for_all = {key: values for key, values in comparison.tune.items() if not isinstance(values, dict) and key in valid}
    own = {**comparison.tune.get(method_in(word), {}), **comparison.tune.get(word, {})}
    for key in own:
        require(key in valid, f"tune: {word} has no hyper-parameter '{key}'; {nearest(key, valid)}")
    space = {key: _values(key, values) for key, values in {**for_all, **own}.items()}
    require(bool(space), f"tune: nothing to try is named for {word}; say, for example, tune.lr=0.01,0.03,0.1,0.3.")
    return space


def _values(key: str, given: Any) -> list[Any] | _Range:
    if isinstance(given, str) and ".." in given:
        low, high = (value_of(part) for part in given.split("..", 1))
        good = all(isinstance(end, int | float) for end in (low, high)) and 0 < low < high
        require(good, f"tune: {key} must be like 0.01..0.3, from a positive number to a larger one, got {given!r}.")
        return _Range(float(low), float(high))
    values = given if isinstance(given, list) else [given]
    require(bool(values), f"tune: {key} must have values to try, got none.")
    return values


def _drawn(values: list[Any] | _Range, draws: np.random.Generator) -> Any:
    """A value of a list, or a number between two, evenly on a logarithmic scale, with three digits."""
    if isinstance(values, _Range):
        return float(f"{math.exp(draws.uniform(math.log(values.low), math.log(values.high))):.3g}")
    return values[draws.integers(len(values))]


def _figure(place: Path) -> float | None:
    """What a trial has reached; NaN if it diverged, None if it has not come to its end."""
    status = status_of(place)
    if status == "diverged":
        return math.nan
    return validated(Folder(place).record()) if status == "finished" else None


def validated(record: Mapping[str, Any]) -> float:
    """What validation clients reached after personalising, over the looks in the last fifth of the rounds."""
    metric, total = record["metric"]["name"], record["spec"]["rounds"]
    looks = last_looks(record["rounds"], total)
    figures = [entry["scores"]["validation"]["after"][metric] for entry in looks]
    return float(np.mean(figures))


def _failed(trial: Trial) -> bool:
    return trial.figure is None or not math.isfinite(trial.figure)


def _higher(trials: list[Trial]) -> bool:
    for trial in trials:
        try:
            return bool(read_json(trial.run.place / "record.json")["metric"]["higher_is_better"])
        except (InputError, OSError, KeyError):
            continue
    raise InputError(f"tune: no trial of {trials[0].word} has a record.")


def _said(trial: Trial) -> str:
    return f"{'nothing (diverged)' if _failed(trial) else f'{trial.figure:.4f}'} ({_at(trial)})"


def _at(trial: Trial) -> str:
    return " ".join(f"{key}={value}" for key, value in trial.point.items())


def _listed(trial: Trial) -> dict[str, Any]:
    figure = None if _failed(trial) else trial.figure
    return {"method": trial.word, "point": trial.point, "validation": figure, "run": str(trial.run.place.name)}
