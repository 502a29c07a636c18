"""FedProx: FedAvg whose clients are held near the global model (Li et al., MLSys 2020).

    client   phi_i   = E epochs on f_i(phi) + lam/2 |phi - theta|^2 from theta
             Delta_i = phi_i - theta
    server   theta'  = theta + server_lr mean_i Delta_i, by sizes, as cohorts are drawn uniformly

Personalizing is fine-tuning on the plain loss. Identities: with lam = 0 it is FedAvg.
"""

from dataclasses import dataclass
from functools import partial

from fedtailor.core.task import Task
from fedtailor.core.types import Method
from fedtailor.methods import local_training
from fedtailor.methods.hparams import WeightedAveragingHParams, non_negative, positive


@dataclass(frozen=True, kw_only=True)
class HParams(WeightedAveragingHParams, method="fedprox"):
    """Hyper-parameters of FedProx."""

    lam: float = non_negative(0.1, "strength of the proximal term (mu in the paper)")
    server_lr: float = positive(1.0, "step size of the server; 1: the average")


def build(task: Task, hparams: HParams) -> Method:
    """Return FedProx on a task."""
    gradient = partial(local_training.proximal_gradient, task.loss, hparams.lam)
    return Method(
        name="fedprox",
        init=local_training.no_state,
        broadcast=local_training.broadcast_params,
        init_client_state=local_training.no_state,
        client=local_training.build_training_routine(hparams, gradient),
        server=local_training.build_mean_update_routine(hparams.server_lr),
        personalize=local_training.build_finetune_routine(hparams, task.loss),
        weight_by=hparams.choose_weight_split(),
    )
