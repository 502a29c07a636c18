"""Per-FedAvg: FedAvg of a model that is one gradient step from good (Fallah, Mokhtari and Ozdaglar, NeurIPS 2020).

    minimized   mean_i f_i(w - alpha g_i(w))                                                                  (3)
    client      tau steps from theta, each on independent batches D, D'', D' of its own:                      (7), (8)
                wt = w - alpha g(w; D);   w <- w - lr (I - alpha H(w; D'')) g(wt; D')
    server      theta' = theta + server_lr mean_i Delta_i
    personal    w - alpha g(w; D): one step of SGD

variant="exact" has the product H u, u = g(wt; D'), by automatic differentiation; "fo" leaves it out; "hf" takes it from
[g(w + h u) - g(w - h u)] / 2h (the paper's line for it is misprinted, and gives no h). u is not normalized: the error
is then h^2 |u|^2 relative to |H u|, and shrinks as training converges, and nothing is divided by |u|, which may be 0.
The paper's beta is lr, and tau is `steps`. The optimizer takes the place of the outer step, w <- w - lr (...), alone.
All variants draw the same batches, so that they can be compared.

Identities: with alpha = 0 it is FedAvg on the stream D'. On one batch for D, D'' and D' the exact direction is the
gradient of f(w - alpha g(w)). As alpha -> 0 the direction of "fo" is off by O(alpha); that of "hf" by O(alpha h^2).
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from fedtailor.core import autodiff, trees
from fedtailor.core.optimizers import Optimizer
from fedtailor.core.task import Task
from fedtailor.core.types import Batch, BatchSpec, Loss, Method, Params, Phase, Routine, Tree
from fedtailor.methods import local_training
from fedtailor.methods.hparams import (
    LocalHParams,
    make_local_optimizer,
    non_negative,
    option,
    positive,
)


@dataclass(frozen=True, kw_only=True)
class HParams(LocalHParams):
    """Hyper-parameters of Per-FedAvg."""

    alpha: float = non_negative(0.01, "step size of the inner step; 0: FedAvg")
    variant: Literal["exact", "fo", "hf"] = option(
        "exact", "Hessian by differentiation, left out, or by a finite difference"
    )
    h: float = positive(0.01, "step of the finite difference, in units of the direction")
    hessian_batch: int | None = positive(
        None, "examples of D'', for the Hessian; None: batch, as D and D' have"
    )
    server_lr: float = positive(1.0, "rate at which the mean change is added; 1: the plain average")
    finetune_lr: float | None = positive(None, "step size of personalizing by SGD; None: alpha")
    finetune_steps: int | None = non_negative(
        1, "steps of personalizing, one in the paper; None: finetune_epochs passes instead"
    )


def meta_step(
    hparams: HParams,
    optimizer: Optimizer,
    loss: Loss,
    broadcast: Params,
    carry: tuple[Params, Tree],
    batches: tuple[Batch, ...],
) -> tuple[Params, Tree]:
    """One step of the optimizer along (I - alpha H(w; D'')) g(wt; D')."""
    (params, opt_state), (inner, curved, outer) = carry, batches
    ahead = trees.add(params, autodiff.gradient(loss, params, inner), -hparams.alpha)
    direction = autodiff.gradient(loss, ahead, outer)
    if hparams.variant != "fo" and not trees.is_zero(hparams.alpha):
        direction = trees.add(
            direction, compute_hvp(hparams, loss, params, curved, direction), -hparams.alpha
        )
    return optimizer.update(direction, opt_state, params)


def compute_hvp(
    hparams: HParams, loss: Loss, params: Params, batch: Batch, direction: Params
) -> Params:
    """H(w) u, exactly or by a central difference."""
    if hparams.variant == "exact":
        return autodiff.hvp(loss, params, batch, direction)
    return autodiff.finite_difference_hvp(loss, params, batch, direction, hparams.h)


def training_routine(hparams: HParams, loss: Loss) -> Routine:
    """A client's training, on batches (D, D'', D'); the last one is the stream that FedAvg sees."""
    optimizer, plan = make_local_optimizer(hparams), hparams.batch_plan()
    draws = (
        BatchSpec("train", hparams.batch),
        BatchSpec("train", hparams.hessian_batch or hparams.batch),
        *plan.specs,
    )
    phase = Phase(partial(meta_step, hparams, optimizer, loss), plan._replace(specs=draws))
    return Routine(
        partial(local_training.init_from_broadcast, optimizer),
        (phase,),
        local_training.upload_update,
    )


def finetune_routine(hparams: HParams, loss: Loss) -> Routine:
    """SGD at rate alpha, the step that training prepares for; with alpha = 0, and no other rate, nothing."""
    rate = hparams.finetune_lr or hparams.alpha
    return local_training.finetune_routine(
        replace(hparams, finetune_lr=rate) if rate else replace(hparams, finetune_steps=0), loss
    )


def build(task: Task, hparams: HParams) -> Method:
    """Per-FedAvg on a task."""
    return Method(
        name="per-fedavg",
        init=local_training.no_state,
        broadcast=local_training.broadcast_params,
        init_client_state=local_training.no_state,
        client=training_routine(hparams, task.loss),
        server=Routine(
            local_training.start_from_mean_update,
            (),
            partial(local_training.apply_mean_update, hparams.server_lr),
        ),
        personalize=finetune_routine(hparams, task.loss),
    )
