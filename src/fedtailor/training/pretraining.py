"""Pre-training of the first weights on the server's data, alike for all methods compared."""

from functools import partial
from typing import NamedTuple

from fedtailor import prng
from fedtailor.core import optimizers
from fedtailor.core.trees import MAX_FLOAT32, is_finite
from fedtailor.core.types import BatchPlan, BatchSpec, Params, Phase, Routine
from fedtailor.data.dataset import FederatedDataset
from fedtailor.engines.base import ClientWork, error_context
from fedtailor.engines.context import EngineContext
from fedtailor.engines.single_client import run_single_client
from fedtailor.errors import DivergedError, is_number, require
from fedtailor.methods import local_training
from fedtailor.prng.streams import Stream
from fedtailor.training.context import check_batch_plan


class PretrainingConfig(NamedTuple):
    """Hyper-parameters of pre-training; with 0 epochs the model keeps its first weights."""

    epochs: int = 0
    lr: float = 0.1
    batch: int = 20


def check_pretraining(pretraining: PretrainingConfig, data: FederatedDataset) -> None:
    """Raise an error if the server cannot pre-train."""
    epochs, lr, batch = pretraining
    require(
        is_number(epochs, integer=True) and epochs >= 0,
        f"pretrain must be a whole number not below 0, got {epochs!r}.",
    )
    require(
        is_number(lr) and 0 < lr <= MAX_FLOAT32,
        f"pretrain_lr must be a number above 0 and at most {MAX_FLOAT32:.1e}, got {lr!r}.",
    )
    require(
        is_number(batch, integer=True) and batch >= 1,
        f"pretrain_batch must be a whole number not below 1, got {batch!r}.",
    )
    require(
        not epochs or data.server is not None,
        f"pretrain: the server must have data to train on, but data set '{data.name}' gives it "
        "none; "
        "hold some out for it (server=0.05, say) or leave pretrain out.",
    )


def run_pretraining(context: EngineContext, pretraining: PretrainingConfig) -> Params:
    """Return the weights after some epochs of SGD on the server's examples.

    They depend on the seed, the model and the data, not on the method.
    """
    initial_params = context.init_server_state().params
    if not pretraining.epochs:
        return initial_params
    optimizer = optimizers.sgd(pretraining.lr)
    gradient = partial(local_training.plain_gradient, context.task.loss)
    step = partial(local_training.optimizer_step, optimizer, gradient)
    plan = BatchPlan((BatchSpec("train", pretraining.batch),), epochs=pretraining.epochs)
    assert context.data.server is not None  # `check_pretraining` has seen to it
    check_batch_plan(context, "pretrain", plan, context.data.server)
    routine = Routine(
        partial(local_training.init_from_broadcast, optimizer),
        (Phase(step, plan),),
        local_training.get_local_params,
    )
    dataset = context.make_server_dataset()
    key = prng.key(context.seed, Stream.PRETRAIN)
    with error_context("pre-training", 0, "the server"):
        params: Params = run_single_client(routine, initial_params, (), ClientWork(dataset, 0, key))
    if not is_finite(params):
        raise DivergedError("pretrain: the model was no longer finite; lower pretrain_lr.")
    return params
