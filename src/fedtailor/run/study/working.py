"""The runs of a study in this process: one after another, or abreast where they are of one method."""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

from fedtailor import engines
from fedtailor.engines import Party
from fedtailor.errors import DivergedError
from fedtailor.run import build
from fedtailor.run.abreast import abreast, in_groups
from fedtailor.run.budget import budgeted
from fedtailor.run.compare import folder_of, refuse_other, start_or_resume
from fedtailor.run.files import read_json
from fedtailor.run.record import Folder
from fedtailor.run.session import FirstModels, cost
from fedtailor.run.spec import Comparison, Spec

Status = Literal["finished", "diverged", "stopped"]


class Event(NamedTuple):
    """Something that has happened to a run."""

    kind: Literal["began", "round", "finished", "diverged"]
    run: str  # the scenario and the folder of the run
    round: int  # how many rounds it has behind it
    rounds: int  # of how many
    news: str = ""


Hear = Callable[[Event], object]


class Unit(NamedTuple):
    """Runs that are done together."""

    part: str
    scenario: str
    runs: tuple[tuple[Spec, Path], ...]


class Done(NamedTuple):
    """What came of a unit."""

    unit: Unit
    statuses: tuple[Status, ...]
    seconds: float


def units_of(part: str, scenario: str, runs: Sequence[tuple[Spec, Path]], at_once: int) -> list[Unit]:
    """Runs that have not come to their end, those of a method together."""
    left = [(spec, place) for spec, place in runs if status_of(place) not in ("finished", "diverged")]
    groups = in_groups(left, lambda run: run[0].label or run[0].method, at_once)
    return [Unit(part, scenario, tuple(group)) for group in groups]


def runs_of(comparison: Comparison, place: Path) -> list[tuple[Spec, Path]]:
    """The runs of a comparison and their folders, as many rounds each as the budget allows."""
    specs = comparison.specs()
    if comparison.budget != "rounds":
        specs = budgeted(comparison, specs, build.dataset(specs[0])).specs
    return [(spec, folder_of(place, spec)) for spec in specs]


def check(runs: Sequence[tuple[Spec, Path]]) -> None:
    """Refuses what cannot be run, before anything is; of the seeds of a method one stands for all."""
    for spec, place in runs:
        refuse_other(spec, place)
    new = {spec.model_copy(update={"seed": 0}).model_dump_json(): spec for spec, place in runs if not place.exists()}
    if not new:
        return
    specs = list(new.values())
    data = build.dataset(specs[0])
    for spec in specs:
        engines.device_named(spec.device)
        build.setting(spec.model_copy(update={"device": "cpu"}), data)  # what fits is the same on every device


def status_of(place: Path) -> str:
    """How far the run in a folder is; "" if it has not begun."""
    return str(read_json(place / "record.json")["status"]) if (place / "record.json").exists() else ""


def work(unit: Unit, hear: Hear, stop: Callable[[], bool], firsts: FirstModels) -> Done:
    """Does the runs of a unit, or goes on with them; one that diverges is written down as such."""
    began = time.perf_counter()
    jobs = [partial(_run, unit.scenario, spec, place, hear, stop, firsts) for spec, place in unit.runs]
    return Done(unit, tuple(abreast(jobs)), time.perf_counter() - began)


def _run(
    scenario: str,
    spec: Spec,
    place: Path,
    hear: Hear,
    stop: Callable[[], bool],
    firsts: FirstModels,
    party: Party | None,
) -> Status:
    name = f"{scenario}: {place.name}"
    telling = _Telling(name, spec.rounds, hear)
    try:
        outcome = start_or_resume(spec, place, (telling,), stop, firsts, party)
    except DivergedError as problem:
        folder = Folder(place)
        record = folder.record()
        folder.write(record | {"status": "diverged", "problem": str(problem), "cost": cost(folder)})
        hear(Event("diverged", name, len(record["rounds"]), spec.rounds, str(problem)))
        return "diverged"
    return "finished" if outcome.finished else "stopped"


class _Telling:
    """A listener of a run that tells of it in events."""

    def __init__(self, name: str, rounds: int, hear: Hear) -> None:
        self._name, self._rounds, self._hear, self._news = name, rounds, hear, ""

    def began(self, record: Mapping[str, Any], done: int) -> None:
        """Tells that the run begins."""
        self._hear(Event("began", self._name, done, self._rounds, "; ".join(record["choices"]["notes"])))

    def ended_round(self, entry: Mapping[str, Any]) -> None:
        """Tells of a round, with the last figures that were seen."""
        seen = next(iter((entry["scores"] or {}).values()), None)
        if seen:
            figures = {name: value for name, value in seen["after"].items() if value is not None}
            self._news = " ".join(f"{name} {value:.3f}" for name, value in figures.items())
        self._hear(Event("round", self._name, entry["round"], self._rounds, self._news))

    def finished(self, record: Mapping[str, Any]) -> None:
        """Tells that the run has come to its end."""
        seconds = f"in {record['cost']['seconds']:.1f} s"
        self._hear(Event("finished", self._name, self._rounds, self._rounds, seconds))
