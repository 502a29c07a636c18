"""What a client's step of the text model costs on a CPU: python benchmarks/lstm.py.

FedAvg, two LSTM layers of 256, 10 clients x 5 steps x 4 texts of 80 characters. The loop is `torch.nn.LSTM`, which is
oneDNN's, and autograd, one client after another; ours the vectorised engine. A step takes 1.5 GFLOP.
"""

import statistics
import time
from collections.abc import Callable
from itertools import repeat

import torch
from torch.nn import functional as nnf

from fedtailor import engines, models
from fedtailor.run.fitting import prepare, task_for
from fedtailor.run.loop import round_loop
from gpu_costs import TorchsOwn, texts
from results import machine, save, spread

CLIENTS, STEPS, TURNS = 10, 5, 7
GFLOP = 3 * 2 * (4 * 256 * (8 + 256) + 4 * 256 * 512 + 256 * 90) * 4 * 80 / 1e9
"""Of a client's step, forward and backward: products alone."""


def looped(threads: int) -> Callable[[], None]:
    """A client's steps with torch.nn.LSTM."""
    model, x, y = TorchsOwn(), torch.randint(90, (4, 80)), torch.randint(90, (4, 80))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05)

    def steps() -> None:
        torch.set_num_threads(threads)
        for _ in repeat(None, CLIENTS * STEPS):
            optimiser.zero_grad()
            nnf.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
            optimiser.step()

    return steps


def ours(threads: int, compile: bool) -> Callable[[], None]:
    """A round of the vectorised engine."""
    data = texts(50, 4 * STEPS)
    setting = prepare("fedavg", task_for(models.shakespeare, data.units, 1), data, rounds=1, seed=1, lr=0.05, batch=4)
    engine = engines.make(setting, compile=compile)
    rounds = round_loop(setting, engine, setting.first_state(), CLIENTS, [False].__contains__)

    def once() -> None:
        torch.set_num_threads(threads)
        next(rounds)

    return once


def main() -> None:
    """Measures in turns, prints and writes."""
    here, cores = machine(), torch.get_num_threads()
    ways = {"compiled": ours(cores, True), "uncompiled": ours(cores, False), "loop": looped(cores)}
    ways["loop, 1 thread"] = looped(1)
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(1 + TURNS):
        for name, way in ways.items():
            began = time.perf_counter()
            way()
            if turn:
                times[name].append(1000 * (time.perf_counter() - began) / (CLIENTS * STEPS))
    for name, ms in times.items():
        print(f"{name}: {spread(ms)} ms a client's step, {GFLOP / statistics.median(ms) * 1000:.0f} GFLOP/s")
    save("lstm", {"machine": here, "ms": times, "gflop": GFLOP})


if __name__ == "__main__":
    main()
