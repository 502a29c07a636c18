"""DS: every client also trains on the server's examples (Zhao et al., 2018; baseline of FSL).

    client   phi_i  = E epochs of SGD on its own and the server's examples together, from theta
    server   theta' = theta + server_lr mean_i Delta_i

DS stands for data sharing: the server's examples leave the server on purpose, which the data set
records as its `overlap`. In expectation the objective is that of FSL at gamma = N n_0 / n.
Personalizing is fine-tuning on the client's own examples. The same data view goes around other
methods, as in `ds+fedprox`.

Identities: it is FedAvg on clients to whose train examples the server's were added.
"""

from dataclasses import dataclass

from fedtailor.core.task import Task
from fedtailor.core.types import Method
from fedtailor.errors import require
from fedtailor.methods import fedavg


@dataclass(frozen=True, kw_only=True)
class HParams(fedavg.HParams, method="ds"):
    """Hyper-parameters of data sharing: those of FedAvg."""


def share_server_data(method: Method) -> Method:
    """Return a method whose clients train on the server's examples too."""
    require(
        method.data_view == "clients",
        f"data sharing: {method.name} does not train on clients' data alone.",
    )
    require(
        bool(method.client.phases),
        f"data sharing: the clients of {method.name} do not train in rounds.",
    )
    return method._replace(data_view="shared")


def build(task: Task, hparams: HParams) -> Method:
    """Return data sharing around FedAvg on a task."""
    return share_server_data(fedavg.build(task, hparams))._replace(name="ds")
