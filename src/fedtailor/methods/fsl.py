"""FSL: federated learning with server learning (Mai, La and Zhang, IEEE TAI 2024, arXiv 2210.02614).

    client   K steps of SGD at rate eta_l on f_i from x_t;   Delta_i = y_i - x_t
    server   x_bar = x_t + eta_g mean_i Delta_i
             x_t+1 = K0 steps of SGD at rate gamma eta_0 on the server's own data, from x_bar

eta_g is `server_lr`, eta_l `lr`, eta_0 `learn_lr`. By the paper's rules eta_g = sqrt(S) for S clients a round, the
server takes as many examples a round as a client does, and eta_0 = sqrt(S) eta_l K / K0. Clients count alike. The same
learning can follow any method's update: `fsl+fedsim`, say.

Personalizing is fine-tuning. Identities: with gamma = 0 it is FedAvg with server rate eta_g; with clients that do not
move it is SGD on the server's data.
"""

from dataclasses import dataclass, replace
from functools import partial
from math import sqrt
from typing import Self

from fedtailor.core.task import Task
from fedtailor.core.types import Method, Routine
from fedtailor.methods import local_training
from fedtailor.methods.hparams import RunFacts, positive
from fedtailor.methods.wrappers import server_learning


@dataclass(frozen=True, kw_only=True)
class HParams(server_learning.HParams):
    """Hyper-parameters of FSL."""

    server_lr: float | None = positive(
        None, "rate at which the mean change is added (eta_g); None: sqrt(S), in Python: 1"
    )

    def resolve(self, facts: RunFacts) -> Self:
        """The paper's rules for what was left open."""
        return replace(super().resolve(facts), server_lr=self.server_lr or sqrt(facts.cohort_size))


def build_averaging(task: Task, hparams: HParams) -> Method:
    """The method whose server is to learn: FedAvg with server rate eta_g."""
    return Method(
        name="fsl",
        init=local_training.no_state,
        broadcast=local_training.broadcast_params,
        init_client_state=local_training.no_state,
        client=local_training.training_routine(
            hparams, partial(local_training.plain_gradient, task.loss)
        ),
        server=Routine(
            local_training.start_from_mean_update,
            (),
            partial(local_training.apply_mean_update, hparams.server_lr or 1.0),
        ),
        personalize=local_training.finetune_routine(hparams, task.loss),
    )


def build(task: Task, hparams: HParams) -> Method:
    """FSL on a task."""
    return server_learning.build(task, hparams, build_averaging(task, hparams))
