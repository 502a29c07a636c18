"""What several runs of one method cost in one stack, against one after another.

    python benchmarks/abreast.py

FedAvg, 10 clients a round, 10 steps, with eight step sizes, each for 10 rounds: an MLP 64-32-10 on the digits that come
with the library (batches of 10), and an MLP 784-80-60-10 on random images (batches of 40), whose products alone keep a
processor busy. Both ways alternate; the ratio is of medians of the repeats. Equal work is checked: every run ends with
the same weights both ways.
"""

import statistics
import time
from collections.abc import Callable
from functools import partial
from itertools import islice

import torch
from torch import nn

from engines import MLP, REPEATS, images
from fedtailor import data as sources
from fedtailor import engines, models, trees
from fedtailor.data.dataset import FederatedDataset
from fedtailor.engines import Party, Setting
from fedtailor.run.abreast import abreast
from fedtailor.run.fitting import prepare
from fedtailor.run.loop import round_loop
from fedtailor.types import Params

RATES, ROUNDS, CLIENTS = (0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.3, 0.5), 10, 10


def run(setting: Setting, party: Party | None) -> Params:
    """The weights after all rounds."""
    engine = party.engine(setting, None, False) if party else engines.make(setting)
    loop = round_loop(setting, engine, setting.first_state(), CLIENTS)
    return list(islice(loop, ROUNDS))[-1].state.params


def measured(model: Callable[[], nn.Module], data: FederatedDataset, batch: int) -> dict[str, list[float]]:
    """Seconds for all runs, both ways."""
    times: dict[str, list[float]] = {"one after another": [], "in one stack": []}
    for _ in range(REPEATS):
        ends = {}
        for way, spent in times.items():
            settings = [prepare("fedavg", model, data, rounds=1, seed=1, batch=batch, steps=10, lr=lr) for lr in RATES]
            jobs = [partial(run, setting) for setting in settings]
            began = time.perf_counter()
            ends[way] = abreast(jobs) if way == "in one stack" else [job(None) for job in jobs]
            spent.append(time.perf_counter() - began)
        gap = max(float(trees.norm(trees.sub(a, b)) / trees.norm(a)) for a, b in zip(*ends.values(), strict=True))
        if not gap < 1e-4:
            raise SystemExit(f"unequal work: the weights are {gap:.1e} apart")
    return times


def main() -> None:
    """Prints both times and their ratio for each model."""
    print(f"{len(RATES)} runs of {ROUNDS} rounds; torch {torch.__version__}, {torch.get_num_threads()} threads")
    small = partial(models.mlp, 64, (32,), 10)
    shown("64-32-10", measured(small, sources.load("digits"), 10))
    shown("784-80-60-10", measured(MLP, images(50, 402), 40))


def shown(name: str, times: dict[str, list[float]]) -> None:
    """Prints a line."""
    middle = {way: statistics.median(spent) for way, spent in times.items()}
    said = (f"{way} {middle[way]:.2f} s ({min(spent):.2f}-{max(spent):.2f})" for way, spent in times.items())
    ratio = middle["one after another"] / middle["in one stack"]
    print(f"{name}: {', '.join(said)}, ratio {ratio:.1f}", flush=True)


if __name__ == "__main__":
    main()
