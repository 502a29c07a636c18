"""Derivatives of a loss at parameters w on a batch: g(w), its gradient, and H(w) u, its Hessian times a direction.

All are pure functions of dicts of tensors. They can be vectorized over clients with `torch.func.vmap`, and
differentiated once more. A direction may name the parameters in any order.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from fedtailor.core import trees
from fedtailor.core.types import Batch, Loss, Params, Tree
from fedtailor.errors import require
from fedtailor.ops.double_backward import needs_double_backward

_USE_AUTOGRAD: ContextVar[bool] = ContextVar("by_autograd", default=False)


def grad(function: Callable[..., Tensor]) -> Callable[..., Any]:
    """Return the gradient of a scalar function by its first argument, a tree, as `torch.func.grad` does."""
    if (
        torch.compiler.is_compiling() or not _USE_AUTOGRAD.get()
    ):  # Dynamo cannot look into a context variable
        return torch.func.grad(function)
    return partial(_autograd_grad, function)


@contextmanager
def use_autograd() -> Iterator[None]:
    """Take gradients with torch's autograd instead of `torch.func`, which costs every operation its wrappers.

    Derivatives nest as with `torch.func`. Not for use inside `torch.func.vmap`.
    """
    token = _USE_AUTOGRAD.set(True)
    try:
        with torch.no_grad():
            yield
    finally:
        _USE_AUTOGRAD.reset(token)


def gradient(loss: Loss, params: Params, batch: Batch) -> Params:
    """g(w), shaped like w."""
    found: Params = grad(loss)(params, batch)
    return found


def hvp(
    loss: Loss,
    params: Params,
    batch: Batch,
    direction: Params,
    mode: Literal["reverse", "forward"] = "reverse",
) -> Params:
    """H(w) u exactly, without forming H.

    `reverse` differentiates <g(w), u>. `forward` pushes u through the gradient: it keeps no second graph in memory and
    takes fewer products of matrices, but needs forward rules for every operation of the loss, and multiplies by
    directions that are zero.
    """
    require(mode in _HVP_MODES, f"hessian_product: mode must be reverse or forward, got {mode!r}.")
    return _HVP_MODES[mode](loss, params, batch, _match_keys("hessian_product", direction, params))


def finite_difference_hvp(
    loss: Loss, params: Params, batch: Batch, direction: Params, step: float
) -> Params:
    """[g(w + h u) - g(w - h u)] / (2 h), which is H(w) u up to O(h^2), from two gradients. `step` is h."""
    require(step > 0, f"difference_product: step must be positive, got {step}.")
    direction = _match_keys("difference_product", direction, params)
    ahead = gradient(loss, trees.add(params, direction, step), batch)
    behind = gradient(loss, trees.add(params, direction, -step), batch)
    return trees.scale(trees.sub(ahead, behind), 0.5 / step)


def proximal_gradient(
    loss: Loss, lam: float | Tensor, center: Params, params: Params, batch: Batch
) -> Params:
    """Return g(w) + lam (w - center), the gradient of f(w) + lam/2 |w - center|^2."""
    found = gradient(loss, params, batch)
    return found if trees.is_zero(lam) else trees.add(found, trees.sub(params, center), lam)


def _autograd_grad(function: Callable[..., Tensor], tree: Tree, *rest: Tree) -> Tree:
    """Differentiate by fresh aliases of the leaves, so that other uses of the same tensors count as constants.

    Outside of any other derivative torch's grad mode is off. Where it is on, the result is differentiated once more.
    """
    nested = torch.is_grad_enabled()
    token = needs_double_backward.set(nested)
    try:
        with torch.enable_grad():
            leaves = [_alias(leaf) for leaf in trees.leaves(tree)]
            value = function(trees.unflatten(tree, leaves), *rest)
            if not value.requires_grad:
                return trees.zeros_like(tree)
            slopes = torch.autograd.grad(value, leaves, create_graph=nested, materialize_grads=True)
    finally:
        needs_double_backward.reset(token)
    return trees.unflatten(tree, slopes)


def _alias(leaf: Tensor) -> Tensor:
    return leaf.view_as(leaf) if leaf.requires_grad else leaf.detach().requires_grad_()


def _reverse_hvp(loss: Loss, params: Params, batch: Batch, direction: Params) -> Params:
    product: Params = grad(partial(_directional_derivative, loss, batch, direction))(params)
    return product


def _directional_derivative(
    loss: Loss, batch: Batch, direction: Params, params: Params
) -> torch.Tensor:
    return trees.dot(gradient(loss, params, batch), direction)


def _forward_hvp(loss: Loss, params: Params, batch: Batch, direction: Params) -> Params:
    product: Params = torch.func.jvp(partial(gradient, loss, batch=batch), (params,), (direction,))[
        1
    ]
    return product


_HVP_MODES = {"reverse": _reverse_hvp, "forward": _forward_hvp}


def _match_keys(function_name: str, direction: Params, params: Params) -> Params:
    require(
        direction.keys() == params.keys(),
        f"{function_name}: direction must name the parameters {sorted(params)}, got {sorted(direction)}.",
    )
    return {name: direction[name] for name in params}
