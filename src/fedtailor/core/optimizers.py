"""Optimizers as pure functions, so that `torch.func.vmap` can step a whole cohort at once.

An `Optimizer` has no state of its own: `init` makes one from parameters, and `update` returns new
parameters and the new state. Optimizers pickle. A learning rate may be a tensor: one that a
schedule has scaled, or one that differs from client to client.
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
    """A pair of pure functions that step parameters along gradients.

    init    params -> state
    update  (gradient, state, params) -> (new params, new state)
    """

    init: Callable[[Params], Tree]
    update: Callable[[Params, Tree, Params], tuple[Params, Tree]]


class Moments(NamedTuple):
    """The state of Adam and Yogi."""

    steps: Tensor  # number of steps so far
    mean: Params  # first moment of the gradients
    square: Params  # second moment of the gradients


def sgd(
    lr: float | Tensor, momentum: float = 0.0, nesterov: bool = False, weight_decay: float = 0.0
) -> Optimizer:
    """Return SGD: w - lr (g + weight_decay w), with heavy-ball or Nesterov momentum.

    Without momentum the state is empty.

    Args:
        lr: Learning rate.
        momentum: Weight of the last velocity, in [0, 1).
        nesterov: Step along g + momentum times the new velocity, which needs momentum.
        weight_decay: Added to the gradient as weight_decay w.
    """
    _validate_options("SGD", lr, weight_decay=weight_decay)
    require(0 <= momentum < 1, f"SGD: momentum must be in [0, 1), got {momentum}.")
    require(
        momentum > 0 or not nesterov, f"SGD: nesterov needs a positive momentum, got {momentum}."
    )
    options = _SGDOptions(lr, momentum, nesterov, weight_decay)
    return Optimizer(
        init=trees.zeros_like if momentum else _init_stateless,
        update=partial(_sgd_update, options),
    )


def adam(
    lr: float | Tensor,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    bias_correction: bool = True,
) -> Optimizer:
    """Return Adam (Kingma and Ba, 2015), with weight decay added to the gradient.

    Args:
        lr: Learning rate.
        b1: Decay of the first moment, in [0, 1).
        b2: Decay of the second moment, in [0, 1).
        eps: Added to the root of the second moment.
        weight_decay: Added to the gradient as weight_decay w.
        bias_correction: Without it, this is the server's step of FedAdam (Reddi et al., 2021),
            started at v = 0.
    """
    _validate_options("Adam", lr, b1, b2, eps, weight_decay)
    options = _AdamOptions(lr, b1, b2, eps, weight_decay, False, bias_correction)
    return Optimizer(_init_moments, partial(_adam_update, options))


def adamw(
    lr: float | Tensor,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.01,
    bias_correction: bool = True,
) -> Optimizer:
    """Return Adam with decoupled weight decay (Loshchilov and Hutter, 2019).

    Args:
        lr: Learning rate.
        b1: Decay of the first moment, in [0, 1).
        b2: Decay of the second moment, in [0, 1).
        eps: Added to the root of the second moment.
        weight_decay: w shrinks by lr weight_decay w in each step, besides Adam's step.
        bias_correction: Divide the moments by what a constant gradient would have made of them.
    """
    _validate_options("AdamW", lr, b1, b2, eps, weight_decay)
    options = _AdamOptions(lr, b1, b2, eps, weight_decay, True, bias_correction)
    return Optimizer(_init_moments, partial(_adam_update, options))


def yogi(
    lr: float | Tensor, b1: float = 0.9, b2: float = 0.99, eps: float = 1e-3, initial: float = 1e-6
) -> Optimizer:
    """Return Yogi (Zaheer et al., 2018) as the server's step of FedYogi (Reddi et al., 2021).

    v moves towards g^2 by at most (1 - b2) g^2: v <- v - (1 - b2) sign(v - g^2) g^2. There is no
    bias correction.

    Args:
        lr: Learning rate.
        b1: Decay of the first moment, in [0, 1).
        b2: Decay of the second moment v, in [0, 1).
        eps: Added to the root of v.
        initial: First value of v.
    """
    _validate_options("Yogi", lr, b1, b2, eps)
    require(initial >= 0, f"Yogi: initial must not be negative, got {initial}.")
    options = _YogiOptions(lr, b1, b2, eps)
    return Optimizer(partial(_init_moments, initial=initial), partial(_yogi_update, options))


def schedule(name: Literal["constant", "linear", "cosine"], rounds: int | None = None) -> Schedule:
    """Return the schedule of a name over `rounds` rounds, which `constant` does not need."""
    if name == "constant":
        return constant()
    decays = {"linear": linear, "cosine": cosine}
    require(name in decays, f"schedule: name must be constant, linear or cosine, got {name!r}.")
    if rounds is None:
        raise InputError(f"schedule: {name} needs the number of rounds, got None.")
    return decays[name](rounds)


class _SGDOptions(NamedTuple):
    lr: float | Tensor
    momentum: float
    nesterov: bool
    weight_decay: float


class _AdamOptions(NamedTuple):
    lr: float | Tensor
    b1: float
    b2: float
    eps: float
    weight_decay: float
    decoupled: bool
    bias_correction: bool


class _YogiOptions(NamedTuple):
    lr: float | Tensor
    b1: float
    b2: float
    eps: float


def _validate_options(
    name: str,
    lr: float | Tensor,
    b1: float = 0.0,
    b2: float = 0.0,
    eps: float = 1.0,
    weight_decay: float = 0.0,
) -> None:
    # A tensor's value is not read: vmap forbids it, and a GPU would have to be waited for.
    if not isinstance(lr, Tensor):
        require(lr > 0, f"{name}: lr must be positive, got {lr}.")
    require(0 <= b1 < 1, f"{name}: b1 must be in [0, 1), got {b1}.")
    require(0 <= b2 < 1, f"{name}: b2 must be in [0, 1), got {b2}.")
    require(eps > 0, f"{name}: eps must be positive, got {eps}.")
    require(weight_decay >= 0, f"{name}: weight_decay must not be negative, got {weight_decay}.")


def _init_stateless(params: Params) -> tuple[()]:
    return ()


def _init_moments(params: Params, initial: float = 0.0) -> Moments:
    first = next(iter(params.values()), torch.zeros(()))
    # Half precision cannot count past 2048 (bf16: 256), so the counter is float32 at least.
    dtype = torch.promote_types(first.dtype, torch.float32)
    steps = torch.zeros((), dtype=dtype, device=first.device)
    return Moments(steps, trees.zeros_like(params), trees.full_like(params, initial))


def _sgd_update(
    options: _SGDOptions, gradient: Params, state: Tree, params: Params
) -> tuple[Params, Tree]:
    lr, momentum, nesterov, weight_decay = options
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
    debias1: float | Tensor = 1.0
    debias2: float | Tensor = 1.0
    if bias_correction:
        debias1 = _debias_factor(b1, steps)
        debias2 = _debias_factor(b2, steps)
    direction = trees.apply(lambda m, v: (m / debias1) / ((v / debias2).sqrt() + eps), mean, square)
    if decoupled and not trees.is_zero(weight_decay):
        direction = trees.add(direction, params, weight_decay)
    return _apply_step(params, direction, lr), Moments(steps, mean, square)


def _yogi_update(
    options: _YogiOptions, gradient: Params, state: Moments, params: Params
) -> tuple[Params, Moments]:
    lr, b1, b2, eps = options
    mean = _update_mean(state.mean, gradient, b1)
    square = trees.apply(
        lambda v, g: v - (1 - b2) * torch.sign(v - g * g) * g * g, state.square, gradient
    )
    direction = trees.apply(lambda m, v: m / (v.sqrt() + eps), mean, square)
    return _apply_step(params, direction, lr), Moments(state.steps + 1, mean, square)


def _update_mean(mean: Params, gradient: Params, decay: float) -> Params:
    return trees.apply(lambda m, g: decay * m + (1 - decay) * g, mean, gradient)


def _debias_factor(decay: float, steps: Tensor) -> Tensor:
    """Return 1 - decay^steps, computed so that the first steps lose no digits to cancellation."""
    if decay == 0:
        return torch.ones_like(steps)
    return -torch.expm1(steps * math.log(decay))


def _apply_step(params: Params, direction: Params, lr: float | Tensor) -> Params:
    # A term of higher precision must not change the dtype of a parameter without dimensions.
    if isinstance(lr, Tensor):
        return trees.apply(lambda p, d: (p - lr * d).to(p.dtype), params, direction)
    stepped = trees.add(params, direction, -lr)
    return {name: stepped[name].to(own.dtype) for name, own in params.items()}
