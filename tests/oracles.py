"""Training as it is usually written, to compare with: an ordinary module, autograd, torch.optim."""

import numpy as np
import torch
from torch import nn

from fedtailor import keyed
from fedtailor.engines.base import Setting, batches_alone
from fedtailor.types import Params, Plan
from scenarios import Net


def module_of(params: Params) -> nn.Module:
    model = Net().double()
    model.load_state_dict(params)
    return model


def descended(
    setting: Setting, purpose: str, client: int, plan: Plan, lr: float, start: Params | None = None, number: int = 0
) -> Params:
    """The same batches through an ordinary module, autograd and torch.optim."""
    model = module_of(setting.task.params if start is None else start)
    optimiser = torch.optim.SGD(model.parameters(), lr)
    key = keyed.fold(setting.keys(purpose, number, [client])[0], 0)
    for (batch,) in batches_alone(plan, setting.clients(), np.array([client]), key):
        real = batch.mask > 0
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(batch.x[real]), batch.y[real]).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    return {name: value.detach() for name, value in model.named_parameters()}
