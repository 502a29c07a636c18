"""Per-FedAvg: FedAvg of a model that is one gradient step from good (Fallah, Mokhtari and Ozdaglar, NeurIPS 2020).

    minimised   mean_i f_i(w - alpha g_i(w))                                                                  (3)
    client      tau steps from theta, each on independent batches D, D'', D' of its own:                      (7), (8)
                wt = w - alpha g(w; D);   w <- w - lr (I - alpha H(w; D'')) g(wt; D')
    server      theta' = theta + server_lr mean_i Delta_i
    personal    w - alpha g(w; D): one step of SGD

variant="exact" has the product H u, u = g(wt; D'), by automatic differentiation; "fo" leaves it out; "hf" takes it from
[g(w + h u) - g(w - h u)] / 2h (the paper's line for it is misprinted, and gives no h). u is not normalised: the error
is then h^2 |u|^2 relative to |H u|, and shrinks as training converges, and nothing is divided by |u|, which may be 0.
The paper's beta is lr, and tau is `steps`. The optimiser takes the place of the outer step, w <- w - lr (...), alone.
All variants draw the same batches, so that they can be compared.

Identities: with alpha = 0 it is FedAvg on the stream D'. On one batch for D, D'' and D' the exact direction is the
gradient of f(w - alpha g(w)). As alpha -> 0 the direction of "fo" is off by O(alpha); that of "hf" by O(alpha h^2).
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from fedtailor import calculus, trees
from fedtailor.methods import pieces
from fedtailor.methods.pieces import not_negative, option, positive
from fedtailor.optim import Optimiser
from fedtailor.task import Task
from fedtailor.types import Batch, Draw, Loss, Method, Params, Phase, Tree, Work


@dataclass(frozen=True, kw_only=True)
class Hyper(pieces.Local):
    """Hyper-parameters of Per-FedAvg."""

    alpha: float = not_negative(0.01, "step size of the inner step; 0: FedAvg")
    variant: Literal["exact", "fo", "hf"] = option(
        "exact", "Hessian by differentiation, left out, or by a finite difference"
    )
    h: float = positive(0.01, "step of the finite difference, in units of the direction")
    hessian_batch: int | None = positive(None, "examples of D'', for the Hessian; None: batch, as D and D' have")
    server_lr: float = positive(1.0, "rate at which the mean change is added; 1: the plain average")
    tune_lr: float | None = positive(None, "step size of personalising by SGD; None: alpha")
    tune_steps: int | None = not_negative(
        1, "steps of personalising, one in the paper; None: tune_epochs passes instead"
    )


def meta_step(
    hyper: Hyper, optimiser: Optimiser, loss: Loss, sent: Params, carry: tuple[Params, Tree], batches: tuple[Batch, ...]
) -> tuple[Params, Tree]:
    """One step of the optimiser along (I - alpha H(w; D'')) g(wt; D')."""
    (own, memory), (inner, curved, outer) = carry, batches
    ahead = trees.add(own, calculus.gradient(loss, own, inner), -hyper.alpha)
    direction = calculus.gradient(loss, ahead, outer)
    if hyper.variant != "fo" and not trees.is_zero(hyper.alpha):
        direction = trees.add(direction, hessian_times(hyper, loss, own, curved, direction), -hyper.alpha)
    return optimiser.update(direction, memory, own)


def hessian_times(hyper: Hyper, loss: Loss, own: Params, batch: Batch, direction: Params) -> Params:
    """H(w) u, exactly or by a central difference."""
    if hyper.variant == "exact":
        return calculus.hessian_product(loss, own, batch, direction)
    return calculus.difference_product(loss, own, batch, direction, hyper.h)


def training(hyper: Hyper, loss: Loss) -> Work:
    """A client's training, on batches (D, D'', D'); the last one is the stream that FedAvg sees."""
    optimiser, plan = pieces.local_optimiser(hyper), hyper.plan()
    draws = (Draw("train", hyper.batch), Draw("train", hyper.hessian_batch or hyper.batch), *plan.draws)
    phase = Phase(partial(meta_step, hyper, optimiser, loss), plan._replace(draws=draws))
    return Work(partial(pieces.begin, optimiser), (phase,), pieces.change)


def personalising(hyper: Hyper, loss: Loss) -> Work:
    """SGD at rate alpha, the step that training prepares for; with alpha = 0, and no other rate, nothing."""
    rate = hyper.tune_lr or hyper.alpha
    return pieces.fine_tuning(replace(hyper, tune_lr=rate) if rate else replace(hyper, tune_steps=0), loss)


def build(task: Task, hyper: Hyper) -> Method:
    """Per-FedAvg on a task."""
    return Method(
        name="per-fedavg",
        init=pieces.nothing,
        broadcast=pieces.params,
        new_memory=pieces.nothing,
        client=training(hyper, task.loss),
        server=Work(pieces.mean_change, (), partial(pieces.add, hyper.server_lr)),
        personalise=personalising(hyper, task.loss),
    )
