"""Tiny problems with known answers, shared by the tests."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedtailor import methods
from fedtailor.core import trees
from fedtailor.core.functionalize import seed_initialization
from fedtailor.core.task import Task, classification
from fedtailor.core.types import Method, Params, ServerState
from fedtailor.data import ClientExamples, FederatedDataset, Split, single_client
from fedtailor.engines import factory
from fedtailor.engines.base import Engine
from fedtailor.engines.client_state import ClientStateStore
from fedtailor.engines.context import EngineContext
from fedtailor.training.context import get_data_view
from fedtailor.training.loop import run_rounds

SIZES = (1, 2, 3, 5, 7, 8, 9, 13, 16, 20, 21, 40)
"""Train examples of twelve clients: alone in a batch, one left over in the last batch, whole
batches.
"""


def toy_data(
    sizes: tuple[int, ...] = SIZES, test: int = 6, server: int = 12, seed: int = 0
) -> FederatedDataset:
    """Clients who see three classes in five features, each shifted its own way; the last two are
    new, one validates.
    """
    draws = np.random.default_rng(seed)
    whose = np.repeat(np.arange(len(sizes)), np.array(sizes) + test)
    x = draws.normal(size=(len(whose), 5)) + 0.3 * whose[:, None] * draws.normal(size=5)
    y = (x[:, 0] > x[:, 1]).astype(np.int64) + (x[:, 2] > 0.5)
    train = [np.flatnonzero(whose == client)[test:] for client in range(len(sizes))]
    held_out = [np.flatnonzero(whose == client)[:test] for client in range(len(sizes))]
    people = np.arange(len(sizes))
    cut = max(1, len(sizes) - 3)
    own = (
        single_client(draws.normal(size=(server, 5)), draws.integers(0, 3, server))
        if server
        else None
    )
    return FederatedDataset(
        name="toy",
        clients=ClientExamples(x, y, {"train": split(train), "test": split(held_out)}),
        client_names=np.array([f"client-{client}" for client in people]),
        groups={
            "train": people[:cut],
            "participating": people[:cut],
            "validation": people[cut : cut + 1],
            "unseen": people[cut + 1 :],
        },
        server=own,
        classes=3,
    )


def split(parts: list[np.ndarray]) -> Split:
    """A split from each holder's rows."""
    return Split(
        np.concatenate(parts), np.concatenate([[0], np.cumsum([len(part) for part in parts])])
    )


class Net(nn.Module):
    """Two layers with dropout between them."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.body, self.drop, self.head = nn.Linear(5, 6), nn.Dropout(dropout), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.head(self.drop(torch.tanh(self.body(x))))
        return hidden


def toy_task(dropout: float = 0.0, dtype: torch.dtype = torch.float64) -> Task:
    """Classification with a small network whose weights are always the same."""
    with seed_initialization(5):
        return classification(Net(dropout)).to(dtype=dtype)


def toy_setting(
    method: str | Method,
    task: Task | None = None,
    data: FederatedDataset | None = None,
    seed: int = 7,
    **hyper: Any,
) -> EngineContext:
    """A method on the toy problem."""
    task, data = task or toy_task(), data or toy_data()
    built = (
        methods.build(method, task, **{"batch": 8} | hyper) if isinstance(method, str) else method
    )
    view = get_data_view(built, data)
    return EngineContext(
        built, task, view, seed, torch.device("cpu"), ClientStateStore(view.clients.count)
    )


def train(
    setting: EngineContext,
    rounds: int = 5,
    cohort: int = 5,
    name: str = "vectorized",
    **options: Any,
) -> tuple[ServerState, Engine]:
    """Some rounds on an engine."""
    engine, state = factory.make_engine(setting, name, **options), setting.init_server_state()
    loop = run_rounds(setting, engine, state, min(cohort, len(setting.data.groups["train"])))
    for _ in range(rounds):
        state = next(loop).state
    return state, engine


def trained(
    method: str | Method, rounds: int = 5, cohort: int = 5, name: str = "vectorized", **hyper: Any
) -> ServerState:
    """The state after some rounds of a method on the toy problem."""
    return train(toy_setting(method, **hyper), rounds, cohort, name)[0]


def built_on_toy(
    file: Any, data: Any = None, dtype: torch.dtype = torch.float64, **hyper: Any
) -> EngineContext:
    """A method's file, built with batches of 8 on the toy problem."""
    task = toy_task(dtype=dtype)
    return toy_setting(file.build(task, file.HParams(**{"batch": 8} | hyper)), task=task, data=data)


def kept(setting: EngineContext, engine: Engine) -> Params:
    """What every training client remembers, stacked, where that has the shape of the model."""
    found: Params = engine.client_states.gather(
        setting.data.groups["train"], trees.zeros_like(setting.task.params)
    )
    return found
