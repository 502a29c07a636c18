"""Pre-training at the server: a first model from the server's own data, the same for all methods of a comparison."""

from functools import partial
from typing import NamedTuple

from fedtailor import keyed, optim
from fedtailor.data.dataset import FederatedDataset
from fedtailor.engines.base import Setting, alone, telling
from fedtailor.errors import DivergedError, is_number, require
from fedtailor.methods import pieces
from fedtailor.trees import all_finite
from fedtailor.types import Draw, Params, Phase, Plan, Work


class Pretraining(NamedTuple):
    """How the first model is made; without epochs it is what the model's maker draws."""

    epochs: int = 0
    lr: float = 0.1
    batch: int = 20


def refuse_pretraining(how: Pretraining, data: FederatedDataset) -> None:
    """Raises if the server cannot pre-train."""
    for name, value, least, whole in (
        ("pretrain", how.epochs, 0, True),
        ("pretrain_lr", how.lr, 1e-300, False),
        ("pretrain_batch", how.batch, 1, True),
    ):
        kind = f"a {'whole ' if whole else ''}number {'not below ' + str(least) if whole else 'above 0'}"
        require(is_number(value, whole) and value >= least, f"{name} must be {kind}, got {value!r}.")
    require(
        not how.epochs or data.server is not None,
        f"pretrain: the server must have data to train on, but data set '{data.name}' gives it none; "
        "hold some out for it (server=0.05, say) or leave pretrain out.",
    )


def pretrained(setting: Setting, how: Pretraining) -> Params:
    """The first model, after some epochs of SGD on the server's examples. It depends on seed and data, no method."""
    first = setting.first_state().params
    if not how.epochs:
        return first
    optimiser, site = optim.sgd(how.lr), setting.server()
    step = partial(pieces.descend, optimiser, partial(pieces.plain, setting.task.loss))
    plan = Plan((Draw("train", how.batch),), epochs=how.epochs)
    work = Work(partial(pieces.begin, optimiser), (Phase(step, plan),), pieces.model)
    key = keyed.key(setting.seed, "pretrain")
    with telling("pre-training", 0, "the server"):
        params: Params = alone(work, first, (), site, 0, key)
    if not all_finite(params):
        raise DivergedError("pretrain: the model was no longer finite; lower pretrain_lr.")
    return params
