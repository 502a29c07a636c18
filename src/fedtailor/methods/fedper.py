"""FedPer: FedAvg with a personal last layer (Arivazhagan et al., 2019, arXiv 1912.00818).

    client   trains the shared base and its own head together by SGD on f_i,
             from the base it was sent and the head it has kept
    server   averages the bases;   heads never travel

`personal` chooses other layers. Personalizing is fine-tuning of both, from the shared base and the
client's own head; an unseen client starts with the initial head. Evaluated before personalizing the
method is FedPer, after it FedPerMeta. With `average_heads` clients still train their own heads, but
the heads do travel and their average predicts. A published table evaluated FedPer in this way
(Nguyen et al., ACIIDS 2022), to its disadvantage.

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
class HParams(personal_layers.HParams, fedavg.HParams, method="fedper"):
    """Hyper-parameters of FedPer."""

    average_heads: bool = option(
        False, "predict with the average of the heads, to reproduce a published table"
    )

    def __post_init__(self) -> None:
        """Raise an `InputError` for values out of range."""
        super().__post_init__()
        require(
            not (self.offer and self.average_heads),
            f"{self.method_name}: averaged heads leave none to offer; set offer=0.",
        )


def upload_head(finalize: Any, broadcast: Params, carry: Tree) -> ClientResult:
    """Upload the update of the base, and the difference of the client's head to the average head.

    Args:
        finalize: The end of the client's routine, which keeps the head as client state.
        broadcast: The base and the average head.
        carry: The carry of the client's routine.
    """
    result: ClientResult = finalize(broadcast, carry)
    head, _ = result.state
    average_head = {name: broadcast[name] for name in head}
    update = {**result.update, **trees.sub(head, average_head)}
    return ClientResult(update, result.state)


def with_averaged_heads(method: Method, personal: Method) -> Method:
    """Return FedPer whose clients train as in `personal`, and whose server is that of `method`.

    The server broadcasts the average head and predicts with it.
    """
    finalize = partial(upload_head, personal.client.finalize)
    return method._replace(
        init_client_state=personal.init_client_state,
        client=personal.client._replace(finalize=finalize),
        tags=personal.tags,
    )


def build(task: Task, hparams: HParams) -> Method:
    """Return FedPer on a task."""
    averaging = fedavg.build(task, hparams)
    method = personal_layers.build(task, hparams, averaging)
    if hparams.average_heads:
        method = with_averaged_heads(averaging, method)
    return method._replace(name="fedper")
