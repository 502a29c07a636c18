"""FedMeta-Per: federated meta-learning with personal layers (Nguyen et al., ACIIDS 2022).

    client   one step of FedMeta's kind on the shared base and its own head w = (w_B, w_P(i)):
             w^ = w - alpha g(w; support);   w <- w - beta d/dw f(w^(w); query)           (6), (7)
    server   averages the bases by query size, with Meta-SGD their rates too
             heads and their rates never travel

The paper's algorithm 3 stops after the inner step; this follows its equations. A participating
client without a head, and an unseen client, start from the initial head. If clients offer theirs
(`offer`), an unseen client adapts at most that many of them on its own examples and keeps the one
with the smallest loss on them. Personalizing is the inner step.

Identities: with personal = none it is FedMeta; with alpha = 0 it is FedPer on the query examples.
"""

from dataclasses import dataclass

from fedtailor.core.task import Task
from fedtailor.core.types import Method
from fedtailor.methods import fedmeta
from fedtailor.methods.wrappers import personal_layers


@dataclass(frozen=True, kw_only=True)
class HParams(fedmeta.HParams, personal_layers.HParams, method="fedmeta-per"):
    """Hyper-parameters of FedMeta-Per."""


def build(task: Task, hparams: HParams) -> Method:
    """Return FedMeta-Per on a task."""
    method = personal_layers.build(task, hparams, fedmeta.build(task, hparams))
    return method._replace(name="fedmeta-per")
