"""FSL-p: FSL whose server learns beside the clients (Mai, La and Zhang, IEEE TAI 2024).

    client   K steps of SGD at rate eta_l on f_i from x_t;   Delta_i = y_i - x_t
    server   Delta_0 = K0 steps of SGD at rate gamma eta_0 on the server's own data,
                       from x_t, minus x_t
             x_t+1   = x_t + eta_g mean_i Delta_i + Delta_0

The paper does not print how the two are weighted; this is our reading. Rates and defaults are those
of FSL.

Personalizing is fine-tuning. Identities: with gamma = 0 it is FedAvg with server rate eta_g; the
change of the model in a round is FedAvg's plus that of SGD on the server's data alone.
"""

from dataclasses import dataclass

from fedtailor.core.task import Task
from fedtailor.core.types import Method
from fedtailor.methods import fsl
from fedtailor.methods.wrappers import server_learning


@dataclass(frozen=True, kw_only=True)
class HParams(fsl.HParams, method="fsl-p"):
    """Hyper-parameters of FSL-p."""


def build(task: Task, hparams: HParams) -> Method:
    """Return FSL-p on a task."""
    averaging = fsl.build_averaging(task, hparams)
    method = server_learning.build(task, hparams, averaging, is_parallel=True)
    return method._replace(name="fsl-p")
