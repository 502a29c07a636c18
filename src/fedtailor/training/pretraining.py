"""Pre-training at the server: a first model from the server's own data, the same for all methods of a comparison."""

from functools import partial
from typing import NamedTuple

from fedtailor import prng
from fedtailor.core import optimizers
from fedtailor.core.trees import is_finite
from fedtailor.core.types import BatchPlan, BatchSpec, Params, Phase, Routine
from fedtailor.data.dataset import FederatedDataset
from fedtailor.engines.base import error_context
from fedtailor.engines.context import EngineContext
from fedtailor.engines.sequential import run_single_client
from fedtailor.errors import DivergedError, is_number, require
from fedtailor.methods import local_training
from fedtailor.prng.streams import Stream


class PretrainingConfig(NamedTuple):
    """How the first model is made; without epochs it is what the model's maker draws."""

    epochs: int = 0
    lr: float = 0.1
    batch: int = 20


def check_pretraining(pretraining: PretrainingConfig, data: FederatedDataset) -> None:
    """Raises if the server cannot pre-train."""
    for name, value, minimum, is_whole in (
        ("pretrain", pretraining.epochs, 0, True),
        ("pretrain_lr", pretraining.lr, 1e-300, False),
        ("pretrain_batch", pretraining.batch, 1, True),
    ):
        kind = f"a {'whole ' if is_whole else ''}number {'not below ' + str(minimum) if is_whole else 'above 0'}"
        require(
            is_number(value, is_whole) and value >= minimum,
            f"{name} must be {kind}, got {value!r}.",
        )
    require(
        not pretraining.epochs or data.server is not None,
        f"pretrain: the server must have data to train on, but data set '{data.name}' gives it none; "
        "hold some out for it (server=0.05, say) or leave pretrain out.",
    )


def run_pretraining(context: EngineContext, pretraining: PretrainingConfig) -> Params:
    """The first model, after some epochs of SGD on the server's examples. It depends on seed and data, no method."""
    initial_params = context.init_server_state().params
    if not pretraining.epochs:
        return initial_params
    optimizer, dataset = optimizers.sgd(pretraining.lr), context.make_server_dataset()
    step = partial(
        local_training.optimizer_step,
        optimizer,
        partial(local_training.plain_gradient, context.task.loss),
    )
    plan = BatchPlan((BatchSpec("train", pretraining.batch),), epochs=pretraining.epochs)
    routine = Routine(
        partial(local_training.init_from_broadcast, optimizer),
        (Phase(step, plan),),
        local_training.get_local_params,
    )
    key = prng.key(context.seed, Stream.PRETRAIN)
    with error_context("pre-training", 0, "the server"):
        params: Params = run_single_client(routine, initial_params, (), dataset, 0, key)
    if not is_finite(params):
        raise DivergedError("pretrain: the model was no longer finite; lower pretrain_lr.")
    return params
