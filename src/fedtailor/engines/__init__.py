"""Engines: where and how the functions of a method run."""

import re
import warnings
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedtailor import native
from fedtailor.data.batching import sizes_of
from fedtailor.engines.base import Engine, Scored, Setting, Trained, device_named, one_step_each
from fedtailor.engines.compiling import keep_compiled, why_never
from fedtailor.engines.distributed import Distributed, for_a_rank
from fedtailor.engines.measuring import Peak, chunk_that_fits
from fedtailor.engines.memory import Memory
from fedtailor.engines.one_by_one import OneByOne
from fedtailor.engines.ranks import joined, started
from fedtailor.engines.tracing import Compile, compiled
from fedtailor.engines.vectorised import Vectorised
from fedtailor.errors import InputError, WorkError, is_number, nearest, require

__all__ = [
    "Compile",
    "Distributed",
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
    "memory_of_all",
]

NAMES = ("vectorised", "one_by_one")
"""Engines of one process; `distributed` has one of these in each of several."""


def make(setting: Setting, name: str = "vectorised", chunk: int | None = None, compile: Compile = False) -> Engine:
    """An engine by name. What cannot be vectorised or compiled runs the slower way, and `notes` says why."""
    check(name, chunk)
    known = isinstance(compile, bool) or compile == "training"
    require(known, f"Engine: compile must be True, False or 'training', got {compile!r}.")
    if name == "one_by_one":
        return OneByOne(setting)
    if name == "distributed":
        return distributed(setting, chunk, compile)
    who, trial = setting.method.name, tried(setting)
    if trial.failure:
        return OneByOne(setting, (f"{who} runs one client at a time, since vmap cannot run it: {trial.failure}",))
    notes = trial.notes
    if setting.device.type == "cpu":
        native.keep_freed_memory()
    if compile and (never := why_never(setting)):
        notes = (*notes, f"{who} runs uncompiled: {never}.")
        compile = False
    if compile:
        keep_compiled()
    if compile and (reason := why_not_compiled(setting.device)):
        notes = (*notes, f"{who} runs uncompiled, since torch.compile does not work here: {reason}")
        compile = False
    if setting.device.type == "cpu" and setting.task.compute == torch.bfloat16 and not native.has_short_floats():
        notes = (
            *notes,
            f"{who} calculates in bf16, which this processor has to imitate: float32 is many times as fast",
        )
    fits = chunk or chunk_that_fits(trial.bytes, setting.device)
    return Vectorised(setting, fits, compile, notes)


def distributed(setting: Setting, chunk: int | None = None, compile: Compile = False) -> Distributed:
    """The engine of all ranks that have joined, this one's part of it."""
    together = joined().world == started()
    require(
        together, "Engine: several processes of engine=distributed are started by: torchrun ... -m fedtailor run ..."
    )
    return Distributed(setting, make(for_a_rank(setting), "vectorised", chunk, compile), joined())


def check(name: str, chunk: int | None) -> None:
    """Refuses a name or a chunk size that no engine has."""
    known = (*NAMES, "distributed")
    if name not in known:
        raise InputError(f"There is no engine '{name}'; {nearest(name, known)}")
    fits = chunk is None or (is_number(chunk, whole=True) and chunk >= 1)
    require(fits, f"Engine: chunk must be a whole number of at least 1 client, got {chunk!r}.")


def choices(engine: Engine) -> dict[str, Any]:
    """What an engine runs with, to make the same one again."""
    if isinstance(engine, Distributed):
        return {**choices(engine.inner), "engine": "distributed", "ranks": engine.ranks.world}
    if isinstance(engine, Vectorised):
        return {"engine": "vectorised", "chunk": engine.chunk, "compile": engine.compiled}
    return {"engine": "one_by_one", "chunk": None, "compile": False}


def memory_of_all(engine: Engine) -> Memory:
    """Every client's memory in one place, to be written down."""
    return engine.collected() if isinstance(engine, Distributed) else engine.memory


class Trial(NamedTuple):
    """What came of trying to vectorise."""

    failure: str  # "": it worked
    notes: tuple[str, ...]
    bytes: int  # that a client needs, at most


def tried(setting: Setting) -> Trial:
    """Tries one step of everything on the two largest clients, whatever the caller does with warnings."""
    people = setting.data.groups["train"]
    who = people[
        np.argsort(-sizes_of(setting.data.clients.splits["train"], people), kind="stable")[[0, min(1, len(people) - 1)]]
    ]
    shortened = replace(setting, method=one_step_each(setting.method), memory=Memory(setting.data.clients.count))
    engine, state, peak = Vectorised(shortened, static=False), setting.first_state(), Peak()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            with peak:
                engine.train(state, who, 0)
                engine.score(state, who)
        except WorkError as problem:
            return Trial(next(iter(str(problem.__cause__).splitlines()), type(problem.__cause__).__name__), (), 0)
    slow = sorted(
        {found[1] for each in said if (found := re.search(r"batching rule for (\S+?)\. ", str(each.message)))}
    )
    note = f"{setting.method.name} is slower than it could be: vmap has no rule for {', '.join(slow)}."
    return Trial("", (note,) if slow else (), -(-peak.most // 2))


def why_not_compiled(device: torch.device) -> str | None:
    """Compiles something trivial; the reason if that fails."""
    try:
        compiled(_doubled, (torch.ones(2, device=device),))()
    except Exception as problem:
        return next(iter(str(problem).splitlines()), type(problem).__name__)
    return None


def _doubled(x: Tensor) -> None:
    x.mul_(2)
