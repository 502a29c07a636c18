"""FedPer: FedAvg with a personal last layer (Arivazhagan et al., 2019, arXiv 1912.00818).

    client   trains the shared base and its own head together by SGD on f_i, from the base it was sent and the head it
             has kept
    server   averages the bases;   heads never travel

`personal` chooses other layers. Personalising is fine-tuning of both, from the shared base and the client's own head (a
newcomer: the first head); before it, the figures are FedPer's, after it FedPerMeta's. With `average_heads` the heads do
travel and are averaged for prediction, though clients train their own: so a published table evaluated FedPer (Nguyen et
al., ACIIDS 2022), to its disadvantage.

Identities: with personal = none it is FedAvg; with personal = all it is Local (when = sampled).
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

from fedtailor import trees
from fedtailor.errors import require
from fedtailor.methods import fedavg, personal_layers
from fedtailor.methods.pieces import option
from fedtailor.task import Task
from fedtailor.types import Method, Params, Result, Tree


@dataclass(frozen=True, kw_only=True)
class Hyper(personal_layers.Hyper, fedavg.Hyper):
    """Hyper-parameters of FedPer."""

    average_heads: bool = option(False, "predict with the average of the heads, to reproduce a published table")

    def __post_init__(self) -> None:
        """Refuses values out of range."""
        super().__post_init__()
        require(not (self.offer and self.average_heads), "fedper: averaged heads leave none to offer; set offer=0.")


def upload_head(finish: Any, sent: Params, carry: Tree) -> Result:
    """The change of the base, and how far the client's own head is from the average that was sent."""
    result: Result = finish(sent, carry)
    own = result.memory[0]
    return Result({**result.change, **trees.sub(own, {name: sent[name] for name in own})}, result.memory)


def averaged(method: Method, personal: Method) -> Method:
    """FedPer as it trains, with what FedAvg would send and predict with."""
    client = personal.client
    return method._replace(
        new_memory=personal.new_memory, client=client._replace(finish=partial(upload_head, client.finish))
    )


def build(task: Task, hyper: Hyper) -> Method:
    """FedPer on a task."""
    average = fedavg.build(task, hyper)
    made = personal_layers.build(task, hyper, average)
    return (averaged(average, made) if hyper.average_heads else made)._replace(name="fedper")
