"""LG-FedAvg: personal representations under a shared head (Liang et al., 2020, arXiv 2001.01523).

    client   trains its own encoder and the shared head together by SGD on f_i
    server   averages the heads;   encoders never travel

It is FedPer the other way round: all layers but the last are personal, `personal` chooses others. Personalising is
fine-tuning of both. A newcomer starts with the first encoder, which nobody has trained: LG-FedAvg is for those who take
part, and sends the least.

Identities: with personal = none it is FedAvg; with personal = all it is Local (when = sampled).
"""

from dataclasses import dataclass

from fedtailor.methods import fedavg, personal_layers
from fedtailor.methods.pieces import option
from fedtailor.task import Task
from fedtailor.types import Method


@dataclass(frozen=True, kw_only=True)
class Hyper(personal_layers.Hyper, fedavg.Hyper):
    """Hyper-parameters of LG-FedAvg."""

    personal: str | int | None = option(
        "all-but-last", "layers that stay with a client: all-but-last, last, all, none, or names"
    )


def build(task: Task, hyper: Hyper) -> Method:
    """LG-FedAvg on a task."""
    return personal_layers.build(task, hyper, fedavg.build(task, hyper))._replace(name="lg-fedavg")
