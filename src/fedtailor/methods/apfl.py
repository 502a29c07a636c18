"""APFL: clients mix a personal model with the global one and learn how much (Deng, Kamani and Mahdavi, arXiv 2020).

    mixture  m = alpha v + (1 - alpha) w, which predicts                                        arXiv 2003.13461
    client   w_i = w, v and alpha as kept; in each step, on one batch, all at once from where they stand before it,
             with m of v and w_i:
               w_i   <- w_i - lr g(w_i)
               v     <- v - lr alpha g(m)                                   alpha g(m) is the gradient by v
               alpha <- [alpha - alpha_lr <v - w_i, g(m)>] into [0, 1]      in the first step of a round, if `adapt`
    server   w'  = w + server_lr mean_i (w_i - w)

While a client trains, its mixture is with its own w_i as it moves; alpha needs no gradient beyond v's. Both models have
the same kind of optimizer at the same rate, which begins anew each round. v and alpha never travel.

A personalized model mixes with the w of the broadcast, which stays where it is: as the paper does for a device that
joins, personalizing is SGD on v by the mixture's gradient, with alpha held. A client's v begins at the w it is first
sent, whereby alpha first moves in its second round, and a newcomer's mixture is w. Identities: w is always FedAvg's;
with mixing = 0, held, w predicts; with mixing = 1, held, v is training alone from the model that was first sent.
"""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from fedtailor.core import autodiff, optimizers, trees
from fedtailor.core.optimizers import Optimizer
from fedtailor.core.task import Task
from fedtailor.core.types import (
    Batch,
    ClientResult,
    Loss,
    Method,
    Params,
    Phase,
    Routine,
    ServerState,
    Tree,
)
from fedtailor.errors import require
from fedtailor.methods import local_training
from fedtailor.methods.hparams import LocalHParams, make_local_optimizer, option, positive


@dataclass(frozen=True, kw_only=True)
class HParams(LocalHParams):
    """Hyper-parameters of APFL."""

    mixing: float = option(0.5, "alpha, the share of the personal model, as a client begins")
    adapt: bool = option(True, "whether alpha is learned; if not, it stays as it began")
    alpha_lr: float | None = positive(None, "step size of alpha; None: lr, as in the paper")
    server_lr: float = positive(1.0, "1: the plain average")
    finetune_lr: float | None = positive(
        None, "step size of the personal model when personalizing by SGD; None: lr"
    )

    def __post_init__(self) -> None:
        """Refuses values out of range."""
        super().__post_init__()
        require(0 <= self.mixing <= 1, f"apfl: mixing must be in [0, 1], got {self.mixing}.")
        require(
            self.adapt or self.alpha_lr is None,
            "apfl: alpha_lr moves alpha, which adapt=false holds; leave it out.",
        )


class ClientState(NamedTuple):
    """What a client keeps."""

    v: Params
    alpha: Tensor


class Carry(NamedTuple):
    """What a client works with: its copy of the global model, the personal model, how they mix."""

    w: tuple[Params, Tree]  # with its optimizer's state
    v: tuple[Params, Tree]
    alpha: Tensor
    is_first: Tensor  # 1 in the first step of a round, where alpha moves


def init_client_state(mixing: float, state: ServerState) -> ClientState:
    """The personal model begins at the global one."""
    like = next(iter(state.params.values()))
    return ClientState(state.params, torch.full((), mixing, dtype=like.dtype, device=like.device))


def mix_params(alpha: Tensor, v: Params, w: Params) -> Params:
    """alpha v + (1 - alpha) w."""
    return trees.add(trees.scale(v, alpha), w, 1 - alpha)


def init_client(optimizer: Optimizer, broadcast: Params, client_state: ClientState) -> Carry:
    """The global model begins at what was sent; the rest as it was kept."""
    v, alpha = client_state
    return Carry(
        (broadcast, optimizer.init(broadcast)),
        (v, optimizer.init(v)),
        alpha,
        torch.ones_like(alpha),
    )


def client_step(
    loss: Loss,
    optimizer: Optimizer,
    alpha_lr: float,
    broadcast: Params,
    carry: Carry,
    batches: tuple[Batch, ...],
) -> Carry:
    """Both models and, in the first step, alpha, each from where the others stood before."""
    (w, w_opt_state), (v, v_opt_state), alpha, is_first = carry
    slope = autodiff.gradient(loss, mix_params(alpha, v, w), batches[0])
    by_alpha = trees.dot(trees.sub(v, w), slope).to(alpha.dtype)
    return Carry(
        w=optimizer.update(autodiff.gradient(loss, w, batches[0]), w_opt_state, w),
        v=optimizer.update(trees.scale(slope, alpha), v_opt_state, v),
        alpha=torch.where(is_first > 0, (alpha - alpha_lr * by_alpha).clamp(0, 1), alpha),
        is_first=torch.zeros_like(is_first),
    )


def finetune_step(
    loss: Loss, optimizer: Optimizer, broadcast: Params, carry: Carry, batches: tuple[Batch, ...]
) -> Carry:
    """The personal model alone, by the mixture's gradient."""
    v, opt_state = carry.v
    slope = autodiff.gradient(loss, mix_params(carry.alpha, v, broadcast), batches[0])
    return carry._replace(v=optimizer.update(trees.scale(slope, carry.alpha), opt_state, v))


def finalize_client(broadcast: Params, carry: Carry) -> ClientResult:
    """How far the global model has come travels; the personal model and alpha stay."""
    return ClientResult(
        update=trees.sub(carry.w[0], broadcast), state=ClientState(carry.v[0], carry.alpha)
    )


def get_mixed_params(broadcast: Params, carry: Carry) -> Params:
    """The mixture with the model that was sent."""
    return mix_params(carry.alpha, carry.v[0], broadcast)


def build(task: Task, hparams: HParams) -> Method:
    """APFL on a task."""
    optimizer, finetune_optimizer = (
        make_local_optimizer(hparams),
        optimizers.sgd(hparams.finetune_lr or hparams.lr),
    )
    alpha_lr = (hparams.alpha_lr or hparams.lr) if hparams.adapt else 0.0
    training = Phase(partial(client_step, task.loss, optimizer, alpha_lr), hparams.batch_plan())
    return Method(
        name="apfl",
        init=local_training.no_state,
        broadcast=local_training.broadcast_params,
        init_client_state=partial(init_client_state, hparams.mixing),
        client=Routine(partial(init_client, optimizer), (training,), finalize_client),
        server=Routine(
            local_training.start_from_mean_update,
            (),
            partial(local_training.apply_mean_update, hparams.server_lr),
        ),
        personalize=Routine(
            partial(init_client, finetune_optimizer),
            hparams.finetune_phases(partial(finetune_step, task.loss, finetune_optimizer)),
            get_mixed_params,
        ),
    )
