"""What several runs of one method cost in one stack, against one after another.

    python benchmarks/abreast.py

FedAvg on an MLP 784-80-60-10, 10 clients a round, batches of 40, 10 steps, with eight step sizes, each for 10 rounds.
Both ways alternate; the ratio is of medians of the repeats. Equal work is checked: every run ends with the same weights
both ways.
"""

import statistics
import time
from functools import partial
from itertools import islice

import torch

from engines import MLP, REPEATS, images
from fedtailor import engines, trees
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


def main() -> None:
    """Prints both times and their ratio."""
    data = images(50, 402)
    times: dict[str, list[float]] = {"one after another": [], "in one stack": []}
    for _ in range(REPEATS):
        ends = {}
        for way, spent in times.items():
            settings = [prepare("fedavg", MLP, data, rounds=1, seed=1, batch=40, steps=10, lr=lr) for lr in RATES]
            jobs = [partial(run, setting) for setting in settings]
            began = time.perf_counter()
            ends[way] = abreast(jobs) if way == "in one stack" else [job(None) for job in jobs]
            spent.append(time.perf_counter() - began)
        gap = max(float(trees.norm(trees.sub(a, b)) / trees.norm(a)) for a, b in zip(*ends.values(), strict=True))
        if not gap < 1e-4:
            raise SystemExit(f"unequal work: the weights are {gap:.1e} apart")
    middle = {way: statistics.median(spent) for way, spent in times.items()}
    print(f"{len(RATES)} runs of {ROUNDS} rounds; torch {torch.__version__}, {torch.get_num_threads()} threads")
    for way, spent in times.items():
        print(f"{way}: {middle[way]:.2f} s ({min(spent):.2f}-{max(spent):.2f})")
    print(f"ratio {middle['one after another'] / middle['in one stack']:.1f}")


if __name__ == "__main__":
    main()
