"""Fed-Reptile: the server moves only part of the way to the clients' mean (Nichol, Achiam and Schulman, 2018).

    client   phi_i  = E epochs, or k steps, on f_i from theta;   Delta_i = phi_i - theta
    server   theta' = theta + epsilon_t mean_i Delta_i

Reptile in batches (arXiv 1803.02999) with clients as its tasks, as Jiang et al. (2019, arXiv 1909.12488) see FedAvg.
With two or more steps the mean change holds, to second order, the inner product of a client's gradients on different
batches: theta is drawn to where a few steps help. The original anneals epsilon to 0 in a straight line: decay="linear".

Personalising is fine-tuning, which is what theta was learned for. Identities: with epsilon = 1 it is FedAvg; with one
step of plain SGD it is FedAvg with rate epsilon lr.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, Self

from fedtailor import optim, trees
from fedtailor.methods import pieces
from fedtailor.methods.pieces import option, positive
from fedtailor.optim import Schedule
from fedtailor.task import Task
from fedtailor.types import Method, Params, State, Work


@dataclass(frozen=True, kw_only=True)
class Hyper(pieces.Local):
    """Hyper-parameters of Fed-Reptile."""

    epsilon: float = positive(0.5, "how far the server moves towards the clients' mean; 1: all the way, as FedAvg does")
    decay: Literal["constant", "linear", "cosine"] = option("constant", "of epsilon, over `decay_rounds`")
    decay_rounds: int | None = positive(None, "where the decay ends; None: where the run does (in Python: no decay)")

    def for_run(self, facts: pieces.Facts) -> Self:
        """The decay ends where the run does, unless said otherwise."""
        return replace(self, decay_rounds=self.decay_rounds or max(1, facts.rounds))


def server_step(epsilon: float, decay: Schedule, state: State, mean_change: Params) -> State:
    """theta + epsilon_t * mean change."""
    return state._replace(params=trees.add(state.params, mean_change, epsilon * decay(state.round)))


def build(task: Task, hyper: Hyper) -> Method:
    """Fed-Reptile on a task."""
    decay = optim.schedule(hyper.decay, hyper.decay_rounds) if hyper.decay_rounds else optim.constant()
    return Method(
        name="reptile",
        init=pieces.nothing,
        broadcast=pieces.params,
        new_memory=pieces.nothing,
        client=pieces.training(hyper, partial(pieces.plain, task.loss)),
        server=Work(pieces.mean_change, (), partial(server_step, hyper.epsilon, decay)),
        personalise=pieces.fine_tuning(hyper, task.loss),
    )
