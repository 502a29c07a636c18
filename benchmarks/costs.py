"""What a round costs this project: by cohort, imbalance, population, model, method, and in memory.

    python benchmarks/costs.py [quick] [compiled] [cohort imbalance population model methods memory]

FedAvg by the vectorized engine, compiled, unless something else is said; milliseconds of whole
rounds, with drawing the cohort and averaging, without scoring. What is compared alternates. Methods
run uncompiled unless `compiled` is said, since compiling all of them takes minutes; memory is
measured in processes of its own, uncompiled. What will be needed is compiled first, two parts at a
time, in processes that leave it on disk.
"""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from torch import nn

from fedtailor import methods, models
from fedtailor.data import ClientExamples, FederatedDataset
from fedtailor.data.builtin.arrays import from_arrays
from fedtailor.data.store import make_range_split
from fedtailor.engines import factory
from fedtailor.engines.context import EngineContext
from fedtailor.evaluation.costs import CostMeter
from fedtailor.training.context import prepare_context
from fedtailor.training.loop import Round, run_rounds
from results import machine, save, spread
from store import resident

Row = dict[str, Any]
MLP = partial(models.mlp, 784, (80, 60), 10, nn.ELU)
CNN = partial(models.fedsim_femnist, (1, 28, 28), 10)
EACH, BATCH = 100, 20  # examples of a client, and of a step
WARM_UP = 2
APART = ("local", "centralized")  # they train nobody in rounds, or one pool of everybody's examples
POPULATIONS = (100, 10_000, 342_477)
STACKED, CHUNKS = 32, (1, 8, 32)


def people(sizes: NDArray[np.int64], server: int = 0) -> FederatedDataset:
    """People with so many random images each, and the server with some of its own."""
    draws, count = np.random.default_rng(0), int(sizes.sum()) + server
    x, y = draws.integers(0, 256, (count, 1, 28, 28), dtype=np.uint8), draws.integers(0, 10, count)
    whose, own = np.arange(len(sizes)).repeat(sizes), (x[count - server :], y[count - server :])
    everything: dict[str, Any] = {
        "test_share": 0.0,
        "validation_clients": 0.0,
        "unseen_clients": 0.0,
        "scale": 1 / 255,
    }
    return from_arrays(
        x[: len(whose)], y[: len(whose)], whose, server=own if server else None, **everything
    )


def population(clients: int, each: int = 10, width: int = 32) -> FederatedDataset:
    """So many people with a run of small examples each."""
    draws, sizes = np.random.default_rng(0), np.full(clients, each)
    x, y = (
        draws.integers(0, 256, (clients * each, width), dtype=np.uint8),
        draws.integers(0, 10, clients * each),
    )
    starts, everybody, nobody = np.arange(clients) * each, np.arange(clients), np.arange(0)
    splits = {"train": make_range_split(starts, sizes), "test": make_range_split(starts, 0 * sizes)}
    groups = {
        "train": everybody,
        "participating": everybody,
        "validation": nobody,
        "unseen": nobody,
    }
    return FederatedDataset(
        "population", ClientExamples(x, y, splits), everybody.astype(str), groups, None, 10, 1 / 255
    )


def rounds_of(
    setting: EngineContext, clients: int, compile: bool = True, chunk: int | None = None
) -> Iterator[Round]:
    """Rounds, for as long as they are asked for."""
    engine = factory.make_engine(setting, chunk=chunk, compile=compile)
    return run_rounds(setting, engine, setting.init_server_state(), clients, [False].__contains__)


def timed(ways: dict[str, Iterator[Round]], turns: int) -> dict[str, list[float]]:
    """Milliseconds of the rounds of each way, in turn, after rounds to warm up."""
    for way in ways.values():
        for _ in range(WARM_UP):
            next(way)
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(turns):
        for name, way in ways.items():
            began = time.perf_counter()
            next(way)
            times[name].append(1000 * (time.perf_counter() - began))
    return times


def rows(times: dict[str, list[float]], **more: dict[str, Any]) -> list[Row]:
    """What was measured, one row for each way, with what else is known of it."""
    return [
        {"what": name, "ms": ms, **{k: v[name] for k, v in more.items()}}
        for name, ms in times.items()
    ]


def cohort(turns: int, compiled: bool) -> list[Row]:
    """Cohorts of 1 to 1000 clients, 5 steps each."""
    setting = partial(
        prepare_context, "fedavg", MLP, people(np.full(1000, EACH)), rounds=1, batch=BATCH, epochs=1
    )
    sizes = {str(clients): clients for clients in (1, 10, 100, 1000)}
    times = timed({name: rounds_of(setting(), clients) for name, clients in sizes.items()}, turns)
    return rows(times, clients=sizes)


def imbalance(turns: int, compiled: bool) -> list[Row]:
    """Twenty clients with as many examples in all: alike, and from 20 to 400 of them, evenly in the
    logarithm.
    """
    unequal = np.geomspace(20, 400, 20).round().astype(np.int64)
    equal = np.full(20, unequal.sum() // 20)
    equal[: unequal.sum() - equal.sum()] += 1
    datas = {"alike": people(equal), "20 : 1": people(unequal)}
    examples = {
        name: int(data.clients.splits["train"].compute_sizes().sum())
        for name, data in datas.items()
    }
    settings = {
        name: prepare_context("fedavg", MLP, data, rounds=1, batch=BATCH, epochs=1)
        for name, data in datas.items()
    }
    steps = {
        name: int((-(-data.clients.splits["train"].compute_sizes() // BATCH)).sum())
        for name, data in datas.items()
    }
    times = timed({name: rounds_of(setting, 20) for name, setting in settings.items()}, turns)
    return rows(times, examples=examples, steps=steps)


def populations(turns: int, compiled: bool) -> list[Row]:
    """Cohorts of 100 from populations up to StackOverflow's; what generating and checking the data
    takes.
    """
    ways, took = {}, {}
    for clients in POPULATIONS:
        began, name = time.perf_counter(), f"{clients:,}"
        net = partial(models.mlp, 32, (32,), 10)
        setting = prepare_context("fedavg", net, population(clients), rounds=1, batch=10, epochs=5)
        took[name] = time.perf_counter() - began
        ways[name] = rounds_of(setting, 100)
    return rows(timed(ways, turns), setup_s=took)


def model(turns: int, compiled: bool) -> list[Row]:
    """Ten clients, 5 steps, with networks from thousands to millions of parameters."""
    nets: dict[str, Callable[[], nn.Module]] = {
        f"mlp 784-{width}-{width}-10": partial(models.mlp, 784, (width, width), 10)
        for width in (16, 128, 1024)
    }
    nets["cnn (fedsim_femnist)"] = CNN
    data = people(np.full(20, EACH))
    settings = {
        name: prepare_context("fedavg", net, data, rounds=1, batch=BATCH, epochs=1)
        for name, net in nets.items()
    }
    sizes = {
        name: sum(each.numel() for each in s.task.params.values()) for name, s in settings.items()
    }
    return rows(
        timed({name: rounds_of(s, 10) for name, s in settings.items()}, turns), parameters=sizes
    )


def of_methods(turns: int, compiled: bool) -> list[Row]:
    """Every method with its own defaults, 20 clients of 100 examples; the gradients that it counts
    beside the time.
    """
    data, ways, gradients = people(np.full(40, EACH), server=200), {}, {}
    for name in (each for each in methods.NAMES if each not in APART):
        setting = prepare_context(name, MLP, data, rounds=100, cohort=20, batch=BATCH)
        ways[name] = rounds_of(setting, 20, compile=compiled)
        cost = CostMeter(setting).compute_round_work(setting.data.groups["train"][:20])
        gradients[name] = cost.gradients + cost.server_gradients
    return rows(timed(ways, turns), gradients=gradients)


def memory(turns: int, compiled: bool) -> list[Row]:
    """A cohort of 32 on the CNN, one step each, stacked by 1 to 32: each a process, and its most
    memory.
    """
    found = []
    for chunk in CHUNKS:
        said = subprocess.run(
            [sys.executable, __file__, "peak", str(chunk)],
            check=True,
            capture_output=True,
            text=True,
        )
        found.append(json.loads(said.stdout))
    return found


def peak(chunk: int) -> Row:
    """The most that a process ever had in RAM, before its first round and after some."""
    setting = prepare_context(
        "fedavg", CNN, people(np.full(STACKED, BATCH)), rounds=1, batch=BATCH, steps=1
    )
    way = rounds_of(setting, STACKED, compile=False, chunk=chunk)
    before, times = resident()["VmHWM"], timed({"": way}, 2)[""]
    return {"what": str(chunk), "ms": times, "before_mb": before, "most_mb": resident()["VmHWM"]}


PARTS: dict[str, Callable[[int, bool], list[Row]]] = {
    "cohort": cohort,
    "imbalance": imbalance,
    "population": populations,
    "model": model,
    "methods": of_methods,
    "client_state": memory,
}
COMPILED = ("imbalance", "cohort", "model", "population")  # the longest first


def compile_beforehand(parts: Sequence[str]) -> None:
    """Has processes of their own go through the parts' warm-up: what they compile stays on disk."""
    commands = [[sys.executable, __file__, "warm", part] for part in parts]
    with ThreadPoolExecutor(2) as pool:
        for done in pool.map(partial(subprocess.run, capture_output=True, text=True), commands):
            if done.returncode:
                raise SystemExit(done.stderr)


def show(name: str, found: list[Row]) -> None:
    """Prints one part."""
    more = [key for key in found[0] if key not in ("what", "ms")]
    table = Table(name, "ms a round", "of the first", *more, title_justify="left")
    first = statistics.median(found[0]["ms"])
    for row in found:
        ratio = statistics.median(row["ms"]) / first
        table.add_row(
            row["what"], spread(row["ms"]), f"{ratio:.2f}", *(f"{row[key]:,.4g}" for key in more)
        )
    Console(width=120).print(table)


def main(words: list[str]) -> None:
    """Measures the parts that are asked for, or all."""
    if words[:1] == ["peak"]:
        print(json.dumps(peak(int(words[1]))))
        return
    if words[:1] == ["warm"]:
        PARTS[words[1]](0, False)
        return
    here, quick = machine(), "quick" in words
    found: dict[str, Any] = {"machine": here}
    parts = [name for name in PARTS if name in words] or list(PARTS)
    compile_beforehand([name for name in parts if name in COMPILED])
    for name in parts:
        found[name] = PARTS[name](2 if quick else 5, "compiled" in words)
        show(name, found[name])
    if not quick and set(PARTS) <= set(found):
        save("costs", found)


if __name__ == "__main__":
    main(sys.argv[1:])
