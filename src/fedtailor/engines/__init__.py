"""Engines: where and how the functions of a method run."""

from dataclasses import replace
from typing import Any

import torch

from fedtailor.engines.base import Engine, Scored, Setting, Trained, device_named
from fedtailor.engines.memory import Memory
from fedtailor.engines.one_by_one import OneByOne
from fedtailor.engines.vectorised import Vectorised
from fedtailor.errors import InputError, WorkError, nearest, require
from fedtailor.types import Method, Work

__all__ = [
    "Engine",
    "Memory",
    "OneByOne",
    "Scored",
    "Setting",
    "Trained",
    "Vectorised",
    "choices",
    "device_named",
    "make",
]

NAMES = ("vectorised", "one_by_one")


def make(setting: Setting, name: str = "vectorised", chunk: int | None = None, compile: bool = False) -> Engine:
    """An engine by name. What cannot be vectorised or compiled runs the slower way, and `notes` says why."""
    check(name, chunk)
    if name == "one_by_one":
        return OneByOne(setting)
    if reason := why_not_vectorised(setting):
        return OneByOne(
            setting, (f"{setting.method.name} runs one client at a time, since vmap cannot run it: {reason}",)
        )
    if compile and (reason := why_not_compiled(setting.device)):
        note = f"{setting.method.name} runs uncompiled, since torch.compile does not work here: {reason}"
        return Vectorised(setting, chunk, compile=False, notes=(note,))
    return Vectorised(setting, chunk, compile)


def check(name: str, chunk: int | None) -> None:
    """Refuses a name or a chunk size that no engine has."""
    if name not in NAMES:
        raise InputError(f"There is no engine '{name}'; {nearest(name, NAMES)}")
    require(chunk is None or chunk >= 1, f"Engine: chunk must be at least 1 client, got {chunk}.")


def choices(engine: Engine) -> dict[str, Any]:
    """What an engine runs with, to make the same one again."""
    if isinstance(engine, Vectorised):
        return {"engine": "vectorised", "chunk": engine.chunk, "compile": engine.compiled}
    return {"engine": "one_by_one", "chunk": None, "compile": False}


def why_not_vectorised(setting: Setting) -> str | None:
    """Tries one step of everything on two clients; the reason if it cannot be vectorised."""
    who = setting.data.groups["train"][[0, -1]]
    tried = replace(setting, method=_one_step_each(setting.method), memory=Memory(setting.data.clients.count))
    engine, state = Vectorised(tried), setting.first_state()
    try:
        engine.train(state, who, 0)
        engine.score(state, who)
    except WorkError as problem:
        return next(iter(str(problem.__cause__).splitlines()), type(problem.__cause__).__name__)
    return None


def why_not_compiled(device: torch.device) -> str | None:
    """Compiles something trivial; the reason if that fails."""
    try:
        torch.compile(torch.add)(torch.ones(2, device=device), 1.0)
    except Exception as problem:
        return next(iter(str(problem).splitlines()), type(problem).__name__)
    return None


def _one_step_each(method: Method) -> Method:
    return method._replace(client=_one_step(method.client), personalise=_one_step(method.personalise))


def _one_step(work: Work) -> Work:
    phases = (phase._replace(plan=phase.plan._replace(epochs=None, steps=1)) for phase in work.phases)
    return work._replace(phases=tuple(phases))
