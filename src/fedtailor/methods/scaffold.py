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

Personalising is fine-tuning on the plain loss. Identities: the first round is FedAvg's; so is every round with one
client, and with one step if everybody takes part.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from fedtailor import calculus, trees
from fedtailor.errors import require
from fedtailor.methods import pieces
from fedtailor.methods.pieces import positive
from fedtailor.optim import Optimiser
from fedtailor.task import Task
from fedtailor.types import Batch, Gathered, Loss, Method, Params, Phase, Result, State, Tree, Work


@dataclass(frozen=True, kw_only=True)
class Hyper(pieces.Local):
    """Hyper-parameters of SCAFFOLD."""

    server_lr: float = positive(1.0, "step size of the server (eta_g in the paper); 1: the plain average")

    def __post_init__(self) -> None:
        """Refuses values out of range, and optimisers that break the control variates."""
        super().__post_init__()
        why = "scaffold: the control variates need plain SGD steps at the clients;"
        require(self.optimiser == "sgd", f"{why} optimiser must be sgd, got {self.optimiser}.")
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


def begin(sent: Pair, control: Params) -> Carry:
    """Starts from the model that was sent, with the client's own control variate."""
    counter = trees.leaves(sent.model)[0].new_zeros((), dtype=torch.int64)
    return Carry(sent.model, control, counter)


def step(optimiser: Optimiser, loss: Loss, sent: Pair, carry: Carry, batches: tuple[Batch, ...]) -> Carry:
    """One step along g_i(y_i) - c_i + c."""
    gradient = calculus.gradient(loss, carry.model, batches[0])
    corrected = trees.add(trees.sub(gradient, carry.control), sent.control)
    model, _ = optimiser.update(corrected, (), carry.model)
    return Carry(model, carry.control, carry.steps + 1)


def finish(lr: float, sent: Pair, carry: Carry) -> Result:
    """Uploads both changes and keeps the new control variate."""
    moved = trees.sub(carry.model, sent.model)
    control = trees.apply(partial(control_change, lr, carry.steps), moved, sent.control)
    return Result(Pair(moved, control), memory=trees.add(carry.control, control))


def control_change(lr: float, steps: Tensor, moved: Tensor, control: Tensor) -> Tensor:
    """c_i' - c_i = (theta - y_i) / (K_i lr) - c, or 0 without a step."""
    return torch.where(steps > 0, -moved / lr / steps.clamp(min=1) - control, 0)


def server_step(rate: float, state: State, gathered: Gathered) -> State:
    """Moves the model by the cohort's mean, and c by what it means for the mean over all clients."""
    change: Pair = gathered.change
    control = trees.add(state.extra, change.control, gathered.cohort / gathered.clients)
    return state._replace(params=trees.add(state.params, change.model, rate), extra=control)


def pair(state: State) -> Pair:
    """Sends the model and c."""
    return Pair(state.params, state.extra)


def zero_control(state: State) -> Params:
    """The control variate of a client that has not taken part."""
    return trees.zeros(state.params)


def begin_tuning(start: Callable[[Tree, Tree], Tree], sent: Pair, control: Params) -> Tree:
    """Personalising starts from the model alone."""
    return start(sent.model, control)


def build(task: Task, hyper: Hyper) -> Method:
    """SCAFFOLD on a task."""
    training = partial(step, pieces.local_optimiser(hyper), task.loss)
    tuning = pieces.fine_tuning(hyper, task.loss)
    return Method(
        name="scaffold",
        init=trees.zeros,
        broadcast=pair,
        new_memory=zero_control,
        client=Work(begin, (Phase(training, hyper.plan()),), partial(finish, hyper.lr)),
        server=Work(pieces.taken_up, (), partial(server_step, hyper.server_lr)),
        personalise=tuning._replace(start=partial(begin_tuning, tuning.start)),
    )
