"""Training as it is usually written, to compare with: an ordinary module, autograd, torch.optim."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from agreement import distance
from fedtailor import prng
from fedtailor.core.types import Batch, BatchPlan, BatchSpec, Method, Params
from fedtailor.engines import factory
from fedtailor.engines.base import ClientWork
from fedtailor.engines.context import EngineContext
from fedtailor.engines.single_client import iter_batches
from fedtailor.prng.streams import Stream
from scenarios import Net, toy_setting, train


def module_of(params: Params) -> nn.Module:
    model = Net().double()
    model.load_state_dict(params)
    return model


def descended(
    setting: EngineContext,
    purpose: Stream,
    client: int,
    plan: BatchPlan,
    lr: float,
    start: Params | None = None,
    number: int = 0,
) -> Params:
    """The same batches through an ordinary module, autograd and torch.optim."""
    key = prng.fold(setting.derive_keys(purpose, number, [client])[0], 0)
    first = setting.task.params if start is None else start
    return sgd(
        first, lr, iter_batches(plan, ClientWork(setting.make_client_dataset(), client, key))
    )


def server_descended(
    setting: EngineContext, key: Tensor, lr: float, epochs: int, size: int, start: Params
) -> Params:
    """The same for epochs on the server's examples, in the batches of a key."""
    plan = BatchPlan((BatchSpec("train", size),), epochs=epochs)
    return sgd(start, lr, iter_batches(plan, ClientWork(setting.make_server_dataset(), 0, key)))


def sgd(start: Params, lr: float, batches: Iterable[tuple[Batch, ...]]) -> Params:
    """SGD with torch.optim over the real examples of batches."""
    model = module_of(start)
    optimizer = torch.optim.SGD(model.parameters(), lr)
    for (batch,) in batches:
        real = batch.mask > 0
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(batch.x[real]), batch.y[real]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return {name: value.detach() for name, value in model.named_parameters()}


def newcomers_apart(method: Method) -> float:
    """How far newcomers' scores before personalizing are from those of the global model alone,
    after two rounds.
    """
    state, engine = train(setting := toy_setting(method), rounds=2)
    plain, newcomers = toy_setting("fedavg", finetune_epochs=0), setting.data.groups["unseen"]
    expected = factory.make_engine(plain).score(
        plain.init_server_state()._replace(params=state.params), newcomers
    )
    return distance(engine.score(state, newcomers).before, expected.before)
