"""A study from beginning to end: what is chosen first, then all runs of all parts, in as many processes as wanted.

    OUT/study.json                                  which study, at which scale
    OUT/PART/METHOD-seedN, OUT/PART/VALUE/...       the runs
    OUT/PART/tune/                                  the trials, if something is chosen
    OUT/PART/seconds.jsonl                          how long it took, for as often as it was gone on with

The same call goes on where it was stopped, at any moment and by whatever.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fedtailor.errors import require
from fedtailor.run.budget import budgeted
from fedtailor.run.compare import check, runs_of
from fedtailor.run.executor import ENDED, Event, Hear, Run, Stop, execute, status_of
from fedtailor.run.files import read_json, write_json
from fedtailor.run.spec import Comparison
from fedtailor.run.study.planning import TUNED, Asked, Chosen, Planned, Scenario, scenarios, tuning_of
from fedtailor.run.tuning import Trial, judged, ready, winner_of

STUDY, SECONDS = "study.json", "seconds.jsonl"


class Choice(NamedTuple):
    """The trials of a part, which choose hyper-parameters before it is run."""

    comparison: Comparison
    trials: list[Trial]
    place: Path


class Ready(NamedTuple):
    """A study that can be run: everything has been checked, and nothing has been begun."""

    asked: Asked
    planned: list[Planned]
    out: Path
    trials: dict[str, Choice]
    rounds: list[int]  # of every run, those among the trials included


class Ran(NamedTuple):
    """A part that was run, as far as time allowed."""

    planned: Planned
    scenarios: list[Scenario]
    runs: list[list[Run]]  # of each scenario
    finished: bool


def prepare(asked: Asked, planned: Sequence[Planned], out: Path) -> Ready:
    """Checks everything that can be checked before anything is run."""
    refuse_foreign(asked, out)
    trials: dict[str, Choice] = {}
    rounds = []
    for each in planned:
        name = each.part.name
        comparison = tuning_of(asked, each)
        if comparison is not None:
            place = out / name / TUNED
            trials[name] = Choice(comparison, ready(comparison, place, scenario=f"{name} {TUNED}"), place)
            rounds += [trial.run.spec.rounds for trial in trials[name].trials]
        found = _ran(asked, each, out, _chosen(trials.get(name)))
        for runs in found.runs:
            check(runs)
            rounds += [run.spec.rounds for run in runs]
    return Ready(asked, list(planned), out, trials, rounds)


def run(ready: Ready, jobs: int = 1, hear: Hear = bool, stop: Stop = bool) -> list[Ran]:
    """Runs what has not been run yet, and ends early when asked to stop."""
    asked, planned, out, trials, _ = ready
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / STUDY, {"study": asked.study.name, "scale": asked.scale})
    _work([trial.run for choice in trials.values() for trial in choice.trials], out, jobs, hear, stop)
    ran = []
    for each in planned:
        choice = trials.get(each.part.name)
        found = _chosen(choice)
        undecided = choice is not None and found is None
        ran.append(Ran(each, [], [], False) if undecided else _ran(asked, each, out, found))
    _work([run for each in ran for runs in each.runs for run in runs], out, jobs, hear, stop)
    return [each._replace(finished=_has_ended(each)) for each in ran]


def refuse_foreign(asked: Asked, out: Path) -> None:
    """Refuses a folder that is something else's."""
    require(not out.exists() or out.is_dir(), f"'{out}' is a file; choose another folder with out=DIR.")
    mine, path = {"study": asked.study.name, "scale": asked.scale}, out / STUDY
    held = read_json(path) if path.exists() else mine
    said = f"'{out}' holds study {held['study']} at scale={held['scale']}; choose another folder with out=DIR."
    require(held == mine, said)
    other = "" if path.exists() or not out.exists() else next((each.name for each in sorted(out.iterdir())), "")
    require(not other, f"'{out}' holds '{other}'; choose another folder with out=DIR.")


def minutes_of(part: str, out: Path) -> float | None:
    """How long a part took, its runs having gone beside each other; None if nobody knows."""
    path = out / part / SECONDS
    lines = path.read_text().splitlines() if path.exists() else []
    entries = [json.loads(line) for line in lines if line.endswith("}")]  # the last one may have been cut off
    return sum(entry["seconds"] / entry["jobs"] for entry in entries) / 60 if entries else None


def _chosen(choice: Choice | None) -> Chosen | None:
    """What the trials of a part have chosen, for each method; None without trials, or until all of them have ended."""
    if choice is None:
        return None
    found = judged(*choice)
    if any(trial.figure is None for trial in found):
        return None
    own = {word: [trial for trial in found if trial.word == word] for word in choice.comparison.methods}
    return {word: winner_of(trials).point for word, trials in own.items()}


def _ran(asked: Asked, planned: Planned, out: Path, found: Chosen | None) -> Ran:
    made = scenarios(asked, planned, out, found)
    runs = []
    for scenario in made:
        specs, _ = budgeted(scenario.comparison, scenario.comparison.specs())
        runs.append(runs_of(specs, scenario.place, scenario.name))
    return Ran(planned, made, runs, False)


def _has_ended(ran: Ran) -> bool:
    statuses = [status_of(run.place) for runs in ran.runs for run in runs]
    return bool(statuses) and all(status in ENDED for status in statuses)


def _work(runs: Sequence[Run], out: Path, jobs: int, hear: Hear, stop: Stop) -> None:
    """Do what is left of the runs, and note how long each took beside how many others."""
    left = sum(status_of(run.place) not in ENDED for run in runs)
    beside = max(1, min(jobs, left))

    def heard(event: Event) -> None:
        if event.kind in (*ENDED, "stopped"):
            entry = {"seconds": round(event.seconds, 2), "jobs": beside}
            part = event.run.place.relative_to(out).parts[0]
            with (out / part / SECONDS).open("a") as file:
                file.write(json.dumps(entry) + "\n")
        hear(event)

    execute(runs, jobs, heard, stop)
