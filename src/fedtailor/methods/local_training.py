"""Pieces that methods share: local training, fine-tuning, and the server's plain update."""

from collections.abc import Callable
from functools import partial
from typing import Literal

from fedtailor.core import autodiff, optimizers, schedules, trees
from fedtailor.core.optimizers import Optimizer
from fedtailor.core.schedules import Schedule
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
from fedtailor.methods.hparams import LocalHParams, T

Gradient = Callable[[Params, Params, Batch], Params]
"""The direction of a client's steps: (broadcast model, the client's model, batch) -> gradient."""


# Gradients


def plain_gradient(loss: Loss, broadcast: Params, params: Params, batch: Batch) -> Params:
    """Return the gradient of `loss` at `params` on a `batch`; the `broadcast` model has no part."""
    return autodiff.gradient(loss, params, batch)


def proximal_gradient(
    loss: Loss, lam: float, broadcast: Params, params: Params, batch: Batch
) -> Params:
    """Return the gradient of f(phi) + lam/2 |phi - theta|^2, which keeps phi near theta.

    Args:
        loss: f on a batch.
        lam: Strength of the proximal term.
        broadcast: theta, the model that the server sent.
        params: phi, the client's model.
        batch: The examples of f.
    """
    return autodiff.proximal_gradient(loss, lam, broadcast, params, batch)


# Clients


def build_training_routine(hparams: LocalHParams, gradient: Gradient) -> Routine:
    """Return local training: steps along `gradient` from the broadcast model.

    The update is the change of the model; the client keeps no state.
    """
    optimizer = hparams.make_optimizer()
    step = partial(optimizer_step, optimizer, gradient)
    return Routine(
        partial(init_from_broadcast, optimizer),
        hparams.build_train_phases(step),
        upload_update,
    )


def build_finetune_routine(hparams: LocalHParams, loss: Loss) -> Routine:
    """Return personalizing by SGD on the plain loss, from the broadcast model."""
    optimizer = optimizers.sgd(hparams.finetune_lr or hparams.lr)
    step = partial(optimizer_step, optimizer, partial(plain_gradient, loss))
    return Routine(
        partial(init_from_broadcast, optimizer),
        hparams.build_finetune_phases(step),
        get_local_params,
    )


def init_from_broadcast(
    optimizer: Optimizer, broadcast: Params, client_state: Tree
) -> tuple[Params, Tree]:
    """Return the carry of local training: the broadcast model with a new optimizer state.

    Args:
        optimizer: The client's optimizer.
        broadcast: The model that the server sent.
        client_state: Unused.
    """
    return broadcast, optimizer.init(broadcast)


def optimizer_step(
    optimizer: Optimizer,
    gradient: Gradient,
    broadcast: Params,
    carry: tuple[Params, Tree],
    batches: tuple[Batch, ...],
) -> tuple[Params, Tree]:
    """Take one step of the optimizer along a gradient.

    Args:
        optimizer: The client's optimizer.
        gradient: The direction of the step.
        broadcast: The model that the server sent.
        carry: The client's model and the optimizer's state.
        batches: One batch.
    """
    params, opt_state = carry
    return optimizer.update(gradient(broadcast, params, batches[0]), opt_state, params)


def upload_update(broadcast: Params, carry: tuple[Params, Tree]) -> ClientResult:
    """Upload the change of the client's model and keep nothing."""
    params, _ = carry
    return ClientResult(update=trees.sub(params, broadcast), state=())


def get_local_params(broadcast: Params, carry: tuple[Params, Tree]) -> Params:
    """Return the client's model."""
    params, _ = carry
    return params


# The server


def no_state(_: Tree) -> tuple[()]:
    """Return an empty tree: no server state besides the model, no client state, or no broadcast."""
    return ()


def broadcast_params(state: ServerState) -> Params:
    """Send the model."""
    return state.params


def build_mean_update_routine(server_lr: float, phases: tuple[Phase, ...] = ()) -> Routine:
    """Return the server's plain update: theta + server_lr * mean update.

    Args:
        server_lr: 1 makes the new model the mean of the clients' models.
        phases: Steps on server data that change the mean update before it is applied.
    """
    return Routine(start_from_mean_update, phases, partial(apply_mean_update, server_lr))


def start_from_mean_update(state: ServerState, cohort_update: CohortUpdate) -> Params:
    """Return the mean update of the cohort as the server's carry."""
    mean_update: Params = cohort_update.update
    return mean_update


def apply_mean_update(server_lr: float, state: ServerState, mean_update: Params) -> ServerState:
    """Return the server state with the model moved by `server_lr` * `mean_update`."""
    return state._replace(params=trees.add(state.params, mean_update, server_lr))


def make_decay(name: Literal["constant", "linear", "cosine"], rounds: int | None) -> Schedule:
    """Return the decay of a server's step size over `rounds` rounds; None: no decay."""
    if rounds is None:
        return schedules.constant()
    return optimizers.schedule(name, rounds)


def pass_through(shared_input: Tree, client_input: T) -> T:
    """Return the second argument, for a routine that begins or ends with its input as it is."""
    return client_input
