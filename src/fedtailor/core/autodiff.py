"""Derivatives of a loss at parameters w on a batch: the gradient g(w), and Hessian products H(w) u.

All are pure functions of dicts of tensors. They can be vectorized over clients with
`torch.func.vmap` and differentiated once more. A direction may have its names in any order.
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

_USE_AUTOGRAD: ContextVar[bool] = ContextVar("use_autograd", default=False)


def grad(function: Callable[..., Tensor]) -> Callable[..., Any]:
    """Return the gradient of a scalar function by its first argument, as `torch.func.grad` does.

    The first argument is a tree. Inside `use_autograd` torch's autograd computes the gradient.
    """
    # Dynamo cannot read a context variable, so it must not be asked for one.
    if torch.compiler.is_compiling() or not _USE_AUTOGRAD.get():
        return torch.func.grad(function)
    return partial(_autograd_grad, function)


@contextmanager
def use_autograd() -> Iterator[None]:
    """Compute gradients in the block with torch's autograd, which spares the cost of `torch.func`.

    Derivatives nest as with `torch.func`. Not for use inside `torch.func.vmap`.
    """
    token = _USE_AUTOGRAD.set(True)
    try:
        with torch.no_grad():
            yield
    finally:
        _USE_AUTOGRAD.reset(token)


def gradient(loss: Loss, params: Params, batch: Batch) -> Params:
    """Return g(w), shaped like w.

    Args:
        loss: Mean loss f over the examples of a batch.
        params: w.
        batch: The examples of f.
    """
    result: Params = grad(loss)(params, batch)
    return result


def hvp(
    loss: Loss,
    params: Params,
    batch: Batch,
    direction: Params,
    mode: Literal["reverse", "forward"] = "reverse",
) -> Params:
    """Return H(w) u exactly, without forming H.

    Args:
        loss: Mean loss f over the examples of a batch.
        params: w.
        batch: The examples of f.
        direction: u, with the names of w.
        mode: `reverse` differentiates <g(w), u>. `forward` pushes u through the gradient: it keeps
            no second graph in memory and computes fewer matrix products, but needs forward rules
            for every operation of the loss, and multiplies by directions that are zero.
    """
    require(mode in _HVP_MODES, f"hvp: mode must be reverse or forward, got {mode!r}.")
    return _HVP_MODES[mode](loss, params, batch, _match_keys("hvp", direction, params))


def finite_difference_hvp(
    loss: Loss, params: Params, batch: Batch, direction: Params, step: float
) -> Params:
    """Return [g(w + h u) - g(w - h u)] / (2 h), which is H(w) u up to O(h^2), from two gradients.

    Args:
        loss: Mean loss f over the examples of a batch.
        params: w.
        batch: The examples of f.
        direction: u, with the names of w.
        step: h, relative to the length of u.
    """
    require(step > 0, f"finite_difference_hvp: step must be positive, got {step}.")
    direction = _match_keys("finite_difference_hvp", direction, params)
    ahead = gradient(loss, trees.add(params, direction, step), batch)
    behind = gradient(loss, trees.add(params, direction, -step), batch)
    return trees.scale(trees.sub(ahead, behind), 0.5 / step)


def proximal_gradient(
    loss: Loss, lam: float | Tensor, center: Params, params: Params, batch: Batch
) -> Params:
    """Return g(w) + lam (w - center), the gradient of f(w) + lam/2 |w - center|^2.

    Args:
        loss: Mean loss f over the examples of a batch.
        lam: Strength of the proximal term.
        center: The model that the proximal term pulls w towards.
        params: w.
        batch: The examples of f.
    """
    loss_gradient = gradient(loss, params, batch)
    if trees.is_zero(lam):
        return loss_gradient
    return trees.add(loss_gradient, trees.sub(params, center), lam)


def _autograd_grad(function: Callable[..., Tensor], tree: Tree, *rest: Tree) -> Tree:
    """Return the gradient by fresh aliases of the leaves: other uses of the tensors are constants.

    torch's grad mode is off unless this runs inside another derivative; then the result itself can
    be differentiated.
    """
    is_nested = torch.is_grad_enabled()
    token = needs_double_backward.set(is_nested)
    try:
        with torch.enable_grad():
            leaves = [_alias(leaf) for leaf in trees.leaves(tree)]
            value = function(trees.unflatten(tree, leaves), *rest)
            if not value.requires_grad:
                return trees.zeros_like(tree)
            gradients = torch.autograd.grad(
                value, leaves, create_graph=is_nested, materialize_grads=True
            )
    finally:
        needs_double_backward.reset(token)
    return trees.unflatten(tree, gradients)


def _alias(leaf: Tensor) -> Tensor:
    if leaf.requires_grad:
        return leaf.view_as(leaf)
    return leaf.detach().requires_grad_()


def _reverse_hvp(loss: Loss, params: Params, batch: Batch, direction: Params) -> Params:
    product: Params = grad(partial(_directional_derivative, loss, batch, direction))(params)
    return product


def _directional_derivative(loss: Loss, batch: Batch, direction: Params, params: Params) -> Tensor:
    return trees.dot(gradient(loss, params, batch), direction)


def _forward_hvp(loss: Loss, params: Params, batch: Batch, direction: Params) -> Params:
    batch_gradient = partial(gradient, loss, batch=batch)
    product: Params = torch.func.jvp(batch_gradient, (params,), (direction,))[1]
    return product


_HVP_MODES = {"reverse": _reverse_hvp, "forward": _forward_hvp}


def _match_keys(function_name: str, direction: Params, params: Params) -> Params:
    """Return the direction with its names in the order of the parameters."""
    require(
        direction.keys() == params.keys(),
        f"{function_name}: direction must name the parameters {sorted(params)}, "
        f"got {sorted(direction)}.",
    )
    return {name: direction[name] for name in params}
