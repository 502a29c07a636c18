"""Flower's simulation: its Ray backend with one client on every core at a time, and its FedAvg's
aggregation.

Everybody trains as in dataloader.py, but cuts batches out of a tensor. Data are read once by each
of Ray's processes, so that the weights alone travel.
"""

import os
import sys
import time
from functools import cache
from importlib.metadata import version
from pathlib import Path

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict  # type: ignore[import-not-found]
from flwr.clientapp import ClientApp  # type: ignore[import-not-found]
from flwr.serverapp import Grid, ServerApp  # type: ignore[import-not-found]
from flwr.serverapp.strategy import FedAvg  # type: ignore[import-not-found]
from flwr.simulation import run_simulation  # type: ignore[import-not-found]
from torch import Tensor, nn

from peers.nets import NETS
from peers.protocol import Weights, Work, read, serve

PULL_S = 0.005  # how often replies are asked for: Flower's own 0.1 s would be most of a short round


@cache
def held(path: str) -> tuple[Work, Tensor, Tensor]:
    """The work, in a process of Ray's."""
    work = read(Path(path))
    return work, torch.from_numpy(work.pixels), torch.from_numpy(work.labels)


def train(message: Message, context: Context) -> Message:
    """One client's work."""
    asked = message.content["asked"]
    work, x, y = held(asked["path"])
    turn = int(asked["round"]), int(asked["place"])
    client, order = int(work.cohorts[turn]), torch.from_numpy(work.orders[turn])
    model = NETS[work.net]()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer, steps = torch.optim.SGD(model.parameters(), work.lr), 0
    for rows in torch.split(order, work.batch):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[client, rows]), y[client, rows]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        steps += 1
    counted = MetricRecord({"num-examples": len(order), "steps": steps})
    return Message(
        RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": counted}),
        reply_to=message,
    )


class Flower:
    """Rounds by messages to as many nodes as a cohort has clients."""

    def __init__(self, path: str, grid: Grid) -> None:
        work = read(Path(path))
        self.steps, self._path, self._grid, self._clients = 0, path, grid, work.cohorts.shape[1]
        self._arrays = ArrayRecord(
            {name: torch.from_numpy(value) for name, value in work.weights.items()}
        )
        self._strategy = FedAvg(fraction_evaluate=0.0)
        self._grid.pull_interval = PULL_S
        while len(nodes := list(grid.get_node_ids())) < self._clients:
            time.sleep(0.1)
        self._nodes = nodes

    def round(self, number: int) -> None:
        """Sends the model to everybody, waits for the replies and takes their mean."""
        messages = [self._message(number, place, node) for place, node in enumerate(self._nodes)]
        replies = list(self._grid.send_and_receive(messages))
        self.steps += sum(int(reply.content["metrics"]["steps"]) for reply in replies)
        self._arrays, _ = self._strategy.aggregate_train(number, replies)

    def _message(self, number: int, place: int, node: int) -> Message:
        asked = ConfigRecord({"path": self._path, "round": number, "place": place})
        return Message(RecordDict({"arrays": self._arrays, "asked": asked}), node, "train")

    def settle(self) -> None:
        """Nothing is left to wait for: replies have come."""

    def weights(self) -> Weights:
        """The global model."""
        return {name: value.numpy() for name, value in self._arrays.to_torch_state_dict().items()}


def lead(grid: Grid, context: Context) -> None:
    """The server."""
    serve(
        Flower(sys.argv[1], grid), Path(sys.argv[2]), flwr=version("flwr"), torch=torch.__version__
    )


def main() -> None:
    """Runs the simulation."""
    clients, leader = ClientApp(), ServerApp()
    clients.train()(train)
    leader.main()(lead)
    cores = len(os.sched_getaffinity(0))
    resources = {
        "init_args": {"num_cpus": cores},
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
    }
    run_simulation(
        leader, clients, read(Path(sys.argv[1])).cohorts.shape[1], backend_config=resources
    )


if __name__ == "__main__":
    import peers.flwr  # so that Ray's processes find what is sent to them by its name

    peers.flwr.main()
