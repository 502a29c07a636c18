"""Derivatives of a loss at parameters w on a batch: g(w), its gradient, and H(w) u, its Hessian times a direction.

All are pure functions of dicts of tensors. They can be vectorised over clients with `torch.func.vmap`, and
differentiated once more. A direction may name the parameters in any order.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from fedtailor import trees
from fedtailor.errors import require
from fedtailor.types import Batch, Loss, Params, Tree

_BY_AUTOGRAD: ContextVar[bool] = ContextVar("by_autograd", default=False)
_NESTED: ContextVar[bool] = ContextVar("nested", default=False)


def grad(function: Callable[..., Tensor]) -> Callable[..., Any]:
    """Return the gradient of a scalar function by its first argument, a tree, as `torch.func.grad` does."""
    if torch.compiler.is_compiling() or not _BY_AUTOGRAD.get():  # Dynamo cannot look into a context variable
        return torch.func.grad(function)
    return partial(_grad_by_autograd, function)


@contextmanager
def by_autograd() -> Iterator[None]:
    """Take gradients with torch's autograd instead of `torch.func`, which costs every operation its wrappers.

    Derivatives nest as with `torch.func`. Not for use inside `torch.func.vmap`.
    """
    token = _BY_AUTOGRAD.set(True)
    try:
        with torch.no_grad():
            yield
    finally:
        _BY_AUTOGRAD.reset(token)


def is_nested() -> bool:
    """Return whether what is computed now will be differentiated twice by autograd."""
    return _NESTED.get()


def gradient(loss: Loss, params: Params, batch: Batch) -> Params:
    """g(w), shaped like w."""
    found: Params = grad(loss)(params, batch)
    return found


def hessian_product(
    loss: Loss, params: Params, batch: Batch, direction: Params, mode: Literal["reverse", "forward"] = "reverse"
) -> Params:
    """H(w) u exactly, without forming H.

    `reverse` differentiates <g(w), u>. `forward` pushes u through the gradient: it keeps no second graph in memory and
    takes fewer products of matrices, but needs forward rules for every operation of the loss, and multiplies by
    directions that are zero.
    """
    require(mode in _PRODUCTS, f"hessian_product: mode must be reverse or forward, got {mode!r}.")
    return _PRODUCTS[mode](loss, params, batch, _aligned("hessian_product", direction, params))


def difference_product(loss: Loss, params: Params, batch: Batch, direction: Params, step: float) -> Params:
    """[g(w + h u) - g(w - h u)] / (2 h), which is H(w) u up to O(h^2), from two gradients. `step` is h."""
    require(step > 0, f"difference_product: step must be positive, got {step}.")
    direction = _aligned("difference_product", direction, params)
    ahead = gradient(loss, trees.add(params, direction, step), batch)
    behind = gradient(loss, trees.add(params, direction, -step), batch)
    return trees.scaled(trees.sub(ahead, behind), 0.5 / step)


def proximal_gradient(loss: Loss, lam: float | Tensor, center: Params, params: Params, batch: Batch) -> Params:
    """Return g(w) + lam (w - center), the gradient of f(w) + lam/2 |w - center|^2."""
    found = gradient(loss, params, batch)
    return found if trees.is_zero(lam) else trees.add(found, trees.sub(params, center), lam)


def _grad_by_autograd(function: Callable[..., Tensor], tree: Tree, *rest: Tree) -> Tree:
    """Differentiate by fresh aliases of the leaves, so that other uses of the same tensors count as constants.

    Outside of any other derivative torch's grad mode is off. Where it is on, the result is differentiated once more.
    """
    nested = torch.is_grad_enabled()
    token = _NESTED.set(nested)
    try:
        with torch.enable_grad():
            leaves = [_alias(leaf) for leaf in trees.leaves(tree)]
            value = function(trees.rebuild(tree, leaves), *rest)
            if not value.requires_grad:
                return trees.zeros(tree)
            slopes = torch.autograd.grad(value, leaves, create_graph=nested, materialize_grads=True)
    finally:
        _NESTED.reset(token)
    return trees.rebuild(tree, slopes)


def _alias(leaf: Tensor) -> Tensor:
    return leaf.view_as(leaf) if leaf.requires_grad else leaf.detach().requires_grad_()


def _reverse_product(loss: Loss, params: Params, batch: Batch, direction: Params) -> Params:
    product: Params = grad(partial(_slope, loss, batch, direction))(params)
    return product


def _slope(loss: Loss, batch: Batch, direction: Params, params: Params) -> torch.Tensor:
    return trees.dot(gradient(loss, params, batch), direction)


def _forward_product(loss: Loss, params: Params, batch: Batch, direction: Params) -> Params:
    product: Params = torch.func.jvp(partial(gradient, loss, batch=batch), (params,), (direction,))[1]
    return product


_PRODUCTS = {"reverse": _reverse_product, "forward": _forward_product}


def _aligned(who: str, direction: Params, params: Params) -> Params:
    require(
        direction.keys() == params.keys(),
        f"{who}: direction must name the parameters {sorted(params)}, got {sorted(direction)}.",
    )
    return {name: direction[name] for name in params}
