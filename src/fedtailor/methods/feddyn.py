"""FedDyn: regularisers that move make the clients' optima agree with the global one (Acar et al., ICLR 2021).

    client   phi_i  = steps on f_i(phi) - <m_i, phi> + alpha/2 |phi - theta|^2 from theta;   Delta_i = phi_i - theta
             m_i'   = m_i - alpha Delta_i                          stays; f_i's gradient at phi_i, were phi_i exact
    server   h'     = h - alpha S/N mean_i Delta_i                 S of N clients took part: a mean over all N
             theta' = theta + mean_i Delta_i - h'/alpha            the mean over the cohort

As everything starts at 0, h is the mean of all N clients' m_i after every round. Where all stand still, m_i is client
i's gradient, h = 0 is their mean, and theta is the global optimum; this holds for inexact local training too, whatever
the number of steps. -h/alpha is the sum of all mean changes so far, each times S/N, and only the clients' m_i hold it
back: a small alpha with little local training overshoots for long. Weight decay is part of f_i; adamw's, which is in no
loss, is refused. Means count all clients alike.

Personalising is fine-tuning on the plain loss. Identities: the first round is FedProx's with lam = alpha and server
rate 1 + S/N.
"""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from fedtailor import calculus, trees
from fedtailor.errors import require
from fedtailor.methods import pieces
from fedtailor.methods.pieces import positive
from fedtailor.optim import Optimiser
from fedtailor.task import Task
from fedtailor.types import Batch, Gathered, Loss, Method, Params, Phase, Result, State, Tree, Work


@dataclass(frozen=True, kw_only=True)
class Hyper(pieces.Local):
    """Hyper-parameters of FedDyn."""

    alpha: float = positive(0.1, "strength of the regulariser; the smaller, the more local training a round must do")

    def __post_init__(self) -> None:
        """Refuses values out of range, and decay that belongs to no loss."""
        super().__post_init__()
        known = self.optimiser != "adamw"
        require(known, "feddyn: clients descend a loss, of which adamw's decay is no part; use sgd or adam.")


class Carry(NamedTuple):
    """A client at work."""

    model: Params  # phi_i
    optimiser: Tree
    kept: Params  # m_i


def begin(optimiser: Optimiser, sent: Params, kept: Params) -> Carry:
    """Starts from the model that was sent, with the gradient that the client has kept."""
    return Carry(sent, optimiser.init(sent), kept)


def step(
    optimiser: Optimiser, loss: Loss, alpha: float, sent: Params, carry: Carry, batches: tuple[Batch, ...]
) -> Carry:
    """One step of the optimiser along g_i(phi) - m_i + alpha (phi - theta)."""
    gradient = trees.sub(calculus.gradient(loss, carry.model, batches[0]), carry.kept)
    gradient = trees.add(gradient, trees.sub(carry.model, sent), alpha)
    return Carry(*optimiser.update(gradient, carry.optimiser, carry.model), carry.kept)


def finish(alpha: float, sent: Params, carry: Carry) -> Result:
    """Uploads the change and keeps m_i'."""
    moved = trees.sub(carry.model, sent)
    return Result(moved, memory=trees.add(carry.kept, moved, -alpha))


def server_step(alpha: float, state: State, gathered: Gathered) -> State:
    """Moves h by the mean over all clients, then the model by the cohort's mean and h."""
    h = trees.add(state.extra, gathered.change, -alpha * gathered.cohort / gathered.clients)
    mean = trees.add(state.params, gathered.change)
    return state._replace(params=trees.add(mean, h, -1.0 / alpha), extra=h)


def nothing_kept(state: State) -> Params:
    """What a client keeps before it has taken part: zeros."""
    return trees.zeros(state.params)


def build(task: Task, hyper: Hyper) -> Method:
    """FedDyn on a task."""
    optimiser = pieces.local_optimiser(hyper)
    training = partial(step, optimiser, task.loss, hyper.alpha)
    return Method(
        name="feddyn",
        init=trees.zeros,
        broadcast=pieces.params,
        new_memory=nothing_kept,
        client=Work(partial(begin, optimiser), (Phase(training, hyper.plan()),), partial(finish, hyper.alpha)),
        server=Work(pieces.taken_up, (), partial(server_step, hyper.alpha)),
        personalise=pieces.fine_tuning(hyper, task.loss),
    )
