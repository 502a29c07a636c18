"""The smoothness L that FSL's conditions ask for: how fast the gradient turns at a model."""

from functools import partial

from torch import Tensor

from fedtailor.core import trees
from fedtailor.core.autodiff import gradient, hvp
from fedtailor.core.task import Task
from fedtailor.core.types import Batch, Params
from fedtailor.errors import require


def estimate_smoothness(task: Task, params: Params, batch: Batch, steps: int = 20) -> float:
    """Estimate the largest |eigenvalue| of the Hessian H of the mean loss over a batch.

    This is the power method from the gradient,

        u <- H u / |H u|,   L ~ |H u|

    a lower bound that rises with the steps. A Lipschitz constant of the gradient everywhere is at
    least as large.

    Args:
        task: The model, which runs in evaluation mode, and its loss.
        params: The parameters at which H is taken.
        batch: The examples.
        steps: Number of Hessian-vector products, at least 1.

    Returns:
        The estimate, or 0 where the gradient is 0.
    """
    require(steps >= 1, f"estimate_smoothness: steps must be at least 1, got {steps}.")
    loss = partial(_compute_eval_loss, task)
    direction = gradient(loss, params, batch)
    estimate = 0.0
    for _ in range(steps):
        length = float(trees.norm(direction))
        if length == 0:
            return 0.0
        unit_direction = trees.scale(direction, 1 / length)
        direction = hvp(loss, params, batch, unit_direction)
        estimate = float(trees.norm(direction))
    return estimate


def _compute_eval_loss(task: Task, params: Params, batch: Batch) -> Tensor:
    """Return the mean loss in evaluation mode, where it depends on the parameters alone."""
    total, weight = task.compute_metric_sums(params, batch)["loss"].unbind(-1)
    return total / weight.clamp(min=1)
