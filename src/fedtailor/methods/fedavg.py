"""FedAvg: clients train from the global model, the server averages (McMahan et al., AISTATS 2017).

    client   phi_i  = E epochs of SGD on f_i from theta;   Delta_i = phi_i - theta
    server   theta' = optimizer step with gradient -mean_i Delta_i, by the sizes n_i of the clients
             SGD at rate 1: theta' = mean_i phi_i

With Adam or Yogi at the server it is FedAdam or FedYogi (Reddi et al., ICLR 2021), with momentum it
is FedAvgM. Personalizing is fine-tuning: SGD on the client's own data from theta.

Identities: with one client and one step it is SGD.
"""

from dataclasses import dataclass
from functools import partial
from typing import Literal

from fedtailor.core import optimizers, trees
from fedtailor.core.optimizers import Optimizer
from fedtailor.core.task import Task
from fedtailor.core.types import Method, Params, Routine, ServerState
from fedtailor.errors import require
from fedtailor.methods import local_training
from fedtailor.methods.hparams import WeightedAveragingHParams, in_range, option, positive


@dataclass(frozen=True, kw_only=True)
class HParams(WeightedAveragingHParams, method="fedavg"):
    """Hyper-parameters of FedAvg."""

    server_optimizer: Literal["sgd", "adam", "yogi"] = option(
        "sgd", "the optimizer that takes the mean update as its descent direction"
    )
    server_lr: float = positive(1.0, "step size of the server; 1 with SGD: the average")
    server_momentum: float = in_range(0.0, 0, 1, "momentum of the server's SGD", excludes_high=True)

    def __post_init__(self) -> None:
        """Raise an `InputError` for values out of range."""
        super().__post_init__()
        require(
            self.server_optimizer == "sgd" or not self.server_momentum,
            f"{self.method_name}: {self.server_optimizer} takes no server_momentum.",
        )


def make_server_optimizer(hparams: HParams) -> Optimizer:
    """Return the server's optimizer, with the constants of FedOpt if it is an adaptive one."""
    if hparams.server_optimizer == "adam":
        return optimizers.adam(hparams.server_lr, b2=0.99, eps=1e-3, bias_correction=False)
    if hparams.server_optimizer == "yogi":
        return optimizers.yogi(hparams.server_lr)
    return optimizers.sgd(hparams.server_lr, hparams.server_momentum)


def server_step(optimizer: Optimizer, state: ServerState, mean_update: Params) -> ServerState:
    """Take one step of the server's optimizer.

    Args:
        optimizer: Its state is `state.aux`.
        state: The server's state, with theta.
        mean_update: mean_i Delta_i, the direction of descent.
    """
    gradient = trees.scale(mean_update, -1.0)
    params, opt_state = optimizer.update(gradient, state.aux, state.params)
    return state._replace(params=params, aux=opt_state)


def build(task: Task, hparams: HParams) -> Method:
    """Return FedAvg on a task."""
    optimizer = make_server_optimizer(hparams)
    gradient = partial(local_training.plain_gradient, task.loss)
    return Method(
        name="fedavg",
        init=optimizer.init,
        broadcast=local_training.broadcast_params,
        init_client_state=local_training.no_state,
        client=local_training.build_training_routine(hparams, gradient),
        server=Routine(local_training.start_from_mean_update, (), partial(server_step, optimizer)),
        personalize=local_training.build_finetune_routine(hparams, task.loss),
        weight_by=hparams.choose_weight_split(),
    )
