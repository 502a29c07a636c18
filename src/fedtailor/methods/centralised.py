"""Centralised: one model trained on all clients' data, pooled in one place: what federated learning gives up.

    theta' = E epochs of SGD on the pooled train examples of all training clients, from theta

It is FedAvg with the pool as the only client. Personalising is fine-tuning.
Identities: one round of one epoch is an epoch of SGD on the pool.
"""

from dataclasses import dataclass
from functools import partial

from fedtailor.methods import pieces
from fedtailor.task import Task
from fedtailor.types import Method, Work


@dataclass(frozen=True, kw_only=True)
class Hyper(pieces.Local):
    """Hyper-parameters of training on the pool."""


def build(task: Task, hyper: Hyper) -> Method:
    """Training on the pool."""
    return Method(
        name="centralised",
        init=pieces.nothing,
        broadcast=pieces.params,
        new_memory=pieces.nothing,
        client=pieces.training(hyper, partial(pieces.plain, task.loss)),
        server=Work(pieces.mean_change, (), partial(pieces.add, 1.0)),
        personalise=pieces.fine_tuning(hyper, task.loss),
        view="pooled",
    )
