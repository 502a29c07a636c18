"""FedPer: FedAvg with a personal last layer (Arivazhagan et al., 2019, arXiv 1912.00818).

    client   trains the shared base and its own head together by SGD on f_i, from the base it was sent and the head it
             has kept
    server   averages the bases;   heads never travel

`personal` chooses other layers. Personalizing is fine-tuning of both, from the shared base and the client's own head (a
newcomer: the first head); before it, the figures are FedPer's, after it FedPerMeta's. With `average_heads` the heads do
travel and are averaged for prediction, though clients train their own: so a published table evaluated FedPer (Nguyen et
al., ACIIDS 2022), to its disadvantage.

Identities: with personal = none it is FedAvg; with personal = all it is Local (when = sampled).
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

from fedtailor.core import trees
from fedtailor.core.task import Task
from fedtailor.core.types import ClientResult, Method, Params, Tree
from fedtailor.errors import require
from fedtailor.methods import fedavg
from fedtailor.methods.hparams import option
from fedtailor.methods.wrappers import personal_layers


@dataclass(frozen=True, kw_only=True)
class HParams(personal_layers.HParams, fedavg.HParams):
    """Hyper-parameters of FedPer."""

    average_heads: bool = option(
        False, "predict with the average of the heads, to reproduce a published table"
    )

    def __post_init__(self) -> None:
        """Refuses values out of range."""
        super().__post_init__()
        require(
            not (self.offer and self.average_heads),
            "fedper: averaged heads leave none to offer; set offer=0.",
        )


def upload_head(finalize: Any, broadcast: Params, carry: Tree) -> ClientResult:
    """The change of the base, and how far the client's own head is from the average that was sent."""
    result: ClientResult = finalize(broadcast, carry)
    personal = result.state[0]
    return ClientResult(
        {**result.update, **trees.sub(personal, {name: broadcast[name] for name in personal})},
        result.state,
    )


def with_averaged_heads(method: Method, personal: Method) -> Method:
    """FedPer as it trains, with what FedAvg would send and predict with."""
    client = personal.client
    return method._replace(
        init_client_state=personal.init_client_state,
        client=client._replace(finalize=partial(upload_head, client.finalize)),
    )


def build(task: Task, hparams: HParams) -> Method:
    """FedPer on a task."""
    average = fedavg.build(task, hparams)
    personal = personal_layers.build(task, hparams, average)
    return (with_averaged_heads(average, personal) if hparams.average_heads else personal)._replace(
        name="fedper"
    )
