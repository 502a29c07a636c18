"""Whether compiling pays, and where what was compiled is kept.

A step of a cohort is timed as it is. Compiling saves about two fifths of such steps, or more, and takes about half a
minute for each new step; or seconds, where the same shapes were compiled before, since compiled code is kept on
disk. Both were measured on a few models (benchmarks/README.md): the decision is a guess, and made once for a run.
"""

import hashlib
import os
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from fedtailor import trees
from fedtailor.engines.base import Setting, one_step_each
from fedtailor.engines.measuring import MOST
from fedtailor.engines.memory import Memory
from fedtailor.engines.tracing import Compile
from fedtailor.engines.vectorised import Vectorised
from fedtailor.errors import FedtailorError
from fedtailor.native import PLACE, place

SAVED = 0.4
"""The part of the time of steps that compiling saves."""
NEW, KNOWN = {"cpu": 30.0, "cuda": 45.0}, {"cpu": 2.0, "cuda": 6.0}
"""Seconds that compiling takes, for shapes that are new and for those that were compiled before."""


class Decision(NamedTuple):
    """Whether to compile, and why."""

    compile: Compile
    why: str


def decided(setting: Setting, cohort: int, rounds: int, chunk: int | None = None) -> Decision:
    """Whether compiling pays for so many rounds of such cohorts; people are scored too seldom for it."""
    people = setting.data.groups["train"]
    steps = rounds * int(np.quantile(setting.steps(people), 1 - 0.5 / max(1, cohort))) if len(people) else 0
    try:
        each = _seconds_a_step(setting, people[:cohort], chunk)
    except FedtailorError:  # which the engine itself will tell of, and of what it does instead
        return Decision(False, "a step could not be timed")
    lasts, mark = steps * each, _mark(setting, cohort)
    times = KNOWN if mark.exists() else NEW
    takes = times.get(setting.device.type, times["cpu"])
    pays = SAVED * lasts > takes
    said = f"{steps:,} steps are {'enough' if pays else 'too few'} for it to pay"  # no times: equal runs, equal records
    if pays:
        with suppress(OSError):  # then the next run guesses anew
            mark.parent.mkdir(parents=True, exist_ok=True)
            mark.touch()
    return Decision("training" if pays else False, said)


def keep_compiled() -> None:
    """Has torch keep compiled code beside the data, unless the user has said where."""
    os.environ[PLACE] = str(place())


def _seconds_a_step(setting: Setting, who: np.ndarray, chunk: int | None) -> float:
    """How long one step of a cohort takes, as it is, once everything is warm."""
    short = replace(setting, method=one_step_each(setting.method), memory=Memory(setting.data.clients.count))
    engine, state = Vectorised(short, chunk or MOST), setting.first_state()
    for _ in range(3):
        began = time.perf_counter()
        engine.train(state, who, 0)
        if setting.device.type == "cuda":
            torch.cuda.synchronize(setting.device)
        spent = time.perf_counter() - began
    return spent / max(1, int(short.steps(who).max(initial=1)))


def _mark(setting: Setting, cohort: int) -> Path:
    """A file that is there if such a method was compiled for such shapes before."""
    shapes = [(tuple(leaf.shape), str(leaf.dtype)) for leaf in trees.leaves(setting.task.params)]
    plans = [phase.plan for phase in setting.method.client.phases]
    named = (setting.method.name, shapes, plans, cohort, str(setting.device), torch.__version__, setting.data.units)
    return place() / "seen" / hashlib.blake2b(repr(named).encode(), digest_size=12).hexdigest()
