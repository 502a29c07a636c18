"""This project's vectorized engine, compiled: it draws cohorts and batches itself, which the others
are given.
"""

import os
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import fedtailor
from fedtailor import data as sources
from fedtailor.engines import factory
from fedtailor.engines.context import EngineContext
from fedtailor.training.context import infer_task, prepare_context
from fedtailor.training.loop import run_rounds
from peers.nets import loaded, wait
from peers.protocol import Weights, Work, given, serve

SEED = 1


def dataset(images: NDArray[np.uint8], labels: NDArray[np.int64]) -> sources.FederatedDataset:
    """Everybody's examples, all of them to train on."""
    people, examples = labels.shape
    x, whose = images.reshape(-1, *images.shape[2:]), np.arange(people).repeat(examples)
    everything: dict[str, Any] = {
        "test_share": 0.0,
        "validation_clients": 0.0,
        "unseen_clients": 0.0,
    }
    return sources.from_arrays(x, labels.reshape(-1), whose, scale=1 / 255, **everything)


def setting_of(work: Work, device: str = "cpu") -> EngineContext:
    """FedAvg on the work."""
    data = dataset(work.images, work.labels)
    task = infer_task(loaded(work.net, work.weights), data.example_spec, SEED)
    if device == "cuda":
        task = task.with_stacked_ops()
    if os.environ.get("PRECISION") == "bf16":
        task = task.with_compute_dtype(torch.bfloat16)
    options: dict[str, Any] = {"batch": work.batch, "epochs": 1, "lr": work.lr}
    return prepare_context("fedavg", task, data, rounds=1, seed=SEED, device=device, **options)


class Ours:
    """Rounds of the public loop, with its checks that the model has not diverged."""

    def __init__(self, work: Work, device: str) -> None:
        setting, self._device = setting_of(work, device), device
        engine, clients = factory.make_engine(setting, compile=True), work.cohorts.shape[1]
        self._state, self.steps = setting.init_server_state(), 0
        self._rounds = run_rounds(setting, engine, self._state, clients, [False].__contains__)

    def round(self, number: int) -> None:
        """One round."""
        done = next(self._rounds)
        self._state, self.steps = done.state, self.steps + done.cost.steps

    def settle(self) -> None:
        """Waits for the device."""
        wait(self._device)

    def weights(self) -> Weights:
        """The global model."""
        return {name: value.cpu().numpy() for name, value in self._state.params.items()}


if __name__ == "__main__":
    work, end, device = given()
    serve(Ours(work, device), end, fedtailor=fedtailor.__version__, torch=torch.__version__)
