"""APFL: a learned mixture of a personal and a global model (Deng, Kamani and Mahdavi, 2020).

    mixture  m = alpha v + (1 - alpha) w, which predicts                            arXiv 2003.13461
    client   w_i = w, v and alpha as kept; in each step, on one batch,
             all at once from where they stand before it, with m of v and w_i:
               w_i   <- w_i - lr g(w_i)
               v     <- v - lr alpha g(m)                           alpha g(m) is the gradient by v
               alpha <- [alpha - alpha_lr <v - w_i, g(m)>] into [0, 1]
                                                        in the first step of a round, if `adapt`
    server   w'  = w + server_lr mean_i (w_i - w)

While a client trains, its mixture is with its own w_i as it moves; alpha needs no gradient beyond
v's. Both models use the same kind of optimizer at the same rate, whose state starts anew each
round. v and alpha never travel.

A personalized model mixes with the broadcast w, which stays fixed: as in the paper for a device
that joins, personalizing is SGD on v by the mixture's gradient, with alpha fixed. A client's v
starts at the first w it is sent, so alpha first moves in its second round, and the mixture of an
unseen client is w. Identities: w is always FedAvg's; with mixing = 0, fixed, w predicts; with
mixing = 1, fixed, v is training alone from the model that was first sent.
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
    Routine,
    ServerState,
    Tree,
)
from fedtailor.errors import require
from fedtailor.methods import local_training
from fedtailor.methods.hparams import AveragingHParams, in_range, option, positive


@dataclass(frozen=True, kw_only=True)
class HParams(AveragingHParams, method="apfl"):
    """Hyper-parameters of APFL."""

    mixing: float = in_range(0.5, 0, 1, "a client's initial alpha, the share of the personal model")
    adapt: bool = option(True, "whether alpha is learned; if not, it stays at `mixing`")
    alpha_lr: float | None = positive(None, "step size of alpha; None: lr, as in the paper")
    server_lr: float = positive(1.0, "step size of the server; 1: the average")
    finetune_lr: float | None = positive(
        None, "step size of the personal model when personalizing by SGD; None: lr"
    )

    def __post_init__(self) -> None:
        """Raise an `InputError` for values out of range."""
        super().__post_init__()
        require(
            self.adapt or self.alpha_lr is None,
            f"{self.method_name}: alpha_lr moves alpha, which adapt=false holds; leave it out.",
        )


class ClientState(NamedTuple):
    """The state that a client keeps."""

    v: Params
    alpha: Tensor


class Carry(NamedTuple):
    """The carry of a client's training. Each model comes with its optimizer's state."""

    w: tuple[Params, Tree]
    v: tuple[Params, Tree]
    alpha: Tensor
    is_first: Tensor  # 1 in the first step of a round, in which alpha moves, then 0


def init_client_state(mixing: float, state: ServerState) -> ClientState:
    """Return the initial state of a client: v is the global model, alpha is `mixing`."""
    like = next(iter(state.params.values()))
    alpha = torch.full((), mixing, dtype=like.dtype, device=like.device)
    return ClientState(state.params, alpha)


def mix_params(alpha: Tensor, v: Params, w: Params) -> Params:
    """Return the mixture `alpha` * `v` + (1 - `alpha`) * `w`."""
    return trees.add(trees.scale(v, alpha), w, 1 - alpha)


def init_client(optimizer: Optimizer, broadcast: Params, client_state: ClientState) -> Carry:
    """Start from the broadcast model and the client's state.

    Args:
        optimizer: The client's optimizer, of either model.
        broadcast: w.
        client_state: v and alpha.
    """
    v, alpha = client_state
    return Carry(
        w=(broadcast, optimizer.init(broadcast)),
        v=(v, optimizer.init(v)),
        alpha=alpha,
        is_first=torch.ones_like(alpha),
    )


def client_step(
    loss: Loss,
    optimizer: Optimizer,
    alpha_lr: float,
    broadcast: Params,
    carry: Carry,
    batches: tuple[Batch, ...],
) -> Carry:
    """Take a step of both models and, in the first step of a round, of alpha.

    Each steps from where the others stood before.

    Args:
        loss: f_i on a batch.
        optimizer: The client's optimizer, of either model.
        alpha_lr: Step size of alpha.
        broadcast: w, which is unused: the mixture is with w_i.
        carry: w_i, v and alpha.
        batches: One batch of train examples.
    """
    (w, w_opt_state), (v, v_opt_state), alpha, is_first = carry
    mixture_grad = autodiff.gradient(loss, mix_params(alpha, v, w), batches[0])
    alpha_grad = trees.dot(trees.sub(v, w), mixture_grad).to(alpha.dtype)
    stepped_alpha = (alpha - alpha_lr * alpha_grad).clamp(0, 1)
    return Carry(
        w=optimizer.update(autodiff.gradient(loss, w, batches[0]), w_opt_state, w),
        v=optimizer.update(trees.scale(mixture_grad, alpha), v_opt_state, v),
        alpha=torch.where(is_first > 0, stepped_alpha, alpha),
        is_first=torch.zeros_like(is_first),
    )


def finetune_step(
    loss: Loss, optimizer: Optimizer, broadcast: Params, carry: Carry, batches: tuple[Batch, ...]
) -> Carry:
    """Take a step of the personal model alone, by the mixture's gradient.

    Args:
        loss: f_i on a batch.
        optimizer: SGD.
        broadcast: w.
        carry: v and alpha, the others being unused.
        batches: One batch of the client's examples.
    """
    v, opt_state = carry.v
    mixture_grad = autodiff.gradient(loss, mix_params(carry.alpha, v, broadcast), batches[0])
    v_grad = trees.scale(mixture_grad, carry.alpha)
    return carry._replace(v=optimizer.update(v_grad, opt_state, v))


def finalize_client(broadcast: Params, carry: Carry) -> ClientResult:
    """Upload w_i - w, and keep v and alpha."""
    w, _ = carry.w
    v, _ = carry.v
    return ClientResult(update=trees.sub(w, broadcast), state=ClientState(v, carry.alpha))


def get_mixed_params(broadcast: Params, carry: Carry) -> Params:
    """Return the mixture with the broadcast model."""
    v, _ = carry.v
    return mix_params(carry.alpha, v, broadcast)


def build(task: Task, hparams: HParams) -> Method:
    """Return APFL on a task."""
    optimizer = hparams.make_optimizer()
    finetune_optimizer = optimizers.sgd(hparams.finetune_lr or hparams.lr)
    alpha_lr = (hparams.alpha_lr or hparams.lr) if hparams.adapt else 0.0
    step = partial(client_step, task.loss, optimizer, alpha_lr)
    return Method(
        name="apfl",
        init=local_training.no_state,
        broadcast=local_training.broadcast_params,
        init_client_state=partial(init_client_state, hparams.mixing),
        client=Routine(
            partial(init_client, optimizer), hparams.build_train_phases(step), finalize_client
        ),
        server=local_training.build_mean_update_routine(hparams.server_lr),
        personalize=Routine(
            partial(init_client, finetune_optimizer),
            hparams.build_finetune_phases(partial(finetune_step, task.loss, finetune_optimizer)),
            get_mixed_params,
        ),
        weight_by=hparams.choose_weight_split(),
    )
