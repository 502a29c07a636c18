"""FedDyn: regularizers that move align local optima with the global one (Acar et al., ICLR 2021).

    client   phi_i  = steps on f_i(phi) - <m_i, phi> + alpha/2 |phi - theta|^2 from theta
             Delta_i = phi_i - theta
             m_i'   = m_i - alpha Delta_i          stays; f_i's gradient at phi_i, were phi_i exact
    server   h'     = h - alpha S/N mean_i Delta_i       S of N clients took part: a mean over all N
             theta' = theta + mean_i Delta_i - h'/alpha          the mean over the cohort

As everything starts at 0, h is the mean of all N clients' m_i after every round. At a fixed point
m_i is client i's gradient, h = 0 is their mean, and theta is the global optimum. This holds for
inexact local training too, whatever the number of steps. -h/alpha is the sum of all mean updates so
far, each times S/N, and only the clients' m_i counteract it: a small alpha with little local
training overshoots for many rounds. Weight decay is part of f_i; adamw's, which is part of no loss,
is refused. Means weigh all clients alike; with weigh="examples", S and N count examples too, and
the optimum is that of the loss over all examples.

Personalizing is fine-tuning on the plain loss. Identities: the first round is FedProx's with
lam = alpha and server rate 1 + S/N.
"""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

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
class HParams(AveragingHParams, method="feddyn"):
    """Hyper-parameters of FedDyn."""

    alpha: float = positive(
        0.1, "strength of the regularizer; the smaller, the more local training a round must do"
    )

    def __post_init__(self) -> None:
        """Raise an `InputError` for values out of range, and for decay that is part of no loss."""
        super().__post_init__()
        require(
            self.optimizer != "adamw",
            f"{self.method_name}: clients descend a loss, of which adamw's decay is no part; "
            "use sgd or adam.",
        )


class Carry(NamedTuple):
    """The carry of a client's training."""

    model: Params  # phi_i
    opt_state: Tree
    local_gradient: Params  # m_i


def init_client(optimizer: Optimizer, broadcast: Params, local_gradient: Params) -> Carry:
    """Start from the broadcast model, with the gradient that the client has kept.

    Args:
        optimizer: The client's optimizer.
        broadcast: theta.
        local_gradient: m_i, the client's state.
    """
    return Carry(broadcast, optimizer.init(broadcast), local_gradient)


def client_step(
    optimizer: Optimizer,
    loss: Loss,
    alpha: float,
    broadcast: Params,
    carry: Carry,
    batches: tuple[Batch, ...],
) -> Carry:
    """Take one step of the optimizer along g_i(phi) - m_i + alpha (phi - theta).

    Args:
        optimizer: The client's optimizer.
        loss: f_i on a batch.
        alpha: Strength of the regularizer.
        broadcast: theta.
        carry: phi, the optimizer's state and m_i.
        batches: One batch of train examples.
    """
    gradient = trees.sub(autodiff.gradient(loss, carry.model, batches[0]), carry.local_gradient)
    gradient = trees.add(gradient, trees.sub(carry.model, broadcast), alpha)
    model, opt_state = optimizer.update(gradient, carry.opt_state, carry.model)
    return Carry(model, opt_state, carry.local_gradient)


def finalize_client(alpha: float, broadcast: Params, carry: Carry) -> ClientResult:
    """Upload Delta_i and keep m_i'.

    Args:
        alpha: Strength of the regularizer.
        broadcast: theta.
        carry: phi_i and m_i.
    """
    update = trees.sub(carry.model, broadcast)
    return ClientResult(update, state=trees.add(carry.local_gradient, update, -alpha))


def server_step(alpha: float, state: ServerState, cohort_update: CohortUpdate) -> ServerState:
    """Move h by the mean over all clients, then the model by the cohort's mean and h.

    Args:
        alpha: Strength of the regularizer.
        state: The server's state, with theta, and h as `aux`.
        cohort_update: mean_i Delta_i, with S and N.
    """
    h_step = -alpha * cohort_update.cohort_weight / cohort_update.total_weight
    h = trees.add(state.aux, cohort_update.update, h_step)
    mean_model = trees.add(state.params, cohort_update.update)
    return state._replace(params=trees.add(mean_model, h, -1.0 / alpha), aux=h)


def init_client_state(state: ServerState) -> Params:
    """Return m_i of a client that has not taken part: zeros."""
    return trees.zeros_like(state.params)


def build(task: Task, hparams: HParams) -> Method:
    """Return FedDyn on a task."""
    optimizer = hparams.make_optimizer()
    step = partial(client_step, optimizer, task.loss, hparams.alpha)
    return Method(
        name="feddyn",
        init=trees.zeros_like,
        broadcast=local_training.broadcast_params,
        init_client_state=init_client_state,
        client=Routine(
            partial(init_client, optimizer),
            hparams.build_train_phases(step),
            partial(finalize_client, hparams.alpha),
        ),
        server=Routine(local_training.pass_through, (), partial(server_step, hparams.alpha)),
        personalize=local_training.build_finetune_routine(hparams, task.loss),
        weight_by=hparams.choose_weight_split(),
    )
