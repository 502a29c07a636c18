"""A run from a specification: recorded, checkpointed, interruptible, resumable.

What is asked for is written down before anything slow begins; automatic choices are made once, written down before the
first round, and reused when the run is resumed. A run killed at any moment and resumed ends with the same bytes.
"""

import shutil
import time
from collections.abc import Callable, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch

from fedtailor import engines
from fedtailor.data.dataset import FederatedDataset
from fedtailor.disk import disk_trouble
from fedtailor.engines.base import Engine, Setting
from fedtailor.engines.compiling import Decision, decide
from fedtailor.errors import require
from fedtailor.run import build, together
from fedtailor.run.checkpoint import Checkpoints
from fedtailor.run.commands import repeat_command, resume_command
from fedtailor.run.costs import Meter
from fedtailor.run.described import require_same_data
from fedtailor.run.evaluate import GROUPS, evaluate, evaluate_fully, some
from fedtailor.run.files import write_tensors
from fedtailor.run.fitting import cohort_of
from fedtailor.run.loggers import logger
from fedtailor.run.loop import Round, round_loop
from fedtailor.run.pretraining import pretrained
from fedtailor.run.record import COSTS, Folder, changed_versions, figures, first_record, means, shared_by_all
from fedtailor.run.spec import Spec
from fedtailor.run.summary import pace, summarised, window
from fedtailor.types import Params, State

WATCHED = ("validation", *GROUPS)


class Listener(Protocol):
    """Somebody who hears how a run goes."""

    def began(self, record: Mapping[str, Any], done: int) -> None:
        """The run begins, or goes on after some rounds that are done."""

    def ended_round(self, entry: Mapping[str, Any]) -> None:
        """A round has ended."""

    def finished(self, record: Mapping[str, Any]) -> None:
        """The run has come to its end."""


class Outcome(NamedTuple):
    """How a run stopped."""

    record: dict[str, Any]
    finished: bool  # False: it was asked to stop, and has saved where it is


FirstModels = dict[int, Params]
"""Pre-trained first models by seed, shared by the runs of a comparison."""


def start(
    spec: Spec,
    out: str | Path,
    listeners: tuple[Listener, ...] = (),
    stop: Callable[[], bool] = bool,
    firsts: FirstModels | None = None,
) -> Outcome:
    """Starts a run in a new folder. `stop` is asked after every round."""
    folder = Folder(out)
    data = build.dataset(spec)
    build.setting(spec, data)
    hearing = (*logger(spec.log, folder.path), *listeners)
    with disk_trouble(folder.path, "nothing was begun, so mend that and run it again."):
        folder.create(spec)
    return _go(spec, data, folder, hearing, stop, firsts)


def resume(
    out: str | Path,
    listeners: tuple[Listener, ...] = (),
    stop: Callable[[], bool] = bool,
    firsts: FirstModels | None = None,
) -> Outcome:
    """Goes on with a run from its last whole checkpoint; a finished run is left as it is."""
    folder = Folder(out)
    spec = folder.spec()
    if folder.begun() and (record := folder.record())["status"] == "finished":
        return Outcome(record, True)
    return _go(spec, build.dataset(spec), folder, (*logger(spec.log, folder.path), *listeners), stop, firsts)


def _go(
    spec: Spec,
    data: FederatedDataset,
    folder: Folder,
    listeners: tuple[Listener, ...],
    stop: Callable[[], bool],
    firsts: FirstModels | None,
) -> Outcome:
    again = f"what was saved before is whole, so mend that and go on with: {resume_command(folder.path)}"
    scratch = folder.path / "scratch"
    with disk_trouble(folder.path, again), folder.only_me():
        shutil.rmtree(scratch, ignore_errors=True)
        try:
            setting = build.setting(spec, data, folder.path, scratch if spec.memory == "files" else None)
            return _on(spec, data, setting, folder, listeners, stop, {} if firsts is None else firsts)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def _on(
    spec: Spec,
    data: FederatedDataset,
    setting: Setting,
    folder: Folder,
    listeners: tuple[Listener, ...],
    stop: Callable[[], bool],
    firsts: FirstModels,
) -> Outcome:
    """From the last checkpoint, or from the first round, to the end or until asked to stop."""
    earlier = folder.record() if folder.begun() else None
    if earlier:
        require_same_data(earlier, setting.data)
    engine, choices = _engine(spec, setting, folder.path, earlier["choices"] if earlier else None)
    checkpoints, state = Checkpoints(folder.path), setting.first_state()
    found = checkpoints.latest(state, setting.memory, setting.method.new_memory(state))
    if found is None and spec.seed not in firsts:
        firsts[spec.seed] = pretrained(setting, build.pretraining(spec))
    state, done = (found.state, found.number) if found else (setting.first_state(firsts[spec.seed]), 0)
    record = earlier or first_record(
        spec,
        build.filled(spec, data),
        setting,
        shared_by_all(data, state.params),
        choices,
        repeat_command(spec, folder.path),
    )
    news = [*(found.passed_over if found else ()), *changed_versions(record)]
    notes = list(dict.fromkeys([*choices["notes"], *news]))
    record = record | {"status": "running", "rounds": [], "cost": None, "choices": choices | {"notes": notes}}
    folder.keep_rounds(done)
    folder.write(record)
    for listener in listeners:
        listener.began(record, done)
    meter = Meter(setting)
    state, whole = _rounds(spec, setting, engine, meter, folder, checkpoints, state, listeners, stop)
    if not whole:
        record = record | {"status": "interrupted", "rounds": folder.rounds(), "cost": cost(folder)}
        folder.write(record)
        return Outcome(record, False)
    record = _finish(spec, setting, engine, meter, folder, record, state)
    for listener in listeners:
        listener.finished(record)
    return Outcome(record, True)


def _rounds(
    spec: Spec,
    setting: Setting,
    engine: Engine,
    meter: Meter,
    folder: Folder,
    checkpoints: Checkpoints,
    state: State,
    listeners: tuple[Listener, ...],
    stop: Callable[[], bool],
) -> tuple[State, bool]:
    """Rounds up to the last one, or until asked to stop; the bool says which."""
    left, looked_at = spec.rounds - int(state.round), partial(_looked_at, spec)
    for done in islice(round_loop(setting, engine, state, cohort_of(setting, spec.cohort), looked_at), left):
        state, last = done.state, done.number == spec.rounds
        entry = _entry(spec, setting, engine, done, meter)
        asked = stop()
        saving = asked or last or done.number % spec.checkpoint_every == 0
        folder.add_round(entry, sync=saving)
        for listener in listeners:
            listener.ended_round(entry)
        if saving:
            checkpoints.save(done.number, state, engines.memory_of_all(engine))
        if asked and not last:
            return state, False
    return state, True


def _looked_at(spec: Spec, number: int) -> bool:
    """Whether the state after a round is scored or saved."""
    return number == spec.rounds or not all(
        number % every for every in (spec.evaluate_every or 1, spec.checkpoint_every)
    )


def _entry(spec: Spec, setting: Setting, engine: Engine, done: Round, meter: Meter) -> dict[str, Any]:
    scores = None
    due = setting.method.client.phases and done.number % (spec.evaluate_every or 1) == 0
    if due or done.number == spec.rounds:  # where nobody trains in rounds, nothing changes before the end
        watched = evaluate(setting, engine, done.state, _groups(spec, WATCHED), spec.watch)
        headline = setting.task.metrics[0].name
        scores = {group: means(found, headline) for group, found in watched.items()}
    return {"round": done.number, **done.cost._asdict(), **meter.of_round(done.cohort), "scores": scores}


def _groups(spec: Spec, groups: tuple[str, ...]) -> tuple[str, ...]:
    """Of these groups those that may be scored: where something is being chosen, validation clients alone."""
    return ("validation",) if spec.scored == "validation" else groups


def _finish(
    spec: Spec,
    setting: Setting,
    engine: Engine,
    meter: Meter,
    folder: Folder,
    record: dict[str, Any],
    state: State,
) -> dict[str, Any]:
    began, rounds = time.perf_counter(), folder.rounds()
    groups = _groups(spec, GROUPS)
    scored = evaluate_fully(setting, engine, state, groups, spec.score)
    module = setting.task.module(state.params)
    write_tensors(folder.path / "model.safetensors", dict(module.state_dict()))
    total = cost(folder) | _personal(spec, setting, meter, groups) | {"scoring_seconds": time.perf_counter() - began}
    record = record | {
        "status": "finished",
        "rounds": rounds,
        "scores": {group: figures(found) for group, found in scored.items()},
        "summary": {group: summarised(found, record["metric"]) for group, found in scored.items()},
        "window": window(rounds, spec.rounds),
        "pace": pace(rounds, record),
        "cost": total,
    }
    folder.write(record)
    return record


def _personal(spec: Spec, setting: Setting, meter: Meter, groups: tuple[str, ...]) -> dict[str, float]:
    """What personalising costs a client of the first group that there is, on average."""
    who = next(found for group in groups if len(found := some(setting, group, spec.score)))
    each = meter.of_personalising(who)
    return {"personal_gradients": round(each.gradients.mean(), 1), "personal_flops": round(each.flops.mean())}


def cost(folder: Folder) -> dict[str, float]:
    """What all rounds so far cost together."""
    rounds = folder.rounds()
    return {name: sum(entry.get(name, 0) for entry in rounds) for name in COSTS}


def _decision(spec: Spec, setting: Setting, earlier: Mapping[str, Any] | None) -> Decision:
    """Whether to compile: as was asked for, as was decided before, or as measured now."""
    if earlier:
        return Decision(earlier["compile"], earlier.get("compile_why", ""))
    if spec.compile != "auto":
        return Decision(spec.compile, "asked for")
    if spec.engine == "one_by_one" or not setting.method.client.phases:
        return Decision(False, "there is nothing to compile")
    return decide(setting, cohort_of(setting, spec.cohort), spec.rounds)


def _engine(
    spec: Spec, setting: Setting, home: Path, earlier: Mapping[str, Any] | None
) -> tuple[Engine, dict[str, Any]]:
    """The engine, with choices made now or, if the run is resumed, made before and only honoured now."""
    threads = earlier["threads"] if earlier else spec.threads
    if threads:
        torch.set_num_threads(threads)
    decision = _decision(spec, setting, earlier)
    asked = earlier or {"engine": spec.engine, "chunk": spec.chunk, "compile": decision.compile}
    how = (asked["engine"], asked["chunk"], asked["compile"])
    together.begin(spec, home, how, setting.data)
    engine = engines.make(setting, *how)
    now = engines.choices(engine)
    if earlier is None:
        said = [f"compiled: {decision.why}"] if decision.compile and spec.compile == "auto" else []
        more: dict[str, Any] = {"precision": spec.precision, "threads": torch.get_num_threads()}
        more |= {"notes": [*engine.notes, *said], "compile_why": decision.why}
        return engine, now | more
    for name, value in now.items():
        require(
            value == earlier[name] or name == "ranks",
            f"The run was begun with {name}={earlier[name]}, which cannot be had here ({'; '.join(engine.notes)}); "
            "resume it on a machine like the first one.",
        )
    return engine, dict(earlier) | {"notes": [*earlier["notes"], *_changed_ranks(now, earlier)]}


def _changed_ranks(now: Mapping[str, Any], earlier: Mapping[str, Any]) -> list[str]:
    """A note if there are more or fewer processes than the run was begun with."""
    ranks, then = now.get("ranks"), earlier.get("ranks")
    return [] if ranks == then else [f"resumed with {ranks} ranks for {then}: the last digits may differ"]
