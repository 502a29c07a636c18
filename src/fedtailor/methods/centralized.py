"""Centralized: one model trained on all clients' data, pooled in one place.

    theta' = E epochs of SGD on the pooled train examples of all training clients, from theta

It is FedAvg with the pool as the only client. Personalizing is fine-tuning.
Identities: one round of one epoch is an epoch of SGD on the pool.
"""

from dataclasses import dataclass
from functools import partial

from fedtailor.core.task import Task
from fedtailor.core.types import Method
from fedtailor.methods import local_training
from fedtailor.methods.hparams import LocalHParams


@dataclass(frozen=True, kw_only=True)
class HParams(LocalHParams, method="centralized"):
    """Hyper-parameters of training on the pool."""


def build(task: Task, hparams: HParams) -> Method:
    """Return training on the pool of all clients' data."""
    gradient = partial(local_training.plain_gradient, task.loss)
    return Method(
        name="centralized",
        init=local_training.no_state,
        broadcast=local_training.broadcast_params,
        init_client_state=local_training.no_state,
        client=local_training.build_training_routine(hparams, gradient),
        server=local_training.build_mean_update_routine(1.0),
        personalize=local_training.build_finetune_routine(hparams, task.loss),
        data_view="pooled",
    )
