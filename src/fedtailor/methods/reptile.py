"""Fed-Reptile: a server that moves part of the way to the mean (Nichol, Achiam and Schulman, 2018).

    client   phi_i  = E epochs, or k steps, on f_i from theta;   Delta_i = phi_i - theta
    server   theta' = theta + epsilon_t mean_i Delta_i

Reptile in batches (arXiv 1803.02999) with clients as its tasks, as Jiang et al. (2019,
arXiv 1909.12488) see FedAvg. With two or more steps the mean update contains, to second order, the
gradient of the inner product of a client's gradients on different batches: it moves theta to where
a few steps help. The original anneals epsilon linearly to 0: decay="linear".

Personalizing is fine-tuning, which is what theta was learned for. Identities: with epsilon = 1 it
is FedAvg; with one step of plain SGD it is FedAvg with rate epsilon lr.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, Self

from fedtailor.core import trees
from fedtailor.core.schedules import Schedule
from fedtailor.core.task import Task
from fedtailor.core.types import Method, Params, Routine, ServerState
from fedtailor.methods import local_training
from fedtailor.methods.hparams import AveragingHParams, RunFacts, option, positive


@dataclass(frozen=True, kw_only=True)
class HParams(AveragingHParams, method="reptile"):
    """Hyper-parameters of Fed-Reptile."""

    epsilon: float = positive(
        0.5, "how far the server moves towards the clients' mean; 1: all the way, as FedAvg does"
    )
    decay: Literal["constant", "linear", "cosine"] = option(
        "constant", "decay of epsilon over `decay_rounds`"
    )
    decay_rounds: int | None = positive(
        None, "where the decay ends; None: where the run does (in Python: no decay)"
    )

    def resolve(self, facts: RunFacts) -> Self:
        """End the decay, if there is one, with the run, unless `decay_rounds` is given."""
        if self.decay == "constant":
            return self
        return replace(self, decay_rounds=self.decay_rounds or max(1, facts.rounds))


def server_step(
    epsilon: float, decay: Schedule, state: ServerState, mean_update: Params
) -> ServerState:
    """Return the server state with theta + epsilon_t * mean update.

    Args:
        epsilon: Step size of the first round.
        decay: Its factor in each round.
        state: The server's state, with theta.
        mean_update: mean_i Delta_i.
    """
    step_size = epsilon * decay(state.round)
    return state._replace(params=trees.add(state.params, mean_update, step_size))


def build(task: Task, hparams: HParams) -> Method:
    """Return Fed-Reptile on a task."""
    gradient = partial(local_training.plain_gradient, task.loss)
    decay = local_training.make_decay(hparams.decay, hparams.decay_rounds)
    finalize_server = partial(server_step, hparams.epsilon, decay)
    return Method(
        name="reptile",
        init=local_training.no_state,
        broadcast=local_training.broadcast_params,
        init_client_state=local_training.no_state,
        client=local_training.build_training_routine(hparams, gradient),
        server=Routine(local_training.start_from_mean_update, (), finalize_server),
        personalize=local_training.build_finetune_routine(hparams, task.loss),
        weight_by=hparams.choose_weight_split(),
    )
