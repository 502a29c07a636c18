"""What models, methods and scoring cost on a GPU, in ratios measured in one run.

    python benchmarks/gpu_costs.py [models] [methods] [scoring]
    python benchmarks/gpu_costs.py kernels

Models: ResNet-18 with GroupNorm (10 clients x 5 steps x 20 images of 3 x 24 x 24) and a two-layer
LSTM of 256 (10 clients x 5 steps x 4 texts of 80 characters), FedAvg, beside a loop over clients;
the loop's LSTM is torch.nn.LSTM, which is cuDNN's. Methods: whole rounds of FedSIM and of exact
Per-FedAvg beside FedAvg's (FEMNIST's network, 10 clients x 10 steps x 20), and with FedSIM's own
five epochs. Scoring: 300 people fine-tuned for one epoch of 200 examples, and scored on 50 before
and after. Factors are rounded to tf32. Parts that are not named keep their results. Kernels: what a
step of FedAvg and one of exact Per-FedAvg spend the GPU's time on; only printed.
"""

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from engines import descend
from fedtailor import data as sources
from fedtailor import models
from fedtailor.core import trees
from fedtailor.engines import factory
from fedtailor.engines.base import ClientWork
from fedtailor.engines.context import EngineContext, allow_tf32
from fedtailor.engines.single_client import iter_batches
from fedtailor.prng.streams import Stream
from fedtailor.training.context import infer_task, prepare_context
from fedtailor.training.loop import run_rounds
from results import load, machine, save, spread

TURNS, ROUNDS, CLIENTS, PEOPLE = 5, 5, 10, 300
Way = Callable[[], object]
STEPS = 10
FEDAVG: tuple[str, dict[str, Any]] = ("fedavg", {"epochs": 1})
EXACT: tuple[str, dict[str, Any]] = ("per-fedavg", {"steps": STEPS, "variant": "exact"})
NOBODY: dict[str, Any] = {"validation_clients": 0.0, "unseen_clients": 0.0}


class TorchsOwn(nn.Module):
    """The text model as one would write it for one client."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(90, 8), nn.Linear(256, 90)
        self.lstm = nn.LSTM(8, 256, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """What comes next at each place, classes second as cross-entropy wants it."""
        found: Tensor = self.head(self.lstm(self.embedding(x))[0])
        return found.transpose(1, 2)


def images(
    people: int, each: int, shape: tuple[int, ...], classes: int, **options: Any
) -> sources.FederatedDataset:
    """People with equally many random images."""
    draws, count = np.random.default_rng(0), people * each
    x, y = (
        draws.integers(0, 256, (count, *shape), dtype=np.uint8),
        draws.integers(0, classes, count),
    )
    return sources.from_arrays(x, y, np.arange(count) % people, scale=1 / 255, **NOBODY, **options)


def texts(people: int, each: int) -> sources.FederatedDataset:
    """People with equally many random texts."""
    draws, count = np.random.default_rng(0), people * each
    x, y = (draws.integers(1, 90, (count, 80)).astype(np.uint8) for _ in range(2))
    whose = np.arange(count) % people
    return sources.from_arrays(x, y, whose, classes=90, tokens=True, test_share=0.0, **NOBODY)


def setting_of(
    method: str, model: Callable[[], nn.Module], data: sources.FederatedDataset, **hyper: Any
) -> EngineContext:
    """A method on the GPU, its convolutions whole."""
    task = infer_task(model, data.example_spec, 1).with_stacked_ops()
    return prepare_context(method, task, data, rounds=1, seed=1, device="cuda", lr=0.05, **hyper)


def ours(setting: EngineContext, compile: bool) -> Way:
    """One round more."""
    engine = factory.make_engine(setting, compile=compile)
    return partial(
        next,
        run_rounds(setting, engine, setting.init_server_state(), CLIENTS, [False].__contains__),
    )


def looped(setting: EngineContext, model: nn.Module) -> Iterator[None]:
    """A round one client after another, and the mean."""
    site, phase, model = (
        setting.make_client_dataset(),
        setting.method.client.phases[0],
        model.to("cuda"),
    )
    theta = {name: value.clone() for name, value in model.state_dict().items()}
    while True:
        total = trees.zeros_like(theta)
        for client in range(CLIENTS):
            model.load_state_dict(theta)
            key = setting.derive_keys(Stream.CLIENT, 0, [client])[0]
            descend(model, 0.05, iter_batches(phase.plan, ClientWork(site, client, key)))
            total = {
                name: total[name] + value.detach() / CLIENTS
                for name, value in model.state_dict().items()
            }
        theta = total
        yield


def milliseconds(ways: dict[str, Way]) -> dict[str, dict[str, Any]]:
    """What each takes, in turns, after it has been warmed up."""
    first, times = dict[str, float](), {name: list[float]() for name in ways}
    for name, way in ways.items():
        began = time.perf_counter()
        for _ in range(3):
            way()
        torch.cuda.synchronize()
        first[name] = round(time.perf_counter() - began, 1)
    for _ in range(TURNS):
        for name, way in ways.items():
            torch.cuda.synchronize()
            began = time.perf_counter()
            for _ in range(ROUNDS):
                way()
            torch.cuda.synchronize()
            times[name].append(1000 * (time.perf_counter() - began) / ROUNDS)
    return {name: {"ms": each, "first 3 s": first[name]} for name, each in times.items()}


def of_models() -> dict[str, Any]:
    """Two models beside a loop."""
    small = partial(models.resnet18, (3, 24, 24), 100)
    resnet = setting_of(
        "fedavg", small, images(PEOPLE, 100, (3, 24, 24), 100, test_share=0.0), batch=20
    )
    lstm = setting_of("fedavg", models.shakespeare, texts(PEOPLE, 20), batch=4)
    return {
        "ResNet-18": milliseconds(
            {"ours": ours(resnet, True), "loop": partial(next, looped(resnet, small()))}
        ),
        "LSTM": milliseconds(
            {"ours": ours(lstm, False), "loop": partial(next, looped(lstm, TorchsOwn()))}
        ),
    }


def on_femnist(ways: dict[str, tuple[str, dict[str, Any]]]) -> dict[str, Way]:
    """Rounds of methods on FEMNIST's network."""
    data = images(PEOPLE, 200, (1, 28, 28), 62, test_share=0.0, server=100)
    model = partial(models.fedsim_femnist, (1, 28, 28), 62)
    return {
        name: ours(setting_of(method, model, data, batch=20, **own), True)
        for name, (method, own) in ways.items()
    }


def of_methods() -> dict[str, Any]:
    """Rounds of second-order methods beside FedAvg's."""
    short = {"fedavg": FEDAVG, "fedsim": ("fedsim", {"epochs": 1}), "per-fedavg, exact": EXACT}
    long: dict[str, tuple[str, dict[str, Any]]] = {
        "fedavg": ("fedavg", {"epochs": 5}),
        "fedsim": ("fedsim", {"epochs": 5}),
    }
    kinds = {"a round, 10 steps": short, "a round, five epochs": long}
    return {title: milliseconds(on_femnist(ways)) for title, ways in kinds.items()}


def show_kernels() -> None:
    """Prints the microseconds of a step that each kernel takes."""
    for name, way in on_femnist({"fedavg": FEDAVG, "per-fedavg, exact": EXACT}).items():
        for _ in range(3):
            way()
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CUDA]) as seen:
            for _ in range(2):
                way()
            torch.cuda.synchronize()
        kernels, steps = (
            sorted(seen.key_averages(), key=lambda each: -each.device_time_total),
            2 * STEPS,
        )
        print(
            f"{name}: {sum(each.device_time_total for each in kernels) / steps:.0f} us of the GPU "
            "a step"
        )
        for each in kernels[:40]:
            print(
                f"{each.device_time_total / steps:8.1f} us, {each.count / steps:.1f} times: "
                f"{each.key[:100]}"
            )


def of_scoring() -> dict[str, Any]:
    """Everybody tailored and scored."""
    data = images(PEOPLE, 250, (1, 28, 28), 62, test_share=0.2)
    model = partial(models.fedsim_femnist, (1, 28, 28), 62)
    setting = setting_of("fedavg", model, data, batch=20, epochs=1, finetune_epochs=1)
    engine, state = factory.make_engine(setting), setting.init_server_state()
    return {
        "300 people fine-tuned and scored": milliseconds(
            {"ours": lambda: engine.score(state, np.arange(PEOPLE))}
        )
    }


PARTS = {"models": of_models, "methods": of_methods, "scoring": of_scoring}


def main(words: list[str]) -> None:
    """Measures, prints and writes."""
    allow_tf32(True)
    if words == ["kernels"]:
        show_kernels()
        return
    here, known = machine("cuda"), load("costs-gpu") or {"parts": {}}
    for part in words or PARTS:
        found = PARTS[part]()
        for title, ways in found.items():
            base = statistics.median(next(iter(ways.values()))["ms"])
            for name, each in ways.items():
                ratio, first = statistics.median(each["ms"]) / base, each["first 3 s"]
                print(
                    f"{title}: {name}: {spread(each['ms'])} ms, {ratio:.2f}, {first} s at first",
                    flush=True,
                )
        known = {"machine": here, "parts": known["parts"] | found}
        save("costs-gpu", known)


if __name__ == "__main__":
    main(sys.argv[1:])
