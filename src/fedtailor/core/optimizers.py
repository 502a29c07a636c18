"""Optimizers and schedules as pure functions, so that `torch.func.vmap` can step a whole cohort at once.

An `Optimizer` holds nothing that changes: `init` makes a state from parameters, and `update` takes a gradient, the
state and the parameters, and returns new parameters and the new state. Optimizers and schedules pickle. A learning
rate may be a tensor: one that a schedule has scaled, say, or one that differs from client to client.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fedtailor.core import trees
from fedtailor.core.schedules import Schedule, constant, cosine, linear
from fedtailor.core.types import Params, Tree
from fedtailor.errors import InputError, require


class Optimizer(NamedTuple):
    """A rule for steps: `init(params) -> state` and `update(gradient, state, params) -> (params, state)`."""

    init: Callable[[Params], Tree]
    update: Callable[[Params, Tree, Params], tuple[Params, Tree]]


class Moments(NamedTuple):
    """What Adam and Yogi remember."""

    steps: Tensor  # how many steps were taken
    mean: Params  # of the gradients
    square: Params  # of the gradients' squares


def sgd(
    lr: float | Tensor, momentum: float = 0.0, nesterov: bool = False, weight_decay: float = 0.0
) -> Optimizer:
    """w - lr (g + weight_decay w), with heavy-ball or Nesterov momentum. Without momentum the state is empty."""
    _validate_options("SGD", lr, weight_decay=weight_decay)
    require(0 <= momentum < 1, f"SGD: momentum must be in [0, 1), got {momentum}.")
    require(
        momentum > 0 or not nesterov, f"SGD: nesterov needs a positive momentum, got {momentum}."
    )
    return Optimizer(
        init=trees.zeros_like if momentum else _init_stateless,
        update=partial(_sgd_update, lr, momentum, nesterov, weight_decay),
    )


def adam(
    lr: float | Tensor,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    bias_correction: bool = True,
) -> Optimizer:
    """Adam (Kingma and Ba, 2015), with weight decay added to the gradient.

    Without bias correction it is the server's step of FedAdam (Reddi et al., 2021), started at v = 0.
    """
    _validate_options("Adam", lr, b1, b2, eps, weight_decay)
    return Optimizer(
        _init_moments,
        partial(_adam_update, _AdamOptions(lr, b1, b2, eps, weight_decay, False, bias_correction)),
    )


def adamw(
    lr: float | Tensor,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.01,
    bias_correction: bool = True,
) -> Optimizer:
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019): w also shrinks by lr weight_decay w."""
    _validate_options("AdamW", lr, b1, b2, eps, weight_decay)
    return Optimizer(
        _init_moments,
        partial(_adam_update, _AdamOptions(lr, b1, b2, eps, weight_decay, True, bias_correction)),
    )


def yogi(
    lr: float | Tensor, b1: float = 0.9, b2: float = 0.99, eps: float = 1e-3, initial: float = 1e-6
) -> Optimizer:
    """Yogi (Zaheer et al., 2018) as the server's step of FedYogi (Reddi et al., 2021): no bias correction.

    v moves towards g^2 by at most (1 - b2) g^2: v <- v - (1 - b2) sign(v - g^2) g^2. It starts at `initial`.
    """
    _validate_options("Yogi", lr, b1, b2, eps)
    require(initial >= 0, f"Yogi: initial must not be negative, got {initial}.")
    return Optimizer(
        partial(_init_moments, initial=initial), partial(_yogi_update, lr, b1, b2, eps)
    )


def schedule(name: Literal["constant", "linear", "cosine"], rounds: int | None = None) -> Schedule:
    """The schedule of that name over so many rounds, which `constant` does not need."""
    if name == "constant":
        return constant()
    falling = {"linear": linear, "cosine": cosine}
    require(name in falling, f"schedule: name must be constant, linear or cosine, got {name!r}.")
    if rounds is None:
        raise InputError(f"schedule: {name} needs the number of rounds, got None.")
    return falling[name](rounds)


class _AdamOptions(NamedTuple):
    lr: float | Tensor
    b1: float
    b2: float
    eps: float
    weight_decay: float
    decoupled: bool
    bias_correction: bool


def _validate_options(
    name: str,
    lr: float | Tensor,
    b1: float = 0.0,
    b2: float = 0.0,
    eps: float = 1.0,
    weight_decay: float = 0.0,
) -> None:
    if not isinstance(
        lr, Tensor
    ):  # a tensor's value is not to be looked at: vmap forbids it, and a GPU would wait
        require(lr > 0, f"{name}: lr must be positive, got {lr}.")
    require(0 <= b1 < 1, f"{name}: b1 must be in [0, 1), got {b1}.")
    require(0 <= b2 < 1, f"{name}: b2 must be in [0, 1), got {b2}.")
    require(eps > 0, f"{name}: eps must be positive, got {eps}.")
    require(weight_decay >= 0, f"{name}: weight_decay must not be negative, got {weight_decay}.")


def _init_stateless(params: Params) -> tuple[()]:
    return ()


def _init_moments(params: Params, initial: float = 0.0) -> Moments:
    # Half precision cannot count past 2048 (bfloat16: 256), so the count has single precision at least.
    first = next(iter(params.values()), torch.zeros(()))
    steps = torch.zeros(
        (), dtype=torch.promote_types(first.dtype, torch.float32), device=first.device
    )
    return Moments(steps, trees.zeros_like(params), trees.full_like(params, initial))


def _sgd_update(
    lr: float | Tensor,
    momentum: float,
    nesterov: bool,
    weight_decay: float,
    gradient: Params,
    state: Tree,
    params: Params,
) -> tuple[Params, Tree]:
    if not trees.is_zero(weight_decay):
        gradient = trees.add(gradient, params, weight_decay)
    if trees.is_zero(momentum):
        return _apply_step(params, gradient, lr), state
    velocity = trees.add(gradient, state, momentum)
    direction = trees.add(gradient, velocity, momentum) if nesterov else velocity
    return _apply_step(params, direction, lr), velocity


def _adam_update(
    options: _AdamOptions, gradient: Params, state: Moments, params: Params
) -> tuple[Params, Moments]:
    lr, b1, b2, eps, weight_decay, decoupled, bias_correction = options
    if not decoupled and not trees.is_zero(weight_decay):
        gradient = trees.add(gradient, params, weight_decay)
    steps = state.steps + 1
    mean = _update_mean(state.mean, gradient, b1)
    square = trees.apply(lambda v, g: b2 * v + (1 - b2) * g * g, state.square, gradient)
    debias1, debias2 = (
        (_debias_factor(b1, steps), _debias_factor(b2, steps)) if bias_correction else (1.0, 1.0)
    )
    direction = trees.apply(lambda m, v: (m / debias1) / ((v / debias2).sqrt() + eps), mean, square)
    if decoupled and not trees.is_zero(weight_decay):
        direction = trees.add(direction, params, weight_decay)
    return _apply_step(params, direction, lr), Moments(steps, mean, square)


def _yogi_update(
    lr: float | Tensor,
    b1: float,
    b2: float,
    eps: float,
    gradient: Params,
    state: Moments,
    params: Params,
) -> tuple[Params, Moments]:
    mean = _update_mean(state.mean, gradient, b1)
    square = trees.apply(
        lambda v, g: v - (1 - b2) * torch.sign(v - g * g) * g * g, state.square, gradient
    )
    direction = trees.apply(lambda m, v: m / (v.sqrt() + eps), mean, square)
    return _apply_step(params, direction, lr), Moments(state.steps + 1, mean, square)


def _update_mean(mean: Params, gradient: Params, decay: float) -> Params:
    return trees.apply(lambda m, g: decay * m + (1 - decay) * g, mean, gradient)


def _debias_factor(decay: float, steps: Tensor) -> Tensor:
    # 1 - decay**steps would lose digits to cancellation in the first steps.
    return -torch.expm1(steps * math.log(decay)) if decay else torch.ones_like(steps)


def _apply_step(params: Params, direction: Params, lr: float | Tensor) -> Params:
    # What has a higher precision must not change the dtype of a parameter without dimensions.
    if isinstance(lr, Tensor):
        return trees.apply(lambda p, d: (p - lr * d).to(p.dtype), params, direction)
    moved = trees.add(params, direction, -lr)
    return {name: moved[name].to(own.dtype) for name, own in params.items()}
