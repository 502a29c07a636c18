"""FedDyn: regularizers that move make the clients' optima agree with the global one (Acar et al., ICLR 2021).

    client   phi_i  = steps on f_i(phi) - <m_i, phi> + alpha/2 |phi - theta|^2 from theta;   Delta_i = phi_i - theta
             m_i'   = m_i - alpha Delta_i                          stays; f_i's gradient at phi_i, were phi_i exact
    server   h'     = h - alpha S/N mean_i Delta_i                 S of N clients took part: a mean over all N
             theta' = theta + mean_i Delta_i - h'/alpha            the mean over the cohort

As everything starts at 0, h is the mean of all N clients' m_i after every round. Where all stand still, m_i is client
i's gradient, h = 0 is their mean, and theta is the global optimum; this holds for inexact local training too, whatever
the number of steps. -h/alpha is the sum of all mean changes so far, each times S/N, and only the clients' m_i hold it
back: a small alpha with little local training overshoots for long. Weight decay is part of f_i; adamw's, which is in no
loss, is refused. Means count all clients alike.

Personalizing is fine-tuning on the plain loss. Identities: the first round is FedProx's with lam = alpha and server
rate 1 + S/N.
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
    """Hyper-parameters of FedDyn."""

    alpha: float = positive(
        0.1, "strength of the regularizer; the smaller, the more local training a round must do"
    )

    def __post_init__(self) -> None:
        """Refuses values out of range, and decay that belongs to no loss."""
        super().__post_init__()
        known = self.optimizer != "adamw"
        require(
            known,
            "feddyn: clients descend a loss, of which adamw's decay is no part; use sgd or adam.",
        )


class Carry(NamedTuple):
    """A client at work."""

    model: Params  # phi_i
    opt_state: Tree
    local_gradient: Params  # m_i


def init_client(optimizer: Optimizer, broadcast: Params, local_gradient: Params) -> Carry:
    """Starts from the model that was sent, with the gradient that the client has kept."""
    return Carry(broadcast, optimizer.init(broadcast), local_gradient)


def client_step(
    optimizer: Optimizer,
    loss: Loss,
    alpha: float,
    broadcast: Params,
    carry: Carry,
    batches: tuple[Batch, ...],
) -> Carry:
    """One step of the optimizer along g_i(phi) - m_i + alpha (phi - theta)."""
    gradient = trees.sub(autodiff.gradient(loss, carry.model, batches[0]), carry.local_gradient)
    gradient = trees.add(gradient, trees.sub(carry.model, broadcast), alpha)
    return Carry(*optimizer.update(gradient, carry.opt_state, carry.model), carry.local_gradient)


def finalize_client(alpha: float, broadcast: Params, carry: Carry) -> ClientResult:
    """Uploads the change and keeps m_i'."""
    moved = trees.sub(carry.model, broadcast)
    return ClientResult(moved, state=trees.add(carry.local_gradient, moved, -alpha))


def server_step(alpha: float, state: ServerState, cohort_update: CohortUpdate) -> ServerState:
    """Moves h by the mean over all clients, then the model by the cohort's mean and h."""
    h = trees.add(
        state.aux,
        cohort_update.update,
        -alpha * cohort_update.cohort_size / cohort_update.num_clients,
    )
    mean = trees.add(state.params, cohort_update.update)
    return state._replace(params=trees.add(mean, h, -1.0 / alpha), aux=h)


def init_client_state(state: ServerState) -> Params:
    """What a client keeps before it has taken part: zeros."""
    return trees.zeros_like(state.params)


def build(task: Task, hparams: HParams) -> Method:
    """FedDyn on a task."""
    optimizer = make_local_optimizer(hparams)
    training = partial(client_step, optimizer, task.loss, hparams.alpha)
    return Method(
        name="feddyn",
        init=trees.zeros_like,
        broadcast=local_training.broadcast_params,
        init_client_state=init_client_state,
        client=Routine(
            partial(init_client, optimizer),
            (Phase(training, hparams.batch_plan()),),
            partial(finalize_client, hparams.alpha),
        ),
        server=Routine(local_training.pass_through, (), partial(server_step, hparams.alpha)),
        personalize=local_training.finetune_routine(hparams, task.loss),
    )
