"""SCAFFOLD: control variates take the drift out of local steps (Karimireddy et al., ICML 2020).

    client   K_i steps from theta:   y_i <- y_i - lr (g_i(y_i) - c_i + c)
             c_i'   = c_i - c + (theta - y_i) / (K_i lr)                  option II of algorithm 1
             Delta_i = y_i - theta and c_i' - c_i travel; c_i' stays
    server   theta' = theta + server_lr mean_i Delta_i
             c'     = c + S/N mean_i (c_i' - c_i)                         S of N clients took part

c_i' is the mean of the gradients along the client's path, over its own number of steps, so clients
of unequal size do not bias the result: at a fixed point c_i is client i's gradient and c their
mean, which is 0. As everything starts at 0, c is the mean of all N clients' c_i after every round.
A client without steps keeps its c_i. Weight decay is part of the gradient, so c_i contains it too.
Momentum and adaptive steps are refused: with them (theta - y_i) / (K_i lr) is not a mean of
gradients, and the correction would be silently wrong. Means weigh all clients alike; with
weigh="examples", S and N count examples too, and c is the mean of the c_i by examples.

Personalizing is fine-tuning on the plain loss. Identities: the first round is FedAvg's; so is every
round with one client, and with one step if all clients take part.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from fedtailor.core import autodiff, trees
from fedtailor.core.optimizers import Optimizer
from fedtailor.core.task import Task
from fedtailor.core.types import (
    Batch,
    ClientResult,
    CohortUpdate,
    Loss,
    Method,
    Params,
    Routine,
    ServerState,
    Tree,
)
from fedtailor.errors import require
from fedtailor.methods import local_training
from fedtailor.methods.hparams import AveragingHParams, positive


@dataclass(frozen=True, kw_only=True)
class HParams(AveragingHParams, method="scaffold"):
    """Hyper-parameters of SCAFFOLD."""

    server_lr: float = positive(1.0, "step size of the server (eta_g in the paper); 1: the average")

    def __post_init__(self) -> None:
        """Raise an `InputError` for optimizers that break the control variates."""
        super().__post_init__()
        reason = f"{self.method_name}: the control variates need plain SGD steps at the clients"
        require(self.optimizer == "sgd", f"{reason}; optimizer must be sgd, got {self.optimizer}.")
        require(not self.momentum, f"{reason}; momentum must be 0, got {self.momentum}.")


class Pair(NamedTuple):
    """A model with its control variate, or updates of both."""

    model: Params
    control: Params


class Carry(NamedTuple):
    """The carry of a client's training."""

    model: Params  # y_i
    control: Params  # c_i
    steps: Tensor  # taken so far


def init_client(broadcast: Pair, control: Params) -> Carry:
    """Start from the broadcast model, with the client's own control variate."""
    num_steps = trees.leaves(broadcast.model)[0].new_zeros((), dtype=torch.int64)
    return Carry(broadcast.model, control, num_steps)


def client_step(
    optimizer: Optimizer, loss: Loss, broadcast: Pair, carry: Carry, batches: tuple[Batch, ...]
) -> Carry:
    """Take one step of SGD along g_i(y_i) - c_i + c.

    Args:
        optimizer: SGD without momentum, which has no state.
        loss: f_i on a batch.
        broadcast: theta and c.
        carry: y_i and c_i.
        batches: One batch of train examples.
    """
    gradient = autodiff.gradient(loss, carry.model, batches[0])
    corrected = trees.add(trees.sub(gradient, carry.control), broadcast.control)
    model, _ = optimizer.update(corrected, (), carry.model)
    return Carry(model, carry.control, carry.steps + 1)


def finalize_client(lr: float, broadcast: Pair, carry: Carry) -> ClientResult:
    """Upload the updates of both and keep c_i'.

    Args:
        lr: Step size of the client's steps.
        broadcast: theta and c.
        carry: y_i, c_i and K_i.
    """
    update = trees.sub(carry.model, broadcast.model)
    control_update = trees.apply(
        partial(compute_control_update, lr, carry.steps), update, broadcast.control
    )
    return ClientResult(
        Pair(update, control_update), state=trees.add(carry.control, control_update)
    )


def compute_control_update(lr: float, steps: Tensor, update: Tensor, control: Tensor) -> Tensor:
    """Return c_i' - c_i = (theta - y_i) / (K_i lr) - c, or 0 without a step.

    Args:
        lr: Step size of the client's steps.
        steps: K_i.
        update: A leaf of y_i - theta.
        control: A leaf of c.
    """
    return torch.where(steps > 0, -update / lr / steps.clamp(min=1) - control, 0)


def server_step(server_lr: float, state: ServerState, cohort_update: CohortUpdate) -> ServerState:
    """Move the model by the cohort's mean, and c by the share of it in the mean of all clients.

    Args:
        server_lr: Step size for the model.
        state: The server's state, with theta, and c as `aux`.
        cohort_update: The mean updates of both, with S and N.
    """
    update: Pair = cohort_update.update
    participation = cohort_update.cohort_weight / cohort_update.total_weight
    params = trees.add(state.params, update.model, server_lr)
    control = trees.add(state.aux, update.control, participation)
    return state._replace(params=params, aux=control)


def broadcast_pair(state: ServerState) -> Pair:
    """Send the model and c."""
    return Pair(state.params, state.aux)


def init_client_state(state: ServerState) -> Params:
    """Return c_i of a client that has not taken part: zeros."""
    return trees.zeros_like(state.params)


def init_finetune(init: Callable[[Tree, Tree], Tree], broadcast: Pair, control: Params) -> Tree:
    """Start personalizing from the model alone.

    Args:
        init: The start of plain fine-tuning.
        broadcast: theta and c.
        control: The client's state, which fine-tuning does not use.
    """
    return init(broadcast.model, control)


def build(task: Task, hparams: HParams) -> Method:
    """Return SCAFFOLD on a task."""
    step = partial(client_step, hparams.make_optimizer(), task.loss)
    finetune = local_training.build_finetune_routine(hparams, task.loss)
    return Method(
        name="scaffold",
        init=trees.zeros_like,
        broadcast=broadcast_pair,
        init_client_state=init_client_state,
        client=Routine(
            init_client,
            hparams.build_train_phases(step),
            partial(finalize_client, hparams.lr),
        ),
        server=Routine(local_training.pass_through, (), partial(server_step, hparams.server_lr)),
        personalize=finetune._replace(init=partial(init_finetune, finetune.init)),
        weight_by=hparams.choose_weight_split(),
    )
