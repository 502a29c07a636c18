"""Optimisers and schedules as pure functions, so that `torch.func.vmap` can step a whole cohort at once.

An `Optimiser` holds nothing that changes: `init` makes a state from parameters, and `update` takes a gradient, the
state and the parameters, and returns new parameters and the new state. Optimisers and schedules pickle. A learning
rate may be a tensor: one that a schedule has scaled, say, or one that differs from client to client.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fedtailor import trees
from fedtailor.errors import InputError, require
from fedtailor.types import Params, Tree


class Optimiser(NamedTuple):
    """A rule for steps: `init(params) -> state` and `update(gradient, state, params) -> (params, state)`."""

    init: Callable[[Params], Tree]
    update: Callable[[Params, Tree, Params], tuple[Params, Tree]]


class Moments(NamedTuple):
    """What Adam and Yogi remember."""

    steps: Tensor  # how many steps were taken
    mean: Params  # of the gradients
    square: Params  # of the gradients' squares


Schedule = Callable[[Tensor], Tensor]
"""From a round's number, counted from 0, to a factor in [0, 1] for the learning rate."""


def sgd(lr: float | Tensor, momentum: float = 0.0, nesterov: bool = False, weight_decay: float = 0.0) -> Optimiser:
    """w - lr (g + weight_decay w), with heavy-ball or Nesterov momentum. Without momentum the state is empty."""
    _check("SGD", lr, weight_decay=weight_decay)
    require(0 <= momentum < 1, f"SGD: momentum must be in [0, 1), got {momentum}.")
    require(momentum > 0 or not nesterov, f"SGD: nesterov needs a positive momentum, got {momentum}.")
    return Optimiser(
        init=trees.zeros if momentum else _stateless,
        update=partial(_sgd, lr, momentum, nesterov, weight_decay),
    )


def adam(
    lr: float | Tensor,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    bias_correction: bool = True,
) -> Optimiser:
    """Adam (Kingma and Ba, 2015), with weight decay added to the gradient.

    Without bias correction it is the server's step of FedAdam (Reddi et al., 2021), started at v = 0.
    """
    _check("Adam", lr, b1, b2, eps, weight_decay)
    return Optimiser(_moments, partial(_adam, _Adam(lr, b1, b2, eps, weight_decay, False, bias_correction)))


def adamw(
    lr: float | Tensor,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.01,
    bias_correction: bool = True,
) -> Optimiser:
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019): w also shrinks by lr weight_decay w."""
    _check("AdamW", lr, b1, b2, eps, weight_decay)
    return Optimiser(_moments, partial(_adam, _Adam(lr, b1, b2, eps, weight_decay, True, bias_correction)))


def yogi(lr: float | Tensor, b1: float = 0.9, b2: float = 0.99, eps: float = 1e-3, initial: float = 1e-6) -> Optimiser:
    """Yogi (Zaheer et al., 2018) as the server's step of FedYogi (Reddi et al., 2021): no bias correction.

    v moves towards g^2 by at most (1 - b2) g^2: v <- v - (1 - b2) sign(v - g^2) g^2. It starts at `initial`.
    """
    _check("Yogi", lr, b1, b2, eps)
    require(initial >= 0, f"Yogi: initial must not be negative, got {initial}.")
    return Optimiser(partial(_moments, initial=initial), partial(_yogi, lr, b1, b2, eps))


def constant() -> Schedule:
    """1 in every round."""
    return _constant


def linear(rounds: int) -> Schedule:
    """From 1 at round 0 in a straight line to 0 at round `rounds`, and 0 from there on."""
    require(rounds >= 1, f"linear: rounds must be at least 1, got {rounds}.")
    return partial(_linear, rounds)


def cosine(rounds: int) -> Schedule:
    """From 1 at round 0 along half a cosine to 0 at round `rounds`, and 0 from there on."""
    require(rounds >= 1, f"cosine: rounds must be at least 1, got {rounds}.")
    return partial(_cosine, rounds)


def schedule(name: Literal["constant", "linear", "cosine"], rounds: int | None = None) -> Schedule:
    """The schedule of that name over so many rounds, which `constant` does not need."""
    if name == "constant":
        return constant()
    falling = {"linear": linear, "cosine": cosine}
    require(name in falling, f"schedule: name must be constant, linear or cosine, got {name!r}.")
    if rounds is None:
        raise InputError(f"schedule: {name} needs the number of rounds, got None.")
    return falling[name](rounds)


class _Adam(NamedTuple):
    lr: float | Tensor
    b1: float
    b2: float
    eps: float
    weight_decay: float
    decoupled: bool
    bias_correction: bool


def _check(
    who: str, lr: float | Tensor, b1: float = 0.0, b2: float = 0.0, eps: float = 1.0, weight_decay: float = 0.0
) -> None:
    if not isinstance(lr, Tensor):  # a tensor's value is not to be looked at: vmap forbids it, and a GPU would wait
        require(lr > 0, f"{who}: lr must be positive, got {lr}.")
    require(0 <= b1 < 1, f"{who}: b1 must be in [0, 1), got {b1}.")
    require(0 <= b2 < 1, f"{who}: b2 must be in [0, 1), got {b2}.")
    require(eps > 0, f"{who}: eps must be positive, got {eps}.")
    require(weight_decay >= 0, f"{who}: weight_decay must not be negative, got {weight_decay}.")


def _stateless(params: Params) -> tuple[()]:
    return ()


def _moments(params: Params, initial: float = 0.0) -> Moments:
    # Half precision cannot count past 2048 (bfloat16: 256), so the count has single precision at least.
    first = next(iter(params.values()), torch.zeros(()))
    steps = torch.zeros((), dtype=torch.promote_types(first.dtype, torch.float32), device=first.device)
    return Moments(steps, trees.zeros(params), trees.full(params, initial))


def _sgd(
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
        return _moved(params, gradient, lr), state
    velocity = trees.add(gradient, state, momentum)
    direction = trees.add(gradient, velocity, momentum) if nesterov else velocity
    return _moved(params, direction, lr), velocity


def _adam(options: _Adam, gradient: Params, state: Moments, params: Params) -> tuple[Params, Moments]:
    lr, b1, b2, eps, weight_decay, decoupled, bias_correction = options
    if not decoupled and not trees.is_zero(weight_decay):
        gradient = trees.add(gradient, params, weight_decay)
    steps = state.steps + 1
    mean = _averaged(state.mean, gradient, b1)
    square = trees.apply(lambda v, g: b2 * v + (1 - b2) * g * g, state.square, gradient)
    seen1, seen2 = (_seen(b1, steps), _seen(b2, steps)) if bias_correction else (1.0, 1.0)
    direction = trees.apply(lambda m, v: (m / seen1) / ((v / seen2).sqrt() + eps), mean, square)
    if decoupled and not trees.is_zero(weight_decay):
        direction = trees.add(direction, params, weight_decay)
    return _moved(params, direction, lr), Moments(steps, mean, square)


def _yogi(
    lr: float | Tensor, b1: float, b2: float, eps: float, gradient: Params, state: Moments, params: Params
) -> tuple[Params, Moments]:
    mean = _averaged(state.mean, gradient, b1)
    square = trees.apply(lambda v, g: v - (1 - b2) * torch.sign(v - g * g) * g * g, state.square, gradient)
    direction = trees.apply(lambda m, v: m / (v.sqrt() + eps), mean, square)
    return _moved(params, direction, lr), Moments(state.steps + 1, mean, square)


def _averaged(mean: Params, gradient: Params, decay: float) -> Params:
    return trees.apply(lambda m, g: decay * m + (1 - decay) * g, mean, gradient)


def _seen(decay: float, steps: Tensor) -> Tensor:
    # 1 - decay**steps would lose digits to cancellation in the first steps.
    return -torch.expm1(steps * math.log(decay)) if decay else torch.ones_like(steps)


def _moved(params: Params, direction: Params, lr: float | Tensor) -> Params:
    # What has a higher precision must not change the dtype of a parameter without dimensions.
    if isinstance(lr, Tensor):
        return trees.apply(lambda p, d: (p - lr * d).to(p.dtype), params, direction)
    moved = trees.add(params, direction, -lr)
    return {name: moved[name].to(own.dtype) for name, own in params.items()}


def _constant(number: Tensor) -> Tensor:
    return torch.ones_like(_real(number))


def _linear(rounds: int, number: Tensor) -> Tensor:
    return 1 - _passed(number, rounds)


def _cosine(rounds: int, number: Tensor) -> Tensor:
    return 0.5 * (1 + torch.cos(math.pi * _passed(number, rounds)))


def _passed(number: Tensor, rounds: int) -> Tensor:
    return (_real(number) / rounds).clamp(0, 1)


def _real(number: Tensor) -> Tensor:
    # In double precision lr * factor is as exact as lr; without dimensions, it promotes nothing that it multiplies.
    return number if number.is_floating_point() else number.to(torch.float64)
