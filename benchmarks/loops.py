"""Rounds of this project beside plain loops over clients, on a CPU, before and after a change in
one run.

    python benchmarks/loops.py [--before TREE] [--turns 5] [--cpu-time] [--out FILE] [CASE ...]
    python benchmarks/loops.py defaults [--turns 5] [--cpu-time] [--rounds 2000] [CASE ...]
    python benchmarks/loops.py methods [--turns 5] [--cpu-time] [NET ...]

A plain loop is an `nn.Module`, a `DataLoader` over a `TensorDataset`, autograd and in-place
updates, one client after another: written here for FedAvg, FedProx, SCAFFOLD and first-order
Per-FedAvg. The tight loop cuts its batches from the tensors by index instead, which spares small
models most of the loader's time. Both see the same cohorts and the same batches, and must end with
the same weights, or nothing is reported. Every way is a process of its own; they warm up side by
side and then take turns. `--before` adds another checkout of the project, with its own copy of this
file. `--cpu-time` counts the processor's time, which other work on a busy machine does not
lengthen; with one thread (OMP_NUM_THREADS=1) it stands for the wall's. Results are written to
`results/loops.json` if all cases are measured.

`defaults` measures whole rounds of `fedtailor.fit` and of the command line, as they are begun with
nothing but data, model, method, cohort, seed, step sizes and rounds, without evaluation, which the
loops do not do; what happens before the first round, compiling included, is left out and shown.
From the number of rounds (`--rounds`) follows whether they compile. `methods` measures uncompiled
rounds of every method beside FedAvg's, with the gradients that they count.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional as nnf
from torch.utils.data import DataLoader, TensorDataset

import fedtailor.api
import fedtailor.cli
import fedtailor.training.runner
from fedtailor import data as sources
from fedtailor import methods, models, prng
from fedtailor.core.functionalize import seed_initialization
from fedtailor.data.batching import BatchIndices, iter_batch_indices
from fedtailor.engines import client_loop, factory
from fedtailor.engines.context import EngineContext
from fedtailor.evaluation.costs import CostMeter
from fedtailor.prng.streams import Stream
from fedtailor.training.context import infer_task, prepare_context
from fedtailor.training.loop import Round, run_rounds
from peers.nets import NETS
from results import FOLDER, machine, save, spread

SEED = 1
CLIENTS = 100
REST_S = 0.3
MARK = "@ "
CPU_TIME = "FEDTAILOR_CPU_TIME"
ROUNDS = "FEDTAILOR_ROUNDS"
WAYS = ("loop", "tight loop", "uncompiled", "compiled")
DEFAULT_WAYS = ("loop", "tight loop", "fit", "command line")
DEFAULT_CASES = tuple(
    f"{prefix}{net}-10"
    for net in ("lenet", "mlp")
    for prefix in ("", "fedprox-", "scaffold-", "per-fedavg-")
)
LEFT_OUT_METHODS = ("local", "centralized")  # they have no rounds, or one pool of all examples
# Of how far the weights have moved: rounding decides on which side of its kink a unit falls.
TOLERANCES = {"mlp": 1e-3, "cnn": 2e-2, "lenet": 2e-2, "lstm": 2e-2}

Weights = dict[str, Tensor]
Batch = tuple[Tensor, Tensor]


class Case(NamedTuple):
    """A method and a model."""

    method: str
    net: str
    cohort: int
    batch: int
    steps: int
    rounds: int  # in a turn
    lr: float = 0.01

    @property
    def words(self) -> dict[str, Any]:
        """The method's hyper-parameters."""
        own: dict[str, dict[str, Any]] = {
            "fedprox": {"lam": 0.1},
            "per-fedavg": {"variant": "fo", "alpha": 0.01},
        }
        return {"batch": self.batch, "epochs": 1, "lr": self.lr, **own.get(self.method, {})}


CASES = {
    "mlp-10": Case("fedavg", "mlp", 10, 40, 10, 6),
    "mlp-50": Case("fedavg", "mlp", 50, 40, 10, 2),
    "cnn-10": Case("fedavg", "cnn", 10, 20, 10, 1),
    "cnn-50": Case("fedavg", "cnn", 50, 20, 3, 1),
    "lenet-10": Case("fedavg", "lenet", 10, 20, 10, 3),
    "lenet-50": Case("fedavg", "lenet", 50, 20, 10, 1),
    "lstm-10": Case("fedavg", "lstm", 10, 4, 10, 1, 0.05),
    "lstm-50": Case("fedavg", "lstm", 50, 4, 3, 1, 0.05),
    "fedprox-lenet-10": Case("fedprox", "lenet", 10, 20, 10, 3),
    "scaffold-lenet-10": Case("scaffold", "lenet", 10, 20, 10, 3),
    "per-fedavg-lenet-10": Case("per-fedavg", "lenet", 10, 20, 10, 3),
    "fedprox-mlp-10": Case("fedprox", "mlp", 10, 40, 10, 6),
    "scaffold-mlp-10": Case("scaffold", "mlp", 10, 40, 10, 6),
    "per-fedavg-mlp-10": Case("per-fedavg", "mlp", 10, 40, 10, 6),
}


class TorchLSTM(nn.Module):
    """The model for Shakespeare with `torch.nn.LSTM`, whose second biases stay at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(90, 8)
        self.lstm = nn.LSTM(8, 256, 2, batch_first=True)
        self.head = nn.Linear(256, 90)
        for layer in range(2):
            second = getattr(self.lstm, f"bias_hh_l{layer}")
            nn.init.zeros_(second).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        """The logits of what comes next at each place."""
        found: Tensor = self.head(self.lstm(self.embedding(x))[0])
        return found


MODELS: dict[str, Callable[[], nn.Module]] = {
    **NETS,
    "lenet": partial(models.lenet, (1, 28, 28), 10),
    "lstm": models.shakespeare,
}


def draw_images(case: Case) -> tuple[Any, Any, Any]:
    """Return random images of a hundred clients, their labels and their clients."""
    draw = np.random.default_rng(0)
    each = case.steps * case.batch
    x = draw.integers(0, 256, (CLIENTS * each, 1, 28, 28), dtype=np.uint8)
    y = draw.integers(0, 10, CLIENTS * each)
    return x, y, np.arange(CLIENTS).repeat(each)


def dataset(case: Case) -> sources.FederatedDataset:
    """Random examples for a hundred clients, all of them to train on."""
    draw = np.random.default_rng(0)
    each = case.steps * case.batch
    client = np.arange(CLIENTS).repeat(each)
    everything: dict[str, Any] = {
        "test_share": 0.0,
        "validation_clients": 0.0,
        "unseen_clients": 0.0,
    }
    if case.net == "lstm":
        texts = draw.integers(0, 90, (CLIENTS * each, 81), dtype=np.uint8)
        return sources.from_arrays(
            texts[:, :80], texts[:, 1:], client, tokens=True, classes=90, **everything
        )
    x, y, client = draw_images(case)
    return sources.from_arrays(x, y, client, scale=1 / 255, **everything)


def setting_of(case: Case) -> EngineContext:
    """The method on the data."""
    data = dataset(case)
    with seed_initialization(SEED):
        model = MODELS[case.net]()
    return prepare_context(
        case.method,
        infer_task(model, data.example_spec, SEED),
        data,
        rounds=1,
        seed=SEED,
        **case.words,
    )


class Ours:
    """Rounds of the public loop."""

    def __init__(self, case: Case, compile: bool) -> None:
        setting = setting_of(case)
        self.state = setting.init_server_state()
        engine = factory.make_engine(setting, compile=compile)
        self._rounds = run_rounds(setting, engine, self.state, case.cohort, [False].__contains__)

    def round(self, number: int) -> None:
        """Train one round."""
        self.state = next(self._rounds).state

    def weights(self) -> Weights:
        """Return the global model."""
        return self.state.params


class Loop:
    """The plain loop of a method."""

    def __init__(self, case: Case, tight: bool) -> None:
        self._case, self._setting = case, setting_of(case)
        self._tight = tight
        data = self._setting.data
        self._model = TorchLSTM() if case.net == "lstm" else MODELS[case.net]()
        self._model.train()
        first = self._setting.task.params
        self._names = dict(
            zip(
                first,
                (n for n, p in self._model.named_parameters() if p.requires_grad),
                strict=True,
            )
        )
        self._theta = [value.clone() for value in first.values()]
        self._own = [p for p in self._model.parameters() if p.requires_grad]
        raw = torch.from_numpy(data.clients.x)
        self._x = raw.long() if case.net == "lstm" else raw.float() / 255
        self._y = torch.from_numpy(data.clients.y).long()
        self._control = [torch.zeros_like(value) for value in self._theta]
        self._controls = {
            client: [torch.zeros_like(v) for v in self._theta] for client in range(CLIENTS)
        }
        self._step = {
            "fedprox": self._proximal,
            "scaffold": self._scaffold,
            "per-fedavg": self._adapted,
        }.get(case.method, self._plain)
        self._orders: dict[int, list[tuple[int, list[tuple[Tensor, ...]]]]] = {}

    def prepare(self, number: int) -> None:
        """Work out the cohort and batches of a round, which is no part of the time."""
        setting, case = self._setting, self._case
        clients = setting.data.groups["train"]
        cohort = clients[
            prng.choice(prng.key(SEED, "cohort", number).numpy(), len(clients), case.cohort)
        ]
        keys = prng.fold(setting.derive_keys(Stream.CLIENT, number, cohort), 0)
        plan = setting.method.client.phases[0].plan
        steps = list(iter_batch_indices(plan, setting.data.clients, cohort, keys, case.steps))
        self._orders[number] = [
            (
                int(client),
                [tuple(place.rows[at] for place in _first_and_last(draws)) for draws in steps],
            )
            for at, client in enumerate(cohort)
        ]

    def round(self, number: int) -> None:
        """Train the cohort in turn and average."""
        total = [torch.zeros_like(value) for value in self._theta]
        moved = [torch.zeros_like(value) for value in self._theta]
        for client, steps in self._orders.pop(number):
            with torch.no_grad():
                for own, value in zip(self._own, self._theta, strict=True):
                    own.copy_(value)
            for batches in self._batches(steps):
                self._step(client, batches)
            with torch.no_grad():
                if self._case.method == "scaffold":
                    self._keep_control(client, len(steps), moved)
                for sum_, own in zip(total, self._own, strict=True):
                    sum_ += own / self._case.cohort
        self._theta = total
        for control, change in zip(self._control, moved, strict=True):
            control += change / CLIENTS

    def _batches(self, steps: list[tuple[Tensor, ...]]) -> Iterator[tuple[Batch, ...]]:
        if self._tight:
            for draws in steps:
                yield tuple((self._x[rows], self._y[rows]) for rows in draws)
            return
        data, loaders = TensorDataset(self._x, self._y), []
        for stream in zip(*steps, strict=True):
            order = torch.cat(stream).tolist()
            loaders.append(DataLoader(data, self._case.batch, sampler=order))
        yield from zip(*loaders, strict=True)

    def _gradient(self, batch: Batch) -> list[Tensor]:
        x, y = batch
        outputs = self._model(x)
        loss = nnf.cross_entropy(outputs.flatten(0, -2), y.flatten())
        return list(torch.autograd.grad(loss, self._own))

    @torch.no_grad()
    def _descend(self, gradient: list[Tensor], rate: float) -> None:
        for own, slope in zip(self._own, gradient, strict=True):
            own.sub_(slope, alpha=rate)

    def _plain(self, client: int, batches: Sequence[Batch]) -> None:
        self._descend(self._gradient(batches[0]), self._case.lr)

    def _proximal(self, client: int, batches: Sequence[Batch]) -> None:
        slopes = self._gradient(batches[0])
        with torch.no_grad():
            for slope, own, sent in zip(slopes, self._own, self._theta, strict=True):
                slope.add_(own - sent, alpha=0.1)
        self._descend(slopes, self._case.lr)

    def _scaffold(self, client: int, batches: Sequence[Batch]) -> None:
        slopes = self._gradient(batches[0])
        for slope, own, shared in zip(slopes, self._controls[client], self._control, strict=True):
            slope.sub_(own).add_(shared)
        self._descend(slopes, self._case.lr)

    def _keep_control(self, client: int, steps: int, moved: list[Tensor]) -> None:
        for at, own in enumerate(self._own):
            change = (self._theta[at] - own) / (steps * self._case.lr) - self._control[at]
            self._controls[client][at] += change
            moved[at] += change

    def _adapted(self, client: int, batches: Sequence[Batch]) -> None:
        before = [own.detach().clone() for own in self._own]
        self._descend(self._gradient(batches[0]), 0.01)
        slopes = self._gradient(batches[-1])
        with torch.no_grad():
            for own, value in zip(self._own, before, strict=True):
                own.copy_(value)
        self._descend(slopes, self._case.lr)

    def weights(self) -> Weights:
        """Return the global model under this project's names."""
        return dict(zip(self._names, self._theta, strict=True))


class DoneError(Exception):
    """Raised to end a run of which no more rounds are wanted."""


class Defaults:
    """Rounds of `fit` or of the command line, at their defaults, which wait for their turns."""

    def __init__(self, case: Case, way: str, rounds: int, clock: Callable[[], float]) -> None:
        self._case = case
        self._way = way
        self._rounds = rounds
        self._clock = clock
        self._left = 0
        self._began = 0.0
        self._started = _count_cpu_seconds()
        self._answer: dict[str, float] = {}
        self._last: Round | None = None
        self._size = 1

    def work(self) -> None:
        """Train until no more rounds are asked for."""
        for module in (fedtailor.api, fedtailor.training.runner):
            module.run_rounds = self._watch(module.run_rounds)  # type: ignore[attr-defined]
        try:
            if self._way == "fit":
                self._fit()
            else:
                self._run_command()
        except DoneError:
            return
        raise SystemExit("The run ended before its turns.")

    def weights(self) -> Weights:
        """Return the global model."""
        assert self._last is not None
        return self._last.state.params

    def _fit(self) -> None:
        case = self._case
        fedtailor.api.fit(
            case.method,
            MODELS[case.net],
            dataset(case),
            rounds=self._rounds,
            cohort=case.cohort,
            seed=SEED,
            **case.words,
        )

    def _run_command(self) -> None:
        case = self._case
        nets = Path(__file__).parent / "peers" / "nets.py"
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "data.npz"
            x, y, client = draw_images(case)
            np.savez(path, x=x, y=y, client=client)
            options = {
                "method": case.method,
                "data": path,
                "data.scale": 1 / 255,
                "data.test_share": 0,
                "data.validation_clients": 0,
                "data.unseen_clients": 0,
                "model": "lenet" if case.net == "lenet" else f"{nets}:{case.net}",
                "rounds": self._rounds,
                "cohort": case.cohort,
                "seed": SEED,
                "evaluate_every": self._rounds,
                "out": Path(folder) / "out",
                **case.words,
            }
            sys.argv = ["fedtailor", "run", *(f"{key}={value}" for key, value in options.items())]
            fedtailor.cli.main()

    def _watch(self, run: Callable[..., Iterator[Round]]) -> Callable[..., Iterator[Round]]:
        """Return the loop over rounds with a pause wherever a turn ends."""

        def watched(*args: Any, **options: Any) -> Iterator[Round]:
            compiling = _count_cpu_seconds() - self._started
            self._answer["start_s"] = compiling
            self._wait()
            for finished in run(*args, **options):
                yield finished
                self._last = finished
                self._end_round()

        return watched

    def _end_round(self) -> None:
        self._left -= 1
        if self._left:
            return
        self._answer["ms"] = 1000 * (self._clock() - self._began) / self._size
        print(f"{MARK}{json.dumps(self._answer)}", flush=True)
        self._wait()

    def _wait(self) -> None:
        """Wait to be told how many rounds to train."""
        line = sys.stdin.readline()
        if not line:
            raise DoneError
        self._size = int(line)
        self._left = self._size
        self._began = self._clock()


def _count_cpu_seconds() -> float:
    """Return the processor's seconds of this process and of the compilers that it ran."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def _first_and_last(draws: tuple[BatchIndices, ...]) -> tuple[BatchIndices, ...]:
    """Leave out the batch of Per-FedAvg's Hessian, which its first-order variant does not use."""
    return draws if len(draws) == 1 else (draws[0], draws[-1])


def work(name: str, way: str, end: Path) -> None:
    """Train as many rounds as each line of the input says, and tell how long one took."""
    case = CASES[name]
    clock = time.process_time if os.environ.get(CPU_TIME) else time.perf_counter
    client_loop.TRACE_AFTER_STEPS = 100  # so that steps are traced while warming up
    if way in DEFAULT_WAYS[2:]:
        print(f"{MARK}{{}}", flush=True)
        run = Defaults(case, way, int(os.environ[ROUNDS]), clock)
        run.work()
        torch.save(run.weights(), end)
        print(f"{MARK}{{}}", flush=True)
        return
    own = Loop(case, way == "tight loop") if "loop" in way else Ours(case, way == "compiled")
    print(f"{MARK}{{}}", flush=True)
    number = 0
    for line in sys.stdin:
        count = int(line)
        if isinstance(own, Loop):
            for each in range(number, number + count):
                own.prepare(each)
        began = clock()
        for each in range(number, number + count):
            own.round(each)
        spent = 1000 * (clock() - began) / count
        number += count
        print(f"{MARK}{json.dumps({'ms': spent})}", flush=True)
    torch.save(own.weights(), end)
    print(f"{MARK}{{}}", flush=True)


class Process:
    """A way at work."""

    def __init__(self, name: str, way: str, tree: Path, end: Path) -> None:
        folder = tree / "benchmarks"
        paths = [str(tree / "src"), str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
        env = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
        command = [sys.executable, str(folder / "loops.py"), "work", name, way, str(end)]
        self._log = end.with_suffix(".log").open("w+")
        self.end = end
        self.times: list[float] = []
        self.start_s: float | None = None  # before the first round
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=env,
        )

    def answer(self) -> dict[str, Any]:
        """Wait for what it says."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(MARK):
                found: dict[str, Any] = json.loads(line.removeprefix(MARK))
                return found
        self._log.seek(0)
        raise SystemExit(f"{self.end.stem} stopped:\n{self._log.read()[-3000:]}")

    def tell(self, rounds: int) -> None:
        """Have it train."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{rounds}\n")
        self._process.stdin.flush()

    def finish(self) -> Tensor:
        """Return the weights that it ended with, in one row."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self.answer()
        self._process.wait()
        self._log.close()
        return flat(torch.load(self.end))


def flat(weights: Weights) -> Tensor:
    """Return all weights in one row."""
    return torch.cat([value.reshape(-1).double() for value in weights.values()])


def ways_of(
    case: Case, trees: dict[str, Path], are_defaults: bool
) -> Iterator[tuple[str, str, Path]]:
    """Yield each way's title, its name and its checkout."""
    if are_defaults:
        for way in DEFAULT_WAYS:
            yield way, way, trees[""]
        return
    for way in WAYS[:2]:
        yield way, way, trees[""]
    for title, tree in trees.items():
        for way in WAYS[2:]:
            yield f"{title}{way}", way, tree


def measure(
    name: str, trees: dict[str, Path], turns: int, are_defaults: bool = False
) -> dict[str, Any]:
    """Return every way's milliseconds a round, once all have been found to end alike."""
    case = CASES[name]
    with tempfile.TemporaryDirectory() as folder:
        running = {
            title: Process(name, way, tree, Path(folder) / f"{title.replace(' ', '-')}.pt")
            for title, way, tree in ways_of(case, trees, are_defaults)
        }
        for process in running.values():
            process.answer()
            process.tell(2)
        for process in running.values():
            process.start_s = process.answer().get("start_s")
        for _ in range(turns):
            for process in running.values():
                time.sleep(REST_S)
                process.tell(case.rounds)
                process.times.append(process.answer()["ms"])
        ends = {title: process.finish() for title, process in running.items()}
    first = flat(setting_of(case).task.params)
    moved = (ends["loop"] - first).norm()
    gaps = {title: float((end - ends["loop"]).norm() / moved) for title, end in ends.items()}
    for title, gap in gaps.items():
        if not gap < TOLERANCES[case.net]:
            raise SystemExit(f"{name}, {title}: weights are {gap:.1e} off the loop's.")
    return {
        "ms": {title: process.times for title, process in running.items()},
        "gaps": gaps,
        "start_s": {title: process.start_s for title, process in running.items()},
    }


def measure_methods(net: str, turns: int) -> list[dict[str, Any]]:
    """Return uncompiled rounds of every method at its defaults, alternating, and its gradients."""
    clock = time.process_time if os.environ.get(CPU_TIME) else time.perf_counter
    client_loop.TRACE_AFTER_STEPS = 100
    draws = np.random.default_rng(0)
    x = draws.integers(0, 256, (2100, 1, 28, 28), dtype=np.uint8)
    y = draws.integers(0, 10, 2100)
    data = sources.from_arrays(
        x[100:],
        y[100:],
        np.arange(20).repeat(100),
        scale=1 / 255,
        test_share=0.0,
        validation_clients=0.0,
        unseen_clients=0.0,
        server=(x[:100], y[:100]),
    )
    loops: dict[str, Iterator[Round]] = {}
    gradients: dict[str, float] = {}
    for name in methods.NAMES:
        if name in LEFT_OUT_METHODS:
            continue
        context = prepare_context(name, MODELS[net], data, rounds=100, cohort=10, batch=20)
        engine = factory.make_engine(context)
        state = context.init_server_state()
        loops[name] = run_rounds(context, engine, state, 10, [False].__contains__)
        work = CostMeter(context).compute_round_work(data.groups["train"][:10])
        gradients[name] = work.gradients + work.server_gradients
    times: dict[str, list[float]] = {name: [] for name in loops}
    for turn in range(turns + 1):
        for name, rounds in loops.items():
            began = clock()
            next(rounds)
            if turn:
                times[name].append(1000 * (clock() - began))
    return [{"method": name, "ms": times[name], "gradients": gradients[name]} for name in loops]


def show_methods(net: str, rows: list[dict[str, Any]]) -> None:
    """Print each method's time and gradients beside FedAvg's."""
    columns = ("method", "ms a round", "of fedavg's", "gradients of fedavg's", "time / gradients")
    table = Table(*columns, title=net, title_justify="left")
    first = next(row for row in rows if row["method"] == "fedavg")
    for row in rows:
        ratio = statistics.median(a / b for a, b in zip(row["ms"], first["ms"], strict=True))
        work = row["gradients"] / first["gradients"]
        table.add_row(
            row["method"], spread(row["ms"]), f"{ratio:.2f}", f"{work:.2f}", f"{ratio / work:.2f}"
        )
    Console(width=100).print(table)


def show(name: str, found: dict[str, Any]) -> None:
    """Print one case."""
    table = Table(
        "way",
        "ms a round",
        "loop / way",
        "CPU s before",
        "weights off the loop's",
        title=name,
        title_justify="left",
    )
    loop = found["ms"]["loop"]
    for title, times in found["ms"].items():
        ratio = statistics.median(a / b for a, b in zip(loop, times, strict=True))
        start_s = found["start_s"][title]
        start = "" if start_s is None else f"{start_s:.0f}"
        table.add_row(title, spread(times), f"{ratio:.2f}", start, f"{found['gaps'][title]:.1e}")
    Console(width=100).print(table)


def main() -> None:
    """Measure the cases that are asked for, or all."""
    parser = argparse.ArgumentParser()
    parser.add_argument("cases", nargs="*")
    parser.add_argument("--before", type=Path)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_intermixed_args()
    if asked.cpu_time:
        os.environ[CPU_TIME] = "1"
    trees = {"": Path(__file__).parents[1]}
    if asked.before:
        trees["before, "] = asked.before.resolve()
    os.environ[ROUNDS] = str(asked.rounds)
    here = machine()
    found: dict[str, Any] = {}
    part = asked.cases[0] if asked.cases[:1] in (["defaults"], ["methods"]) else ""
    if part:
        asked.cases = asked.cases[1:]
    if part == "methods":
        for net in asked.cases or ("mlp", "lenet"):
            found[net] = measure_methods(net, asked.turns)
            show_methods(net, found[net])
    else:
        for name in asked.cases or (DEFAULT_CASES if part else CASES):
            found[name] = measure(name, trees, asked.turns, part == "defaults")
            show(name, found[name])
    if part:
        name = f"loops-{part}-{asked.rounds}" if part == "defaults" else f"loops-{part}"
        path = asked.out or FOLDER / f"{name}.json"
        path.write_text(json.dumps({"machine": here, "cases": found}, indent=1) + "\n")
    elif asked.out:
        asked.out.write_text(json.dumps({"machine": here, "cases": found}, indent=1))
    elif not asked.cases:
        save("loops", {"machine": here, "cases": found})


if __name__ == "__main__":
    if sys.argv[1:2] == ["work"]:
        work(sys.argv[2], sys.argv[3], Path(sys.argv[4]))
    else:
        main()
