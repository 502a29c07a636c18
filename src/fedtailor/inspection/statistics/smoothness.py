"""How fast a gradient turns at a model: the L that FSL's conditions ask for, as it is there."""

from functools import partial

from torch import Tensor

from fedtailor.core import trees
from fedtailor.core.autodiff import gradient, hvp
from fedtailor.core.task import Task
from fedtailor.core.types import Batch, Params
from fedtailor.errors import require


def estimate_smoothness(task: Task, params: Params, batch: Batch, steps: int = 20) -> float:
    """The largest |eigenvalue| of the Hessian of the mean loss over a batch, by the power method from the gradient.

        u <- H u / |H u|,   L ~ |H u|                                       a lower bound that rises with the steps

    A Lipschitz constant of the gradient everywhere is at least as large. 0 where the gradient is 0.
    """
    require(steps >= 1, f"smoothness: steps must be at least 1, got {steps}.")
    loss = partial(_compute_eval_loss, task)
    direction, size = gradient(loss, params, batch), 0.0
    for _ in range(steps):
        length = float(trees.norm(direction))
        if length == 0:
            return 0.0
        direction = hvp(loss, params, batch, trees.scale(direction, 1 / length))
        size = float(trees.norm(direction))
    return size


def _compute_eval_loss(task: Task, params: Params, batch: Batch) -> Tensor:
    """In evaluation mode, so that it is a function of the parameters alone."""
    total, weight = task.compute_metric_sums(params, batch)["loss"].unbind(-1)
    return total / weight.clamp(min=1)
