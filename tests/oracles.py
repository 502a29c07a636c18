"""Training as it is usually written, to compare with: an ordinary module, autograd, torch.optim."""

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor, nn

from agreement import distance
from fedtailor import engines, keyed
from fedtailor.engines.base import Setting, batches_alone
from fedtailor.types import Batch, Draw, Method, Params, Plan
from scenarios import Net, toy_setting, train


def module_of(params: Params) -> nn.Module:
    model = Net().double()
    model.load_state_dict(params)
    return model


def descended(
    setting: Setting, purpose: str, client: int, plan: Plan, lr: float, start: Params | None = None, number: int = 0
) -> Params:
    """The same batches through an ordinary module, autograd and torch.optim."""
    key = keyed.fold(setting.keys(purpose, number, [client])[0], 0)
    first = setting.task.params if start is None else start
    return sgd(first, lr, batches_alone(plan, setting.clients(), np.array([client]), key))


def server_descended(setting: Setting, key: Tensor, lr: float, epochs: int, size: int, start: Params) -> Params:
    """The same for epochs on the server's examples, in the batches of a key."""
    plan = Plan((Draw("train", size),), epochs=epochs)
    return sgd(start, lr, batches_alone(plan, setting.server(), np.array([0]), key))


def sgd(start: Params, lr: float, batches: Iterable[tuple[Batch, ...]]) -> Params:
    """SGD with torch.optim over the real examples of batches."""
    model = module_of(start)
    optimiser = torch.optim.SGD(model.parameters(), lr)
    for (batch,) in batches:
        real = batch.mask > 0
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(batch.x[real]), batch.y[real]).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    return {name: value.detach() for name, value in model.named_parameters()}


def newcomers_apart(method: Method) -> float:
    """How far newcomers' scores before personalising are from those of the global model alone, after two rounds."""
    state, engine = train(setting := toy_setting(method), rounds=2)
    plain, newcomers = toy_setting("fedavg", tune_epochs=0), setting.data.groups["new"]
    expected = engines.make(plain).score(plain.first_state()._replace(params=state.params), newcomers)
    return distance(engine.score(state, newcomers).before, expected.before)
