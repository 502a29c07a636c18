"""How fast a cohort trains: an ordinary PyTorch loop, the reference engine, the vectorized engine,
and that compiled.

Run with `make bench`. Each row trains the same rounds every way, alternating, and reports
milliseconds per round (median, smallest and largest of the repeats) and the ratio of the loop's
median to each. Equal work is checked: all ways end with the same weights up to rounding.
"""

import itertools
import statistics
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from fedtailor import data as sources
from fedtailor import models, prng
from fedtailor.core import trees
from fedtailor.core.types import Batch, Params
from fedtailor.engines import factory
from fedtailor.engines.base import ClientWork
from fedtailor.engines.context import EngineContext
from fedtailor.engines.single_client import iter_batches
from fedtailor.prng.streams import Stream
from fedtailor.training.context import prepare_context
from fedtailor.training.loop import run_rounds
from results import in_words, machine, save, spread

REPEATS = 5
MLP = partial(models.mlp, 784, (80, 60), 10, nn.ELU)
ENGINES: dict[str, dict[str, Any]] = {
    "one by one": {"name": "sequential"},
    "vectorized": {},
    "compiled": {"compile": True},
}


def torch_loop(setting: EngineContext, clients: int) -> Iterator[Params]:
    """FedAvg as it is usually written: a module, autograd and torch.optim, one client after
    another.
    """
    site, phase, lr = setting.make_client_dataset(), setting.method.client.phases[0], 0.1
    theta, model = setting.task.params, MLP()
    for number in itertools.count():
        chosen = prng.choice(prng.key(setting.seed, "cohort", number), clients, clients).tolist()
        ends = []
        for client in chosen:
            model.load_state_dict(theta)
            key = prng.fold(setting.derive_keys(Stream.CLIENT, number, [client])[0], 0)
            descend(model, lr, iter_batches(phase.plan, ClientWork(site, client, key)))
            ends.append({name: value.detach().clone() for name, value in model.named_parameters()})
        theta = trees.apply(lambda *each: torch.stack(each).mean(0), *ends)
        yield theta


def descend(model: nn.Module, lr: float, batches: Iterator[tuple[Batch, ...]]) -> None:
    """A client's steps, as they are usually written."""
    optimizer = torch.optim.SGD(model.parameters(), lr)
    for (batch,) in batches:
        optimizer.zero_grad()
        losses = (
            nn.functional.cross_entropy(model(batch.x), batch.y, reduction="none")
            .reshape(len(batch.y), -1)
            .mean(1)
        )
        ((losses * batch.mask).sum() / batch.mask.sum()).backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def images(clients: int, each: int) -> sources.FederatedDataset:
    """Clients with equally many random images: what is learned does not matter here."""
    draws = np.random.default_rng(0)
    count = clients * each
    x, y = draws.integers(0, 256, (count, 1, 28, 28), dtype=np.uint8), draws.integers(0, 10, count)
    whose = np.arange(count) % clients
    return sources.from_arrays(
        x,
        y,
        whose,
        scale=1 / 255,
        server=100,
        test_share=0.0,
        validation_clients=0.0,
        unseen_clients=0.0,
    )


def measured(clients: int) -> dict[str, list[float]]:
    """Milliseconds per round for each way, after a warm-up round."""
    data = images(clients, 402)
    settings = {
        way: prepare_context("fedavg", MLP, data, rounds=1, seed=1, batch=40, steps=10)
        for way in ("loop", *ENGINES)
    }
    runs: dict[str, Iterator[Params]] = {"loop": torch_loop(settings["loop"], clients)}
    for way, options in ENGINES.items():
        loop = run_rounds(
            settings[way],
            factory.make_engine(settings[way], **options),
            settings[way].init_server_state(),
            clients,
        )
        runs[way] = (done.state.params for done in loop)
    ends = {way: next(run) for way, run in runs.items()}
    times: dict[str, list[float]] = {way: [] for way in runs}
    for _ in range(REPEATS):
        for way, run in runs.items():
            began = time.perf_counter()
            ends[way] = next(run)
            times[way].append(1000 * (time.perf_counter() - began))
    for way, end in ends.items():
        gap = float(trees.norm(trees.sub(end, ends["loop"])) / trees.norm(ends["loop"]))
        if not gap < 1e-4:
            raise SystemExit(f"{way}: unequal work, the weights are {gap:.1e} from the loop's")
    return times


def main() -> None:
    """Prints the table, and writes what is in it."""
    here, found = machine(), dict[str, dict[str, list[float]]]()
    print(f"FedAvg, MLP 784-80-60-10, batch 40, 10 steps a client; {in_words(here)}")
    table = Table(
        "clients",
        "loop, ms",
        *(f"{way}, ms" for way in ENGINES),
        *(f"loop/{way}" for way in ENGINES),
    )
    for clients in (10, 50):
        times = found[str(clients)] = measured(clients)
        middle = {way: statistics.median(values) for way, values in times.items()}
        table.add_row(
            str(clients),
            *map(spread, times.values()),
            *(f"{middle['loop'] / middle[way]:.1f}" for way in ENGINES),
        )
    Console(width=140).print(table)
    save("engines", {"machine": here, "clients": found})


if __name__ == "__main__":
    main()
