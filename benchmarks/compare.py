"""How fast a round of FedAvg is: this project beside its peers, on the same data, batches and first
weights.

    python benchmarks/compare.py [quick] [cuda] [cnn|mlp] [dataloader pfl ...]

Every way is a process of its own, peers in an environment of their own (.venv-peers/NAME, made by
`make bench`); those whose environment is missing are left out. They warm up side by side, and then
are told to train in turn, so that whatever else the machine does meets all alike, and only one
trains at a time. All must take equally many gradient steps and end with the same weights, or
nothing is reported. A turn of several rounds is waited for at its end. Results are written, case by
case, if nothing but the device is chosen.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from torch import nn

from fedtailor import models, prng
from fedtailor.core.functionalize import seed_initialization
from fedtailor.data.batching import iter_batch_indices
from fedtailor.prng.streams import Stream
from peers.nets import NETS, weights_of
from peers.ours import SEED, setting_of
from peers.protocol import Weights, Work, write
from processes import LOOP, OURS, Process, python_of
from results import machine, save, spread

SHORT_FLOATS = (
    ["ours-bf16"] if torch.cpu.get_capabilities().get("amx_bf16") else []
)  # only there they are fast
WAYS: dict[
    str, tuple[str, ...]
] = {  # a number: of threads, if not one a core; ours first, in the precision behind the hyphen
    "cpu": (OURS, *SHORT_FLOATS, LOOP, "dataloader-1", "pfl", "fedjax", "flwr"),
    "cuda": ("ours-tf32", "ours-bf16", LOOP, "pfl", "fedjax"),
}
WARM_UP = 2  # rounds, side by side, with whatever is compiled
REST_S = 0.3  # seconds between turns, in which threads that wait for work fall asleep
# Of how far the weights have moved: rounding decides on which side of its kink an activation of the
# CNN falls.
TOLERANCES = {"cnn": 2e-2, "mlp": 1e-3}
SHORT = {
    "cuda": 5,
    "bf16": 25,
}  # times as much where all round factors to tf32, and where ours calculates in bf16
PEOPLE, LR = 100, 0.01


class Case(NamedTuple):
    """A work to be done by everybody."""

    net: str
    clients: int
    batch: int
    rounds: int  # in a turn
    turns: int = 7
    steps: int = 10  # of each client

    def left_out(self, way: str) -> bool:
        """Whether a way is not worth its time: large networks train slower on one thread."""
        return self.net == "cnn" and way.endswith("-1")

    @property
    def title(self) -> str:
        """The case in words."""
        return f"{self.net.upper()}, {self.clients} clients, batch {self.batch}, {self.steps} steps"


CASES = {
    "cpu": (
        Case("cnn", 10, 20, 1, turns=3),
        Case("mlp", 10, 40, 6, turns=5),
        Case("mlp", 50, 40, 2, turns=5),
    ),
    "cuda": (Case("cnn", 10, 20, 10, turns=5), Case("cnn", 50, 20, 4, turns=4)),
}
FIRST: dict[str, Callable[[], nn.Module]] = {
    "cnn": partial(models.fedsim_femnist, (1, 28, 28), 62),
    "mlp": partial(models.mlp, 784, (80, 60), 10, nn.ELU),
}


def first_weights(net: str) -> Weights:
    """The weights to begin with: those of this project's model of that name, under the names of the
    plain one.
    """
    with seed_initialization(SEED):
        drawn = weights_of(FIRST[net]())
    return dict(zip(weights_of(NETS[net]()), drawn.values(), strict=True))


def work_of(case: Case, rounds: int) -> Work:
    """Random images, and the cohorts and batches that this project's keys give."""
    draws, examples = np.random.default_rng(0), case.steps * case.batch
    images = draws.integers(0, 256, (PEOPLE, examples, 1, 28, 28), dtype=np.uint8)
    labels, nobody = (
        draws.integers(0, 10, (PEOPLE, examples)),
        np.zeros((0, case.clients), np.int64),
    )
    work = Work(case.net, images, labels, first_weights(case.net), nobody, nobody, case.batch, LR)
    setting = setting_of(work)
    plan, people = setting.method.client.phases[0].plan, setting.data.groups["train"]
    cohorts, orders = [], []
    for number in range(rounds):
        chosen = people[
            prng.choice(prng.key(SEED, "cohort", number).numpy(), len(people), case.clients)
        ]
        keys = prng.fold(setting.derive_keys(Stream.CLIENT, number, chosen), 0)
        rows = [
            place.rows
            for (place,) in iter_batch_indices(plan, setting.data.clients, chosen, keys, case.steps)
        ]
        cohorts.append(chosen)
        orders.append(np.concatenate([each.numpy() for each in rows], 1) % examples)
    return work._replace(cohorts=np.stack(cohorts), orders=np.stack(orders))


def measured(case: Case, ways: tuple[str, ...], device: str) -> dict[str, Any]:
    """Every way's milliseconds, once all have been found to do the same."""
    rounds = WARM_UP + case.turns * case.rounds
    work = work_of(case, rounds)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        path = Path(folder) / "work.npz"
        write(path, work)
        running = []
        for way in ways:
            running.append(Process(way, path, device))
            stack.callback(running[-1].close)
        for process in running:
            process.wait_until_ready()
            process.tell(WARM_UP)
        for process in running:
            process.told()
        for _ in range(case.turns):
            for process in running:
                time.sleep(REST_S)
                process.tell(case.rounds)
                process.times.append(process.told())
        ends = {process.way: process.finish() for process in running}
        gaps = refuse_unequal(ends, work, rounds * work.steps_a_round(), device)
        versions = {
            name: number for process in running for name, number in process.versions.items()
        }
        times = {process.way: process.times for process in running}
    return {
        "title": case.title,
        "ms": times,
        "gaps": gaps,
        "steps": work.steps_a_round(),
        "versions": versions,
    }


def refuse_unequal(
    ends: dict[str, tuple[int, Weights]], work: Work, steps: int, device: str
) -> dict[str, float]:
    """How far everybody's weights are from the loop's, of how far these moved; stops if somebody
    did something else.
    """
    reference = flat(ends[LOOP][1])
    moved = np.linalg.norm(reference - flat(work.weights))
    gaps = {
        way: float(np.linalg.norm(flat(end) - reference) / moved) for way, (_, end) in ends.items()
    }
    for way, (taken, _) in ends.items():
        allowed = TOLERANCES[work.net] * SHORT.get(way.partition("-")[2], SHORT.get(device, 1))
        if taken != steps or not gaps[way] < allowed:
            raise SystemExit(
                f"{way}: unequal work: {taken} steps of {steps}, weights {gaps[way]:.1e} off the "
                "loop's."
            )
    return gaps


def flat(weights: Weights) -> NDArray[np.float32]:
    """All weights in one row."""
    return np.concatenate([value.reshape(-1) for value in weights.values()])


def show(found: dict[str, Any]) -> None:
    """Prints one case."""
    table = Table(
        "way",
        "ms a round",
        "of ours",
        "weights off the loop's",
        title=found["title"],
        title_justify="left",
    )
    own = statistics.median(next(iter(found["ms"].values())))
    for way, times in found["ms"].items():
        ratio = statistics.median(times) / own
        table.add_row(way, spread(times), f"{ratio:.2f}", f"{found['gaps'][way]:.1e}")
    Console(width=100).print(table)


def main(words: list[str]) -> None:
    """Measures every case and writes what came out."""
    device = "cuda" if "cuda" in words else "cpu"
    chosen = tuple(way for way in WAYS[device] if way in words) or WAYS[device]
    ways = tuple(dict.fromkeys((WAYS[device][0], *(way for way in chosen if python_of(way)), LOOP)))
    for way in set(chosen) - set(ways):
        print(f"{way} is left out: there is no .venv-peers/{way}; make bench makes it.")
    here, cases = machine(device), []
    for case in [case for case in CASES[device] if case.net in words] or CASES[device]:
        own = tuple(way for way in ways if way in words or not case.left_out(way))
        cases.append(
            measured(case._replace(turns=2, rounds=1) if "quick" in words else case, own, device)
        )
        show(cases[-1])
        if set(words) <= {"cuda"}:
            save("peers" if device == "cpu" else "peers-gpu", {"machine": here, "cases": cases})


if __name__ == "__main__":
    main(sys.argv[1:])
