"""FSL-p: FSL whose server learns beside the clients, not after them (Mai, La and Zhang, IEEE TAI 2024).

    client   K steps of SGD at rate eta_l on f_i from x_t;   Delta_i = y_i - x_t
    server   Delta_0 = K0 steps of SGD at rate gamma eta_0 on the server's own data, from x_t, minus x_t
             x_t+1   = x_t + eta_g mean_i Delta_i + Delta_0

The paper does not print how the two are weighed; this is our reading. Rates and defaults are those of FSL.

Personalising is fine-tuning. Identities: with gamma = 0 it is FedAvg with server rate eta_g; the change of a round is
FedAvg's plus what SGD on the server's data alone would have done.
"""

from dataclasses import dataclass

from fedtailor.methods import fsl, server_learning
from fedtailor.task import Task
from fedtailor.types import Method


@dataclass(frozen=True, kw_only=True)
class Hyper(fsl.Hyper):
    """Hyper-parameters of FSL-p."""


def build(task: Task, hyper: Hyper) -> Method:
    """FSL-p on a task."""
    return server_learning.build(task, hyper, fsl.averaging(task, hyper), beside=True)._replace(name="fsl-p")
