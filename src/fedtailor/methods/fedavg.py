"""FedAvg: clients train from the global model, the server averages (McMahan et al., AISTATS 2017).

    client   phi_i  = E epochs of SGD on f_i from theta;   Delta_i = phi_i - theta
    server   theta' = optimiser step with gradient -mean_i Delta_i;   SGD at rate 1: theta' = mean_i phi_i

With Adam or Yogi at the server it is FedAdam or FedYogi (Reddi et al., ICLR 2021), with momentum FedAvgM. Personalising
is fine-tuning: SGD on the client's own data from theta.

Identities: with one client and one step it is SGD.
"""

from dataclasses import dataclass
from functools import partial
from typing import Literal

from fedtailor import optim, trees
from fedtailor.errors import require
from fedtailor.methods import pieces
from fedtailor.methods.pieces import option, positive
from fedtailor.optim import Optimiser
from fedtailor.task import Task
from fedtailor.types import Method, Params, State, Work


@dataclass(frozen=True, kw_only=True)
class Hyper(pieces.Local):
    """Hyper-parameters of FedAvg."""

    server_optimiser: Literal["sgd", "adam", "yogi"] = option("sgd", "what turns mean changes into steps")
    server_lr: float = positive(1.0, "step size of the server; 1 with SGD: the plain average")
    server_momentum: float = option(0.0, "of SGD")
    weigh: Literal["clients", "examples"] = option("clients", "whether all clients count alike, or by their examples")

    def __post_init__(self) -> None:
        """Refuses values out of range."""
        super().__post_init__()
        plain = self.server_optimiser == "sgd"
        require(plain or not self.server_momentum, f"fedavg: {self.server_optimiser} takes no server_momentum.")
        server_optimiser(self)


def server_optimiser(hyper: Hyper) -> Optimiser:
    """The server's optimiser, with the adaptive ones as in FedOpt."""
    if hyper.server_optimiser == "adam":
        return optim.adam(hyper.server_lr, b2=0.99, eps=1e-3, bias_correction=False)
    if hyper.server_optimiser == "yogi":
        return optim.yogi(hyper.server_lr)
    return optim.sgd(hyper.server_lr, hyper.server_momentum)


def server_step(optimiser: Optimiser, state: State, mean_change: Params) -> State:
    """One step with the mean change as the direction of descent."""
    new, extra = optimiser.update(trees.scaled(mean_change, -1.0), state.extra, state.params)
    return state._replace(params=new, extra=extra)


def build(task: Task, hyper: Hyper) -> Method:
    """FedAvg on a task."""
    optimiser = server_optimiser(hyper)
    return Method(
        name="fedavg",
        init=optimiser.init,
        broadcast=pieces.params,
        new_memory=pieces.nothing,
        client=pieces.training(hyper, partial(pieces.plain, task.loss)),
        server=Work(pieces.mean_change, (), partial(server_step, optimiser)),
        personalise=pieces.fine_tuning(hyper, task.loss),
        weigh_by="train" if hyper.weigh == "examples" else None,
    )
