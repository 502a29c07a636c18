"""How fast a cohort trains on a GPU: a loop over clients as others write it, and this project's
engine in three ways.

    python benchmarks/gpu.py [CLIENTS ...]

FedAvg, FEMNIST's network of FedSIM (1.2 million parameters), 200 examples a client, batches of 20,
one epoch, so 10 steps; whole rounds with drawing the cohort and averaging, data on the GPU, no
scoring. Each figure is the median of repeats of several rounds with their extremes. Weights are
compared with the loop's in float32, as far as that goes: dropout is drawn by torch there. Equal
work is checked by `compare.py cuda`, without dropout.
"""

import itertools
import statistics
import sys
import time
from collections.abc import Iterator
from functools import partial

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from engines import descend
from fedtailor import data as sources
from fedtailor import models, prng
from fedtailor.core import trees
from fedtailor.core.types import Params
from fedtailor.engines import factory
from fedtailor.engines.base import ClientWork
from fedtailor.engines.context import EngineContext, allow_tf32
from fedtailor.engines.single_client import iter_batches
from fedtailor.prng.streams import Stream
from fedtailor.training.context import infer_task, prepare_context
from fedtailor.training.loop import run_rounds

REPEATS, ROUNDS, PEOPLE = 5, 10, 300
MODEL = partial(models.fedsim_femnist, (1, 28, 28), 62)


def images(people: int, each: int = 200) -> sources.FederatedDataset:
    """People with equally many random images: what is learned does not matter here."""
    draws = np.random.default_rng(0)
    x = draws.integers(0, 256, (people * each, 1, 28, 28), dtype=np.uint8)
    whose = np.arange(people * each) % people
    y = draws.integers(0, 62, len(x))
    return sources.from_arrays(
        x, y, whose, scale=1 / 255, test_share=0.0, validation_clients=0.0, unseen_clients=0.0
    )


def looped(setting: EngineContext, clients: int) -> Iterator[Params]:
    """FedAvg as it is usually written: a module, autograd and torch.optim, one client after
    another.
    """
    site, phase = setting.make_client_dataset(), setting.method.client.phases[0]
    theta, model = trees.to(setting.task.params, setting.device), MODEL().to(setting.device)
    for number in itertools.count():
        chosen = prng.choice(prng.key(setting.seed, "cohort", number), PEOPLE, clients).tolist()
        total = trees.zeros_like(theta)
        for client in chosen:
            model.load_state_dict(theta)
            key = prng.fold(setting.derive_keys(Stream.CLIENT, number, [client])[0], 0)
            descend(model, 0.1, iter_batches(phase.plan, ClientWork(site, client, key)))
            total = {
                name: total[name] + value.detach() / clients
                for name, value in model.named_parameters()
            }
        theta = total
        yield theta


def ours(setting: EngineContext, clients: int, compile: bool) -> Iterator[Params]:
    """The same by the vectorized engine."""
    engine = factory.make_engine(setting, compile=compile)
    for done in run_rounds(
        setting, engine, setting.init_server_state(), clients, lambda number: False
    ):
        yield done.state.params


def ways(clients: int) -> dict[str, tuple[bool, Iterator[Params]]]:
    """Each way's rounds, and whether products may be rounded to tf32."""
    data = images(PEOPLE)
    task = infer_task(MODEL, data.example_spec, 1)

    def setting(compute: torch.dtype | None = None, stacking: bool = False) -> EngineContext:
        model = (task.with_stacked_ops() if stacking else task).with_compute_dtype(compute)
        return prepare_context(
            "fedavg", model, data, rounds=1, seed=1, device="cuda", batch=20, epochs=1, lr=0.1
        )

    return {
        "loop, fp32": (False, looped(setting(), clients)),
        "fp32": (False, ours(setting(), clients, False)),
        "fp32 compiled": (False, ours(setting(), clients, True)),
        "loop, tf32": (True, looped(setting(), clients)),
        "tf32": (True, ours(setting(None, True), clients, False)),
        "tf32 compiled": (True, ours(setting(None, True), clients, True)),
        "tf32 compiled, cuDNN": (True, ours(setting(), clients, True)),
        "bf16": (True, ours(setting(torch.bfloat16, True), clients, False)),
        "bf16 compiled": (True, ours(setting(torch.bfloat16, True), clients, True)),
        "bf16 compiled, cuDNN": (True, ours(setting(torch.bfloat16), clients, True)),
    }


def measured(clients: int) -> dict[str, list[float]]:
    """Milliseconds per round for each way, after rounds to warm up."""
    runs, times, ends = ways(clients), dict[str, list[float]](), dict[str, Params]()
    for way, (tf32, run) in runs.items():
        allow_tf32(tf32)
        ends[way] = [next(run) for _ in range(3)][-1]
        times[way] = []
    for way in ("fp32", "fp32 compiled"):
        gap = float(
            trees.norm(trees.sub(ends[way], ends["loop, fp32"])) / trees.norm(ends["loop, fp32"])
        )
        print(f"{clients} clients, {way}: weights after 3 rounds are {gap:.1e} from the loop's")
    for (way, (tf32, run)), _ in itertools.product(runs.items(), range(REPEATS)):
        allow_tf32(tf32)
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(1 if way.startswith("loop") else ROUNDS):
            next(run)
        torch.cuda.synchronize()
        times[way].append(
            1000 * (time.perf_counter() - began) / (1 if way.startswith("loop") else ROUNDS)
        )
    return times


def main() -> None:
    """Prints a table for each size of the cohort."""
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}")
    for clients in map(int, sys.argv[1:] or ("10", "50")):
        times = measured(clients)
        table = Table(
            "way", "ms a round", "least", "most", title=f"{clients} clients", title_justify="left"
        )
        for way, values in times.items():
            table.add_row(
                way,
                *(
                    f"{value:.1f}"
                    for value in (statistics.median(values), min(values), max(values))
                ),
            )
        Console(width=100).print(table)


if __name__ == "__main__":
    main()
