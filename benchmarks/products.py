"""What is left to gain on a CPU: a round of the MLP beside its products alone: python benchmarks/products.py.

FedAvg, MLP 784-80-60-10, batch 40, 10 steps a client, random images, as in engines.py. "Products" are those that any
way has to do, forward, back and by weights, for all clients at once, by torch, into room that is there; nothing else.
"Large" is a product of two matrices of 2048 x 2048. In turns; the median, smallest and largest of 15 rounds.
"""

import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from engines import MLP, images, torch_loop
from fedtailor import engines
from fedtailor.run.fitting import prepare
from fedtailor.run.loop import round_loop
from results import in_words, machine, spread

LAYERS, BATCH, STEPS, TURNS, LARGE = ((784, 80), (80, 60), (60, 10)), 40, 10, 15, 2048


def products(clients: int) -> tuple[Callable[[], None], float]:
    """A round's products, and how many billions of operations they are."""
    todo: list[tuple[Tensor, Tensor, Tensor]] = []
    for number, (inputs, outputs) in enumerate(LAYERS):
        x, w = torch.randn(clients, BATCH, inputs), torch.randn(clients, inputs, outputs)  # as compiled steps keep them
        y = torch.randn(clients, BATCH, outputs)
        todo += [(x, w, torch.empty_like(y)), (x.mT, y, torch.empty_like(w))]
        if number:  # nobody asks for the gradient by images
            todo.append((y, w.mT, torch.empty_like(x)))

    def once() -> None:
        for _ in range(STEPS):
            for a, b, made in todo:
                torch.bmm(a, b, out=made)

    return once, STEPS * sum(2 * a.numel() * b.shape[2] for a, b, _ in todo) / 1e9


def ways(clients: int) -> tuple[dict[str, Callable[[], object]], dict[str, float]]:
    """What is timed, and its billions of operations."""
    data = images(clients, 402)
    setting = prepare("fedavg", MLP, data, rounds=1, seed=1, batch=BATCH, steps=STEPS)
    ours = round_loop(setting, engines.make(setting, compile=True), setting.first_state(), clients)
    loop, large = torch_loop(setting, clients), torch.randn(LARGE, LARGE)
    alone, gflop = products(clients)
    found: dict[str, Callable[[], object]] = {
        "loop": lambda: next(loop),
        "compiled": lambda: next(ours),
        "products": alone,
        "large": lambda: large @ large,
    }
    return found, {**dict.fromkeys(found, gflop), "large": 2 * LARGE**3 / 1e9}


def main() -> None:
    """Measures and prints."""
    print(in_words(machine()))
    for clients in (10, 50):
        todo, gflop = ways(clients)
        times: dict[str, list[float]] = {name: [] for name in todo}
        for turn in range(2 + TURNS):
            for name, way in todo.items():
                began = time.perf_counter()
                way()
                if turn > 1:
                    times[name].append(1000 * (time.perf_counter() - began))
        for name, ms in times.items():
            print(
                f"{clients} clients, {name}: {spread(ms)} ms, {gflop[name] / statistics.median(ms) * 1000:.0f} GFLOP/s"
            )


if __name__ == "__main__":
    main()
