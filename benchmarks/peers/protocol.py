"""The work that everybody is given, and how everybody is told to go on.

NumPy and the standard library alone, since it runs in every peer's own environment.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

MARK = (
    "@ "  # begins what is said to whoever compares; whatever else a library prints is passed over
)

Weights = dict[str, NDArray[np.float32]]


class Work(NamedTuple):
    """FedAvg with plain SGD, one epoch a client, everybody counting alike; the same batches for
    all.
    """

    net: str  # a name in nets.py
    images: NDArray[np.uint8]  # [people, examples, 1, 28, 28]
    labels: NDArray[np.int64]  # [people, examples]
    weights: Weights  # the first ones, as torch lays them out
    cohorts: NDArray[np.int64]  # [rounds, clients]
    orders: NDArray[
        np.int64
    ]  # [rounds, clients, examples]: the order in which each goes through its examples
    batch: int
    lr: float

    @property
    def pixels(self) -> NDArray[np.float32]:
        """The images from 0 to 1."""
        return self.images.astype(np.float32) * np.float32(1 / 255)

    def steps_a_round(self) -> int:
        """How many gradient steps a cohort takes together."""
        clients, examples = self.orders.shape[1:]
        return int(clients * -(-examples // self.batch))


class Peer(Protocol):
    """A way to train."""

    @property
    def steps(self) -> int:
        """How many were taken so far, by all clients together."""

    def round(self, number: int) -> None:
        """Trains one round, which need not have ended on the device."""

    def settle(self) -> None:
        """Returns when the device has done everything that it was given."""

    def weights(self) -> Weights:
        """The global model, as torch lays it out."""


def write(path: Path, work: Work) -> None:
    """Writes a work."""
    plain = work._asdict()
    weights = {f"weights/{name}": value for name, value in plain.pop("weights").items()}
    np.savez(path, **plain, **weights)


def read(path: Path) -> Work:
    """Reads a work."""
    with np.load(path) as file:
        found: dict[str, Any] = {name: file[name] for name in file.files}
    weights = {
        name.partition("/")[2]: found.pop(name)
        for name in list(found)
        if name.startswith("weights/")
    }
    scalars = {"net": str(found["net"]), "batch": int(found["batch"]), "lr": float(found["lr"])}
    return Work(**{**found, **scalars, "weights": weights})


def say(**what: Any) -> None:
    """Tells whoever compares."""
    print(MARK + json.dumps(what), flush=True)


def serve(peer: Peer, end: Path, **versions: str) -> None:
    """Trains as many rounds as each line of the input says, and tells how many milliseconds a round
    took.

    When there are no more lines the weights are written to `end`, and the steps are told.
    """
    say(versions=versions)
    number = 0
    for line in sys.stdin:
        began, before = time.perf_counter(), number
        for _ in range(int(line)):
            peer.round(number)
            number += 1
        peer.settle()
        say(ms=1000 * (time.perf_counter() - began) / (number - before))
    np.savez(end, **peer.weights())  # type: ignore[arg-type]  # numpy's stub takes the names for options
    say(steps=peer.steps, rounds=number)


def given() -> tuple[Work, Path, str]:
    """What the command line gives: the work, where the weights go at the end, and the device."""
    work, end, device = sys.argv[1:]
    return read(Path(work)), Path(end), device
