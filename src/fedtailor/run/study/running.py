"""A study from beginning to end: what is chosen first, then all runs of all parts, in as many processes as wanted.

    OUT/study.json                                  which study, at which scale
    OUT/PART/METHOD-seedN, OUT/PART/VALUE/...       the runs
    OUT/PART/tune/                                  the trials, if something is chosen
    OUT/PART/seconds.jsonl                          how long it took, for as often as it was gone on with

The same call goes on where it was stopped, at any moment and by whatever.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from fedtailor.errors import require
from fedtailor.run.files import read_json, write_json
from fedtailor.run.spec import Spec
from fedtailor.run.study.choosing import Choice, choices, chosen
from fedtailor.run.study.planning import Asked, Chosen, Planned, Scenario, scenarios
from fedtailor.run.study.processes import work_all
from fedtailor.run.study.working import Hear, Unit, check, runs_of, units_of

STUDY, SECONDS = "study.json", "seconds.jsonl"


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
    runs: list[list[tuple[Spec, Path]]]  # of each scenario
    finished: bool


def prepare(asked: Asked, planned: Sequence[Planned], out: Path) -> Ready:
    """Checks everything that can be checked before anything is run."""
    refuse_foreign(asked, out)
    trials, rounds = choices(asked, planned, out), []
    for each in planned:
        own = trials.get(each.part.name)
        found = _ran(asked, each, out, chosen(own) if own else None)
        for runs in found.runs:
            check(runs)
            rounds += [spec.rounds for spec, _ in runs]
        rounds += [trial.spec.rounds for trial in own.trials] if own else []
    return Ready(asked, list(planned), out, trials, rounds)


def run(ready: Ready, jobs: int = 1, hear: Hear = bool, stop: Callable[[], bool] = bool) -> list[Ran]:
    """Runs what has not been run yet, and ends early when asked to stop."""
    require(jobs >= 1, f"study: jobs must be at least 1, got {jobs}.")
    asked, planned, out, trials, _ = ready
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / STUDY, {"study": asked.study.name, "scale": asked.scale})
    _work([unit for choice in trials.values() for unit in choice.units()], out, jobs, hear, stop)
    found = {name: chosen(choice) for name, choice in trials.items()}
    left = [each for each in planned if found.get(each.part.name, {}) is None]
    ran = [_ran(asked, each, out, found.get(each.part.name)) for each in planned if each not in left]
    _work([unit for each in ran for unit in _units(each)], out, jobs, hear, stop)
    return [each._replace(finished=not _units(each)) for each in ran] + [Ran(each, [], [], False) for each in left]


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


def _ran(asked: Asked, planned: Planned, out: Path, found: Chosen | None) -> Ran:
    made = scenarios(asked, planned, out, found)
    return Ran(planned, made, [runs_of(scenario.comparison, scenario.place) for scenario in made], False)


def _units(ran: Ran) -> list[Unit]:
    """What is left to be done of a part."""
    return [
        unit
        for scenario, runs in zip(ran.scenarios, ran.runs, strict=True)
        for unit in units_of(scenario.part.name, scenario.name, runs, scenario.comparison.at_once())
    ]


def _work(units: Sequence[Unit], out: Path, jobs: int, hear: Hear, stop: Callable[[], bool]) -> None:
    beside = max(1, min(jobs, len(units)))
    for done in work_all(units, jobs, hear, stop):
        entry = {"seconds": round(done.seconds, 2), "jobs": beside}
        with (out / done.unit.part / SECONDS).open("a") as file:
            file.write(json.dumps(entry) + "\n")
