"""Per-FedAvg: FedAvg of a model one step from good (Fallah, Mokhtari and Ozdaglar, NeurIPS 2020).

    minimized   mean_i f_i(w - alpha g_i(w))                                                     (3)
    client      tau steps from theta, each on independent batches D, D'', D' of its own:    (7), (8)
                wt = w - alpha g(w; D);   w <- w - lr (I - alpha H(w; D'')) g(wt; D')
    server      theta' = theta + server_lr mean_i Delta_i
    personal    w - alpha g(w; D): one step of SGD

variant="exact" computes the product H u, u = g(wt; D'), by automatic differentiation; "fo" leaves
it out; "hf" takes it from [g(w + h u) - g(w - h u)] / 2h (the paper's line for it is misprinted,
and gives no h). u is not normalized: the error is then h^2 |u|^2 relative to |H u|, and shrinks as
training converges, and nothing is divided by |u|, which may be 0. The paper's beta is lr, and tau
is `steps`. Another optimizer replaces the outer step, w <- w - lr (...), alone. All variants draw
the same batches, so that they can be compared.

Identities: with alpha = 0 it is FedAvg on the stream D'. On one batch for D, D'' and D' the exact
direction is the gradient of f(w - alpha g(w)). As alpha -> 0 the direction of "fo" is off by
O(alpha); that of "hf" by O(alpha h^2).
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from fedtailor.core import autodiff, trees
from fedtailor.core.optimizers import Optimizer
from fedtailor.core.task import Task
from fedtailor.core.types import Batch, BatchPlan, BatchSpec, Loss, Method, Params, Routine, Tree
from fedtailor.methods import local_training
from fedtailor.methods.hparams import (
    AveragingHParams,
    make_batch_plan,
    non_negative,
    option,
    positive,
)


@dataclass(frozen=True, kw_only=True)
class HParams(AveragingHParams, method="per-fedavg"):
    """Hyper-parameters of Per-FedAvg."""

    alpha: float = non_negative(0.01, "step size of the inner step; 0: FedAvg")
    variant: Literal["exact", "fo", "hf"] = option(
        "exact", "Hessian by differentiation, left out, or by a finite difference"
    )
    h: float = positive(0.01, "step of the finite difference, in units of the direction")
    hessian_batch: int | None = positive(
        None, "examples of D'', for the Hessian; None: batch, as D and D' have"
    )
    server_lr: float = positive(1.0, "step size of the server; 1: the average")
    finetune_lr: float | None = positive(None, "step size of personalizing by SGD; None: alpha")
    finetune_steps: int | None = non_negative(
        1, "steps of personalizing, one in the paper; None: finetune_epochs passes instead"
    )

    def build_batch_plan(self) -> BatchPlan:
        """Return the batches (D, D'', D') of a client's training; D' is the stream of FedAvg."""
        specs = (
            BatchSpec("train", self.batch),
            BatchSpec("train", self.hessian_batch or self.batch),
            BatchSpec("train", self.batch),
        )
        return make_batch_plan(specs, epochs=self.epochs, steps=self.steps)


def meta_step(
    hparams: HParams,
    optimizer: Optimizer,
    loss: Loss,
    broadcast: Params,
    carry: tuple[Params, Tree],
    batches: tuple[Batch, ...],
) -> tuple[Params, Tree]:
    """Take one step of the optimizer along (I - alpha H(w; D'')) g(wt; D').

    Args:
        hparams: alpha, and how H u is computed.
        optimizer: The client's optimizer.
        loss: f_i on a batch.
        broadcast: Unused.
        carry: w and the optimizer's state.
        batches: D, D'' and D'.
    """
    params, opt_state = carry
    inner, curved, outer = batches
    ahead = trees.add(params, autodiff.gradient(loss, params, inner), -hparams.alpha)
    direction = autodiff.gradient(loss, ahead, outer)
    if hparams.variant != "fo" and not trees.is_zero(hparams.alpha):
        product = compute_hvp(hparams, loss, params, curved, direction)
        direction = trees.add(direction, product, -hparams.alpha)
    return optimizer.update(direction, opt_state, params)


def compute_hvp(
    hparams: HParams, loss: Loss, params: Params, batch: Batch, direction: Params
) -> Params:
    """Return H(w) u, exactly or by a central difference.

    Args:
        hparams: The variant, and h.
        loss: f_i on a batch.
        params: w.
        batch: D''.
        direction: u.
    """
    if hparams.variant == "exact":
        return autodiff.hvp(loss, params, batch, direction)
    return autodiff.finite_difference_hvp(loss, params, batch, direction, hparams.h)


def build_training_routine(hparams: HParams, loss: Loss) -> Routine:
    """Return a client's training along Per-FedAvg's direction."""
    optimizer = hparams.make_optimizer()
    step = partial(meta_step, hparams, optimizer, loss)
    return Routine(
        partial(local_training.init_from_broadcast, optimizer),
        hparams.build_train_phases(step),
        local_training.upload_update,
    )


def build_finetune_routine(hparams: HParams, loss: Loss) -> Routine:
    """Return SGD at rate alpha, the step that training prepares for.

    With alpha = 0 and no `finetune_lr` there are no steps.
    """
    lr = hparams.finetune_lr or hparams.alpha
    if lr == 0:
        return local_training.build_finetune_routine(replace(hparams, finetune_steps=0), loss)
    return local_training.build_finetune_routine(replace(hparams, finetune_lr=lr), loss)


def build(task: Task, hparams: HParams) -> Method:
    """Return Per-FedAvg on a task."""
    return Method(
        name="per-fedavg",
        init=local_training.no_state,
        broadcast=local_training.broadcast_params,
        init_client_state=local_training.no_state,
        client=build_training_routine(hparams, task.loss),
        server=local_training.build_mean_update_routine(hparams.server_lr),
        personalize=build_finetune_routine(hparams, task.loss),
        weight_by=hparams.choose_weight_split(),
    )
