"""Pieces that methods are made of: local training, fine-tuning, and the server's plain update."""

from collections.abc import Callable
from functools import partial

from fedtailor.core import autodiff, optimizers, trees
from fedtailor.core.optimizers import Optimizer
from fedtailor.core.types import (
    Batch,
    ClientResult,
    CohortUpdate,
    Loss,
    Params,
    Phase,
    Routine,
    ServerState,
    Tree,
)
from fedtailor.methods.hparams import LocalHParams, T, make_local_optimizer

Gradient = Callable[[Params, Params, Batch], Params]
"""What a client's steps go down: (the model it was sent, its own model, batch) -> gradient."""


def plain_gradient(loss: Loss, broadcast: Params, params: Params, batch: Batch) -> Params:
    """Return the gradient of the loss alone."""
    return autodiff.gradient(loss, params, batch)


def proximal_gradient(
    loss: Loss, lam: float, broadcast: Params, params: Params, batch: Batch
) -> Params:
    """Return the gradient of f(phi) + lam/2 |phi - theta|^2, which holds phi near the model that was sent."""
    return autodiff.proximal_gradient(loss, lam, broadcast, params, batch)


def training_routine(hparams: LocalHParams, gradient: Gradient) -> Routine:
    """A client's training: from the model it was sent down a gradient. The change travels, nothing stays."""
    optimizer = make_local_optimizer(hparams)
    return Routine(
        partial(init_from_broadcast, optimizer),
        (Phase(partial(optimizer_step, optimizer, gradient), hparams.batch_plan()),),
        upload_update,
    )


def finetune_routine(hparams: LocalHParams, loss: Loss) -> Routine:
    """Personalizing by SGD on the plain loss, from the model that was sent."""
    optimizer = optimizers.sgd(hparams.finetune_lr or hparams.lr)
    return Routine(
        partial(init_from_broadcast, optimizer),
        hparams.finetune_phases(partial(optimizer_step, optimizer, partial(plain_gradient, loss))),
        get_local_params,
    )


def init_from_broadcast(
    optimizer: Optimizer, broadcast: Params, client_state: Tree
) -> tuple[Params, Tree]:
    """Starts from the model that was sent."""
    return broadcast, optimizer.init(broadcast)


def optimizer_step(
    optimizer: Optimizer,
    gradient: Gradient,
    broadcast: Params,
    carry: tuple[Params, Tree],
    batches: tuple[Batch, ...],
) -> tuple[Params, Tree]:
    """One step of the optimizer down a gradient."""
    params, opt_state = carry
    return optimizer.update(gradient(broadcast, params, batches[0]), opt_state, params)


def upload_update(broadcast: Params, carry: tuple[Params, Tree]) -> ClientResult:
    """Uploads how far the client's model has come."""
    return ClientResult(update=trees.sub(carry[0], broadcast), state=())


def get_local_params(broadcast: Params, carry: tuple[Params, Tree]) -> Params:
    """The client's own model."""
    return carry[0]


def no_state(_: Tree) -> tuple[()]:
    """No state, or no memory."""
    return ()


def broadcast_params(state: ServerState) -> Params:
    """Sends the model."""
    return state.params


def start_from_mean_update(state: ServerState, cohort_update: CohortUpdate) -> Params:
    """The server takes up what the cohort's changes came to."""
    found: Params = cohort_update.update
    return found


def pass_through(shared_input: Tree, client_input: T) -> T:
    """Work that starts or ends with what it was handed."""
    return client_input


def apply_mean_update(rate: float, state: ServerState, mean_update: Params) -> ServerState:
    """theta + rate * change."""
    return state._replace(params=trees.add(state.params, mean_update, rate))
