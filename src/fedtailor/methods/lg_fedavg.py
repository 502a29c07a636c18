"""LG-FedAvg: personal representations under a shared head (Liang et al., 2020, arXiv 2001.01523).

    client   trains its own encoder and the shared head together by SGD on f_i
    server   averages the heads;   encoders never travel

It is FedPer with the roles of the layers exchanged: all layers but the last are personal, and
`personal` chooses others. Personalizing is fine-tuning of both. An unseen client starts with the
initial encoder, which is untrained: LG-FedAvg is meant for participating clients, and sends the
least.

Identities: with personal = none it is FedAvg; with personal = all it is Local (when = sampled).
"""

from dataclasses import dataclass

from fedtailor.core.task import Task
from fedtailor.core.types import Method
from fedtailor.methods import fedavg
from fedtailor.methods.hparams import option
from fedtailor.methods.wrappers import personal_layers


@dataclass(frozen=True, kw_only=True)
class HParams(personal_layers.HParams, fedavg.HParams, method="lg-fedavg"):
    """Hyper-parameters of LG-FedAvg."""

    personal: str | int | None = option(
        "all-but-last", "layers that stay with a client: all-but-last, last, all, none, or names"
    )


def build(task: Task, hparams: HParams) -> Method:
    """Return LG-FedAvg on a task."""
    method = personal_layers.build(task, hparams, fedavg.build(task, hparams))
    return method._replace(name="lg-fedavg")
