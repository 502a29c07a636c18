"""This project's vectorised engine, compiled: it draws cohorts and batches itself, which the others are given."""

import os
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import fedtailor
from fedtailor import data as sources
from fedtailor import engines
from fedtailor.engines.base import Setting
from fedtailor.run.fitting import prepare, task_for
from fedtailor.run.loop import round_loop
from peers.nets import loaded, wait
from peers.protocol import Weights, Work, given, serve

SEED = 1


def dataset(images: NDArray[np.uint8], labels: NDArray[np.int64]) -> sources.FederatedDataset:
    """Everybody's examples, all of them to train on."""
    people, examples = labels.shape
    x, whose = images.reshape(-1, *images.shape[2:]), np.arange(people).repeat(examples)
    everything: dict[str, Any] = {"test_share": 0.0, "validation_clients": 0.0, "new_clients": 0.0}
    return sources.from_arrays(x, labels.reshape(-1), whose, scale=1 / 255, **everything)


def setting_of(work: Work, device: str = "cpu") -> Setting:
    """FedAvg on the work."""
    data = dataset(work.images, work.labels)
    task = task_for(loaded(work.net, work.weights), data.units, SEED)
    if device == "cuda":
        task = task.stacking()
    if os.environ.get("PRECISION") == "bf16":
        task = task.computing(torch.bfloat16)
    options: dict[str, Any] = {"batch": work.batch, "epochs": 1, "lr": work.lr}
    return prepare("fedavg", task, data, rounds=1, seed=SEED, device=device, **options)


class Ours:
    """Rounds of the public loop, with its checks that the model has not diverged."""

    def __init__(self, work: Work, device: str) -> None:
        setting, self._device = setting_of(work, device), device
        engine, clients = engines.make(setting, compile=True), work.cohorts.shape[1]
        self._state, self.steps = setting.first_state(), 0
        self._rounds = round_loop(setting, engine, self._state, clients, [False].__contains__)

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
