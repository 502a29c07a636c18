"""FSL: federated learning with server learning (Mai, La and Zhang, IEEE TAI 2024, arXiv 2210.02614).

    client   K steps of SGD at rate eta_l on f_i from x_t;   Delta_i = y_i - x_t
    server   x_bar = x_t + eta_g mean_i Delta_i
             x_t+1 = K0 steps of SGD at rate gamma eta_0 on the server's own data, from x_bar

eta_g is `server_lr`, eta_l `lr`, eta_0 `learn_lr`. By the paper's rules eta_g = sqrt(S) for S clients a round, the
server takes as many examples a round as a client does, and eta_0 = sqrt(S) eta_l K / K0. Clients count alike. The same
learning can follow any method's update: `fsl+fedsim`, say.

Personalising is fine-tuning. Identities: with gamma = 0 it is FedAvg with server rate eta_g; with clients that do not
move it is SGD on the server's data.
"""

from dataclasses import dataclass, replace
from functools import partial
from math import sqrt
from typing import Self

from fedtailor.methods import pieces, server_learning
from fedtailor.methods.pieces import positive
from fedtailor.task import Task
from fedtailor.types import Method, Work


@dataclass(frozen=True, kw_only=True)
class Hyper(server_learning.Hyper):
    """Hyper-parameters of FSL."""

    server_lr: float | None = positive(
        None, "rate at which the mean change is added (eta_g); None: sqrt(S), in Python: 1"
    )

    def for_run(self, facts: pieces.Facts) -> Self:
        """The paper's rules for what was left open."""
        return replace(super().for_run(facts), server_lr=self.server_lr or sqrt(facts.cohort))


def averaging(task: Task, hyper: Hyper) -> Method:
    """The method whose server is to learn: FedAvg with server rate eta_g."""
    return Method(
        name="fsl",
        init=pieces.nothing,
        broadcast=pieces.params,
        new_memory=pieces.nothing,
        client=pieces.training(hyper, partial(pieces.plain, task.loss)),
        server=Work(pieces.mean_change, (), partial(pieces.add, hyper.server_lr or 1.0)),
        personalise=pieces.fine_tuning(hyper, task.loss),
    )


def build(task: Task, hyper: Hyper) -> Method:
    """FSL on a task."""
    return server_learning.build(task, hyper, averaging(task, hyper))
