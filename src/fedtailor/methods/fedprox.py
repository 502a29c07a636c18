"""FedProx: FedAvg whose clients are held near the global model (Li et al., MLSys 2020).

    client   phi_i  = E epochs on f_i(phi) + lam/2 |phi - theta|^2 from theta;   Delta_i = phi_i - theta
    server   theta' = theta + server_lr mean_i Delta_i

Personalising is fine-tuning on the plain loss. Identities: with lam = 0 it is FedAvg.
"""

from dataclasses import dataclass
from functools import partial

from fedtailor.methods import pieces
from fedtailor.methods.pieces import not_negative, positive
from fedtailor.task import Task
from fedtailor.types import Method, Work


@dataclass(frozen=True, kw_only=True)
class Hyper(pieces.Local):
    """Hyper-parameters of FedProx."""

    lam: float = not_negative(0.1, "how strongly a client is held near the global model (mu in the paper)")
    server_lr: float = positive(1.0, "1: the plain average")


def build(task: Task, hyper: Hyper) -> Method:
    """FedProx on a task."""
    return Method(
        name="fedprox",
        init=pieces.nothing,
        broadcast=pieces.params,
        new_memory=pieces.nothing,
        client=pieces.training(hyper, partial(pieces.proximal, task.loss, hyper.lam)),
        server=Work(pieces.mean_change, (), partial(pieces.add, hyper.server_lr)),
        personalise=pieces.fine_tuning(hyper, task.loss),
    )
