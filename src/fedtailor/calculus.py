"""Derivatives of a loss at parameters w on a batch: g(w), its gradient, and H(w) u, its Hessian times a direction.

All are pure functions of dicts of tensors. They can be vectorised over clients with `torch.func.vmap`, and
differentiated once more. A direction may name the parameters in any order.
"""

from functools import partial
from typing import Literal

import torch
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from fedtailor import trees
from fedtailor.errors import require
from fedtailor.types import Batch, Loss, Params


def gradient(loss: Loss, params: Params, batch: Batch) -> Params:
    """g(w), shaped like w."""
    found: Params = torch.func.grad(loss)(params, batch)
    return found


def hessian_product(
    loss: Loss, params: Params, batch: Batch, direction: Params, mode: Literal["reverse", "forward", "any"] = "reverse"
) -> Params:
    """H(w) u exactly, without forming H.

    `reverse` differentiates <g(w), u>. `forward` pushes u through the gradient: it keeps no second graph in memory and
    takes fewer products of matrices, but needs forward rules for every operation of the loss, and multiplies by
    directions that are zero. A list of operations that torch is making goes without these, so `any` is forward there
    if the loss has such rules, and reverse otherwise.
    """
    require(mode in _PRODUCTS, f"hessian_product: mode must be reverse, forward or any, got {mode!r}.")
    return _PRODUCTS[mode](loss, params, batch, _aligned("hessian_product", direction, params))


def difference_product(loss: Loss, params: Params, batch: Batch, direction: Params, step: float) -> Params:
    """[g(w + h u) - g(w - h u)] / (2 h), which is H(w) u up to O(h^2), from two gradients. `step` is h."""
    require(step > 0, f"difference_product: step must be positive, got {step}.")
    direction = _aligned("difference_product", direction, params)
    ahead = gradient(loss, trees.add(params, direction, step), batch)
    behind = gradient(loss, trees.add(params, direction, -step), batch)
    return trees.scaled(trees.sub(ahead, behind), 0.5 / step)


def proximal(loss: Loss, lam: float | torch.Tensor, centre: Params) -> Loss:
    """The loss f(w) + lam/2 |w - centre|^2, whose gradient is g(w) + lam (w - centre). It pickles if `loss` does."""
    if not isinstance(lam, torch.Tensor):
        require(lam >= 0, f"proximal: lam must not be negative, got {lam}.")
    return partial(_proximal, loss, lam, centre)


def _proximal(loss: Loss, lam: float | torch.Tensor, centre: Params, params: Params, batch: Batch) -> torch.Tensor:
    away = trees.sub(params, centre)
    return loss(params, batch) + 0.5 * lam * trees.dot(away, away)


def _reverse_product(loss: Loss, params: Params, batch: Batch, direction: Params) -> Params:
    product: Params = torch.func.grad(partial(_slope, loss, batch, direction))(params)
    return product


def _slope(loss: Loss, batch: Batch, direction: Params, params: Params) -> torch.Tensor:
    return trees.dot(gradient(loss, params, batch), direction)


def _forward_product(loss: Loss, params: Params, batch: Batch, direction: Params) -> Params:
    product: Params = torch.func.jvp(partial(gradient, loss, batch=batch), (params,), (direction,))[1]
    return product


def _any_product(loss: Loss, params: Params, batch: Batch, direction: Params) -> Params:
    if get_proxy_mode() is None:
        return _reverse_product(loss, params, batch, direction)
    try:
        return _forward_product(loss, params, batch, direction)
    except RuntimeError:  # NotImplementedError is one: some operation has no forward rule, or none for this layout
        return _reverse_product(loss, params, batch, direction)


_PRODUCTS = {"reverse": _reverse_product, "forward": _forward_product, "any": _any_product}


def _aligned(who: str, direction: Params, params: Params) -> Params:
    require(
        direction.keys() == params.keys(),
        f"{who}: direction must name the parameters {sorted(params)}, got {sorted(direction)}.",
    )
    return {name: direction[name] for name in params}
