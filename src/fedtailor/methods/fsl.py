"""FSL: federated learning with server learning (Mai, La and Zhang, IEEE TAI 2024).

    client   K steps of SGD at rate eta_l on f_i from x_t;   Delta_i = y_i - x_t    arXiv 2210.02614
    server   x_bar = x_t + eta_g mean_i Delta_i
             x_t+1 = K0 steps of SGD at rate gamma eta_0 on the server's own data, from x_bar

eta_g is `server_lr`, eta_l `lr`, eta_0 `learn_lr`. By the paper's rules eta_g = sqrt(S) for S
clients a round, the server processes as many examples a round as a client does, and
eta_0 = sqrt(S) eta_l K / K0. All clients weigh the same. The same server learning can follow any
method's update, as in `fsl+fedsim`.

Personalizing is fine-tuning. Identities: with gamma = 0 it is FedAvg with server rate eta_g; with
clients that do not move it is SGD on the server's data.
"""

from dataclasses import dataclass, replace
from functools import partial
from math import sqrt
from typing import Self

from fedtailor.core.task import Task
from fedtailor.core.types import Method
from fedtailor.methods import local_training
from fedtailor.methods.hparams import AveragingHParams, RunFacts, positive
from fedtailor.methods.wrappers import server_learning


@dataclass(frozen=True, kw_only=True)
class HParams(server_learning.HParams, AveragingHParams, method="fsl"):
    """Hyper-parameters of FSL."""

    server_lr: float | None = positive(
        None, "step size along the mean update (eta_g); None: sqrt(S), in Python: 1"
    )

    def resolve(self, facts: RunFacts) -> Self:
        """Replace None by what the paper's rules give for the run."""
        return replace(super().resolve(facts), server_lr=self.server_lr or sqrt(facts.cohort_size))


def build_averaging(task: Task, hparams: HParams) -> Method:
    """Return the method that server learning goes around: FedAvg with server rate eta_g."""
    gradient = partial(local_training.plain_gradient, task.loss)
    return Method(
        name="fsl",
        init=local_training.no_state,
        broadcast=local_training.broadcast_params,
        init_client_state=local_training.no_state,
        client=local_training.build_training_routine(hparams, gradient),
        server=local_training.build_mean_update_routine(hparams.server_lr or 1.0),
        personalize=local_training.build_finetune_routine(hparams, task.loss),
        weight_by=hparams.choose_weight_split(),
    )


def build(task: Task, hparams: HParams) -> Method:
    """Return FSL on a task."""
    return server_learning.build(task, hparams, build_averaging(task, hparams))
