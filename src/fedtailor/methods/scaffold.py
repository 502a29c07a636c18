"""SCAFFOLD: control variates take the drift out of local steps (Karimireddy et al., ICML 2020).

    client   K_i steps from theta:   y_i <- y_i - lr (g_i(y_i) - c_i + c)
             c_i'   = c_i - c + (theta - y_i) / (K_i lr)                        option II of algorithm 1
             Delta_i = y_i - theta and c_i' - c_i travel; c_i' stays
    server   theta' = theta + server_lr mean_i Delta_i
             c'     = c + S/N mean_i (c_i' - c_i)                               S of N clients took part

c_i' is the mean of the gradients along the client's path, over its own number of steps, so clients of unequal size do
not bias the result: where all stand still, c_i is client i's gradient and c their mean, which is 0. As everything
starts at 0, c is the mean of all N clients' c_i after every round. A client without steps keeps its c_i. Weight decay
is part of the gradient, so c_i holds it too. Momentum and adaptive steps are refused: with them
(theta - y_i) / (K_i lr) is no mean gradient, and the correction would be wrong without a word. Means count all clients
alike.

Personalizing is fine-tuning on the plain loss. Identities: the first round is FedAvg's; so is every round with one
client, and with one step if everybody takes part.
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
    Phase,
    Routine,
    ServerState,
    Tree,
)
from fedtailor.errors import require
from fedtailor.methods import local_training
from fedtailor.methods.hparams import LocalHParams, make_local_optimizer, positive


@dataclass(frozen=True, kw_only=True)
class HParams(LocalHParams):
    """Hyper-parameters of SCAFFOLD."""

    server_lr: float = positive(
        1.0, "step size of the server (eta_g in the paper); 1: the plain average"
    )

    def __post_init__(self) -> None:
        """Refuses values out of range, and optimizers that break the control variates."""
        super().__post_init__()
        why = "scaffold: the control variates need plain SGD steps at the clients;"
        require(self.optimizer == "sgd", f"{why} optimizer must be sgd, got {self.optimizer}.")
        require(not self.momentum, f"{why} momentum must be 0, got {self.momentum}.")


class Pair(NamedTuple):
    """A model with the control variate that goes with it, or changes of both."""

    model: Params
    control: Params


class Carry(NamedTuple):
    """A client at work."""

    model: Params  # y_i
    control: Params  # c_i
    steps: Tensor  # taken so far


def init_client(broadcast: Pair, control: Params) -> Carry:
    """Starts from the model that was sent, with the client's own control variate."""
    counter = trees.leaves(broadcast.model)[0].new_zeros((), dtype=torch.int64)
    return Carry(broadcast.model, control, counter)


def client_step(
    optimizer: Optimizer, loss: Loss, broadcast: Pair, carry: Carry, batches: tuple[Batch, ...]
) -> Carry:
    """One step along g_i(y_i) - c_i + c."""
    gradient = autodiff.gradient(loss, carry.model, batches[0])
    corrected = trees.add(trees.sub(gradient, carry.control), broadcast.control)
    model, _ = optimizer.update(corrected, (), carry.model)
    return Carry(model, carry.control, carry.steps + 1)


def finalize_client(lr: float, broadcast: Pair, carry: Carry) -> ClientResult:
    """Uploads both changes and keeps the new control variate."""
    moved = trees.sub(carry.model, broadcast.model)
    control = trees.apply(
        partial(compute_control_update, lr, carry.steps), moved, broadcast.control
    )
    return ClientResult(Pair(moved, control), state=trees.add(carry.control, control))


def compute_control_update(lr: float, steps: Tensor, moved: Tensor, control: Tensor) -> Tensor:
    """c_i' - c_i = (theta - y_i) / (K_i lr) - c, or 0 without a step."""
    return torch.where(steps > 0, -moved / lr / steps.clamp(min=1) - control, 0)


def server_step(rate: float, state: ServerState, cohort_update: CohortUpdate) -> ServerState:
    """Moves the model by the cohort's mean, and c by what it means for the mean over all clients."""
    update: Pair = cohort_update.update
    control = trees.add(
        state.aux, update.control, cohort_update.cohort_size / cohort_update.num_clients
    )
    return state._replace(params=trees.add(state.params, update.model, rate), aux=control)


def broadcast_pair(state: ServerState) -> Pair:
    """Sends the model and c."""
    return Pair(state.params, state.aux)


def init_client_state(state: ServerState) -> Params:
    """The control variate of a client that has not taken part."""
    return trees.zeros_like(state.params)


def init_finetune(init: Callable[[Tree, Tree], Tree], broadcast: Pair, control: Params) -> Tree:
    """Personalizing starts from the model alone."""
    return init(broadcast.model, control)


def build(task: Task, hparams: HParams) -> Method:
    """SCAFFOLD on a task."""
    training = partial(client_step, make_local_optimizer(hparams), task.loss)
    finetune = local_training.finetune_routine(hparams, task.loss)
    return Method(
        name="scaffold",
        init=trees.zeros_like,
        broadcast=broadcast_pair,
        init_client_state=init_client_state,
        client=Routine(
            init_client,
            (Phase(training, hparams.batch_plan()),),
            partial(finalize_client, hparams.lr),
        ),
        server=Routine(local_training.pass_through, (), partial(server_step, hparams.server_lr)),
        personalize=finetune._replace(init=partial(init_finetune, finetune.init)),
    )
