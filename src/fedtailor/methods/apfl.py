"""APFL: clients mix a personal model with the global one and learn how much (Deng, Kamani and Mahdavi, arXiv 2020).

    mixture  m = alpha v + (1 - alpha) w, which predicts                                        arXiv 2003.13461
    client   w_i = w, v and alpha as kept; in each step, on one batch, all at once from where they stand before it,
             with m of v and w_i:
               w_i   <- w_i - lr g(w_i)
               v     <- v - lr alpha g(m)                                   alpha g(m) is the gradient by v
               alpha <- [alpha - alpha_lr <v - w_i, g(m)>] into [0, 1]      in the first step of a round, if `adapt`
    server   w'  = w + server_lr mean_i (w_i - w)

While a client trains, its mixture is with its own w_i as it moves; alpha needs no gradient beyond v's. Both models have
the same kind of optimiser at the same rate, which begins anew each round. v and alpha never travel.

A personalised model mixes with the w of the broadcast, which stays where it is: as the paper does for a device that
joins, personalising is SGD on v by the mixture's gradient, with alpha held. A client's v begins at the w it is first
sent, whereby alpha first moves in its second round, and a newcomer's mixture is w. Identities: w is always FedAvg's;
with mixing = 0, held, w predicts; with mixing = 1, held, v is training alone from the model that was first sent.
"""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from fedtailor import calculus, optim, trees
from fedtailor.errors import require
from fedtailor.methods import pieces
from fedtailor.methods.pieces import option, positive
from fedtailor.optim import Optimiser
from fedtailor.task import Task
from fedtailor.types import Batch, Loss, Method, Params, Phase, Result, State, Tree, Work


@dataclass(frozen=True, kw_only=True)
class Hyper(pieces.Local):
    """Hyper-parameters of APFL."""

    mixing: float = option(0.5, "alpha, the share of the personal model, as a client begins")
    adapt: bool = option(True, "whether alpha is learned; if not, it stays as it began")
    alpha_lr: float | None = positive(None, "step size of alpha; None: lr, as in the paper")
    server_lr: float = positive(1.0, "1: the plain average")
    tune_lr: float | None = positive(None, "step size of the personal model when personalising by SGD; None: lr")

    def __post_init__(self) -> None:
        """Refuses values out of range."""
        super().__post_init__()
        require(0 <= self.mixing <= 1, f"apfl: mixing must be in [0, 1], got {self.mixing}.")
        require(
            self.adapt or self.alpha_lr is None, "apfl: alpha_lr moves alpha, which adapt=false holds; leave it out."
        )


class Kept(NamedTuple):
    """What a client keeps."""

    v: Params
    alpha: Tensor


class Carry(NamedTuple):
    """What a client works with: its copy of the global model, the personal model, how they mix."""

    w: tuple[Params, Tree]  # with its optimiser's state
    v: tuple[Params, Tree]
    alpha: Tensor
    first: Tensor  # 1 in the first step of a round, where alpha moves


def newcomer(mixing: float, state: State) -> Kept:
    """The personal model begins at the global one."""
    like = next(iter(state.params.values()))
    return Kept(state.params, torch.full((), mixing, dtype=like.dtype, device=like.device))


def mixture(alpha: Tensor, v: Params, w: Params) -> Params:
    """alpha v + (1 - alpha) w."""
    return trees.add(trees.scaled(v, alpha), w, 1 - alpha)


def start(optimiser: Optimiser, sent: Params, kept: Kept) -> Carry:
    """The global model begins at what was sent; the rest as it was kept."""
    v, alpha = kept
    return Carry((sent, optimiser.init(sent)), (v, optimiser.init(v)), alpha, torch.ones_like(alpha))


def step(
    loss: Loss, optimiser: Optimiser, alpha_lr: float, sent: Params, carry: Carry, batches: tuple[Batch, ...]
) -> Carry:
    """Both models and, in the first step, alpha, each from where the others stood before."""
    (w, w_memory), (v, v_memory), alpha, first = carry
    slope = calculus.gradient(loss, mixture(alpha, v, w), batches[0])
    by_alpha = trees.dot(trees.sub(v, w), slope).to(alpha.dtype)
    return Carry(
        w=optimiser.update(calculus.gradient(loss, w, batches[0]), w_memory, w),
        v=optimiser.update(trees.scaled(slope, alpha), v_memory, v),
        alpha=torch.where(first > 0, (alpha - alpha_lr * by_alpha).clamp(0, 1), alpha),
        first=torch.zeros_like(first),
    )


def tuning_step(loss: Loss, optimiser: Optimiser, sent: Params, carry: Carry, batches: tuple[Batch, ...]) -> Carry:
    """The personal model alone, by the mixture's gradient."""
    v, memory = carry.v
    slope = calculus.gradient(loss, mixture(carry.alpha, v, sent), batches[0])
    return carry._replace(v=optimiser.update(trees.scaled(slope, carry.alpha), memory, v))


def finish(sent: Params, carry: Carry) -> Result:
    """How far the global model has come travels; the personal model and alpha stay."""
    return Result(change=trees.sub(carry.w[0], sent), memory=Kept(carry.v[0], carry.alpha))


def mixed(sent: Params, carry: Carry) -> Params:
    """The mixture with the model that was sent."""
    return mixture(carry.alpha, carry.v[0], sent)


def build(task: Task, hyper: Hyper) -> Method:
    """APFL on a task."""
    optimiser, tuner = pieces.local_optimiser(hyper), optim.sgd(hyper.tune_lr or hyper.lr)
    alpha_lr = (hyper.alpha_lr or hyper.lr) if hyper.adapt else 0.0
    training = Phase(partial(step, task.loss, optimiser, alpha_lr), hyper.plan())
    return Method(
        name="apfl",
        init=pieces.nothing,
        broadcast=pieces.params,
        new_memory=partial(newcomer, hyper.mixing),
        client=Work(partial(start, optimiser), (training,), finish),
        server=Work(pieces.mean_change, (), partial(pieces.add, hyper.server_lr)),
        personalise=Work(partial(start, tuner), hyper.tuning(partial(tuning_step, task.loss, tuner)), mixed),
    )
