"""A run from a specification: recorded, checkpointed, interruptible, resumable.

What is asked for is written down before anything slow begins; automatic choices are made once, written down before the
first round, and reused when the run is resumed. A run killed at any moment and resumed ends with the same bytes.
"""

import shlex
import shutil
import time
from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch

from fedtailor import engines
from fedtailor.engines.base import Engine, Setting
from fedtailor.errors import require
from fedtailor.run import build
from fedtailor.run.checkpoint import Checkpoints
from fedtailor.run.evaluate import GROUPS, evaluate
from fedtailor.run.files import disk_trouble, write_tensors
from fedtailor.run.fitting import cohort_of
from fedtailor.run.loggers import logger
from fedtailor.run.loop import Round, refuse_divergence, round_loop
from fedtailor.run.record import Folder, described, figures, first_record, means
from fedtailor.run.spec import Spec
from fedtailor.types import State

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


def start(
    spec: Spec, out: str | Path, listeners: tuple[Listener, ...] = (), stop: Callable[[], bool] = bool
) -> Outcome:
    """Starts a run in a new folder. `stop` is asked after every round."""
    folder = Folder(out)
    data = build.dataset(spec)
    build.setting(spec, data)
    with disk_trouble(folder.path):
        folder.create(spec)
        return _go(spec, folder, (*logger(spec.log, folder.path), *listeners), stop)


def resume(out: str | Path, listeners: tuple[Listener, ...] = (), stop: Callable[[], bool] = bool) -> Outcome:
    """Goes on with a run from its last whole checkpoint; a finished run is left as it is."""
    folder = Folder(out)
    spec = folder.spec()
    if folder.begun() and (record := folder.record())["status"] == "finished":
        return Outcome(record, True)
    with disk_trouble(folder.path):
        return _go(spec, folder, (*logger(spec.log, folder.path), *listeners), stop)


def _go(spec: Spec, folder: Folder, listeners: tuple[Listener, ...], stop: Callable[[], bool]) -> Outcome:
    scratch = folder.path / "scratch"
    shutil.rmtree(scratch, ignore_errors=True)
    setting = build.setting(spec, build.dataset(spec), folder.path, scratch if spec.memory == "files" else None)
    earlier = folder.record() if folder.begun() else None
    require(
        earlier is None or earlier["data"] == described(setting.data),
        f"Data set '{spec.data}' is no longer what it was when the run in '{folder.path}' began; bring it back.",
    )
    engine, choices = _engine(spec, setting, earlier["choices"] if earlier else None)
    record = first_record(spec, setting, choices, repeat_command(spec, folder.path))
    checkpoints, state = Checkpoints(folder.path), setting.first_state()
    found = checkpoints.latest(state, setting.memory, setting.method.new_memory(state))
    state, done = (found.state, found.number) if found else (state, 0)
    folder.keep_rounds(done)
    folder.write(record)
    for listener in listeners:
        listener.began(record | {"passed_over": found.passed_over if found else ()}, done)
    state, whole = _rounds(spec, setting, engine, folder, checkpoints, record, state, listeners, stop)
    if not whole:
        record = record | {"status": "interrupted", "cost": cost(folder)}
        folder.write(record)
        return Outcome(folder.record(), False)
    record = _finish(setting, engine, folder, record, state)
    shutil.rmtree(scratch, ignore_errors=True)
    for listener in listeners:
        listener.finished(record)
    return Outcome(record, True)


def _rounds(
    spec: Spec,
    setting: Setting,
    engine: Engine,
    folder: Folder,
    checkpoints: Checkpoints,
    record: Mapping[str, Any],
    state: State,
    listeners: tuple[Listener, ...],
    stop: Callable[[], bool],
) -> tuple[State, bool]:
    """Rounds up to the last one, or until asked to stop; the bool says which."""
    left = spec.rounds - int(state.round)
    for done in islice(round_loop(setting, engine, state, cohort_of(setting, spec.cohort)), left):
        state, last = done.state, done.number == spec.rounds
        entry = _entry(spec, setting, engine, done)
        folder.add_round(entry)
        for listener in listeners:
            listener.ended_round(entry)
        asked = stop()
        if asked or last or done.number % spec.checkpoint_every == 0:
            refuse_divergence(setting.method.name, state)
            checkpoints.save(done.number, state, setting.memory)
            folder.write(record)
        if asked and not last:
            return state, False
    return state, True


def _entry(spec: Spec, setting: Setting, engine: Engine, done: Round) -> dict[str, Any]:
    scores = None
    if done.number % (spec.evaluate_every or 1) == 0 or done.number == spec.rounds:
        watched = evaluate(setting, engine, done.state, WATCHED, spec.watch)
        scores = {group: means(found) for group, found in watched.items()}
    return {"round": done.number, **done.cost._asdict(), "scores": scores}


def _finish(setting: Setting, engine: Engine, folder: Folder, record: dict[str, Any], state: State) -> dict[str, Any]:
    began = time.perf_counter()
    scores = {group: figures(found) for group, found in evaluate(setting, engine, state).items()}
    module = setting.task.module(state.params)
    write_tensors(folder.path / "model.safetensors", dict(module.state_dict()))
    total = cost(folder) | {"scoring_seconds": time.perf_counter() - began}
    record = record | {"status": "finished", "rounds": folder.rounds(), "scores": scores, "cost": total}
    folder.write(record)
    return record


def cost(folder: Folder) -> dict[str, float]:
    """What all rounds so far cost together."""
    rounds = folder.rounds()
    return {name: sum(entry[name] for entry in rounds) for name in ("bytes_down", "bytes_up", "steps", "seconds")}


def _engine(spec: Spec, setting: Setting, earlier: Mapping[str, Any] | None) -> tuple[Engine, dict[str, Any]]:
    """The engine, with choices made now or, if the run is resumed, made before and only honoured now."""
    threads = earlier["threads"] if earlier else spec.threads
    if threads:
        torch.set_num_threads(threads)
    if earlier is None:
        engine = engines.make(setting, spec.engine, spec.chunk, spec.compile)
        return engine, {
            **engines.choices(engine),
            "precision": spec.precision,
            "threads": torch.get_num_threads(),
            "notes": list(engine.notes),
        }
    engine = engines.make(setting, earlier["engine"], earlier["chunk"], earlier["compile"])
    now = engines.choices(engine)
    for name, value in now.items():
        require(
            value == earlier[name],
            f"The run was begun with {name}={earlier[name]}, which cannot be had here ({'; '.join(engine.notes)}); "
            "resume it on a machine like the first one.",
        )
    return engine, dict(earlier)


def repeat_command(spec: Spec, out: Path) -> str:
    """The command that would make this run again."""
    plain = spec.model_dump(mode="json")
    default = Spec(method=spec.method, data=spec.data, rounds=spec.rounds).resolved().model_dump(mode="json")
    words = [f"method={spec.method}", f"data={spec.data}", f"rounds={spec.rounds}", f"seed={spec.seed}"]
    for key, value in plain.items():
        if key in ("method", "data", "rounds", "seed") or value == default[key]:
            continue
        if isinstance(value, dict):
            prefix = "data." if key == "data_options" else ""
            words += [f"{prefix}{k}={_word(v)}" for k, v in value.items() if v != default[key].get(k)]
        else:
            words.append(f"{key}={_word(value)}")
    return "fedtailor run " + " ".join(shlex.quote(word) for word in [*words, f"out={out}"])


def _word(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
