"""Whether compiling pays, decided from counts alone, and where torch keeps what it has compiled.

Compiling takes about half a minute on a CPU and saves about two fifths of the time of steps (benchmarks/README.md). How
long steps would take is estimated from how many there are and from the operations of one: equal specifications are
decided alike on any machine.
"""

import os
from typing import NamedTuple

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from fedtailor import calculus
from fedtailor.data.batching import Place
from fedtailor.engines import sequential
from fedtailor.engines.base import Setting
from fedtailor.engines.tracing import Compile
from fedtailor.native import PLACE, place
from fedtailor.types import Batch

STEP_S = 1e-3
"""Seconds of a cohort's step whatever its size."""
RATES = {"cpu": 3e10, "cuda": 1e13}
"""Operations a second."""
LEAST_S = {"cpu": 75.0, "cuda": 110.0}
"""Seconds of steps from which on compiling pays."""


class Decision(NamedTuple):
    """Whether to compile, and why."""

    compile: Compile
    why: str


def decide(setting: Setting, cohort: int, rounds: int) -> Decision:
    """Decide whether compiling pays for this many rounds of training; clients are scored too seldom for it."""
    if why := why_never(setting):
        return Decision(False, why)
    device = setting.device.type
    clients = setting.data.groups["train"]
    quantile = 1 - 0.5 / max(1, cohort)
    steps = rounds * int(np.quantile(setting.steps(clients), quantile)) if len(clients) else 0
    operations = cohort * _operations(setting)
    seconds = steps * (STEP_S + operations / RATES.get(device, RATES["cpu"]))
    pays = seconds > LEAST_S.get(device, LEAST_S["cpu"])
    size = f"{steps:,} steps of {operations / 1e6:,.0f} MFLOP"
    return Decision("training" if pays else False, f"{size} are {'enough' if pays else 'too few'} for it to pay")


def why_never(setting: Setting) -> str:
    """Return why steps of a model are never compiled on a device; an empty string if they may be."""
    if setting.device.type == "cpu" and sequential.is_recurrent(setting.task.training):
        return "on a CPU recurrent layers run one client after another, which compiled code would not make faster"
    return ""


def keep_compiled() -> None:
    """Has torch keep compiled code beside the data, unless the user has said where."""
    os.environ[PLACE] = str(place())


def _operations(setting: Setting) -> float:
    """Count the operations of a client's step: of one gradient for each batch that it draws."""
    phases = [phase for phase in setting.method.client.phases if phase.plan.draws]
    sizes = [draw.size or 1 for phase in phases for draw in phase.plan.draws]
    batch = _example(setting)
    with FlopCounterMode(display=False) as counter:
        calculus.gradient(setting.task.loss, setting.first_state().params, batch)
    return float(counter.get_total_flops() * sum(sizes))


def _example(setting: Setting) -> Batch:
    """Return the first example of the clients as a batch."""
    row = torch.zeros(1, dtype=torch.int64)
    mask = torch.ones(1, dtype=torch.bool)
    key = torch.zeros((), dtype=torch.int64)
    return setting.clients().batch(Place(row, mask, key))
