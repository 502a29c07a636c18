"""Derivatives against dense Hessians, closed forms and loops."""

import copy
import math
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any, Literal

import pytest
import torch
from torch import Tensor
from torch.func import vmap

from fedtailor.core import trees
from fedtailor.core.autodiff import (
    finite_difference_hvp,
    gradient,
    hvp,
    proximal_gradient,
    use_autograd,
)
from fedtailor.core.types import Batch, Loss, Params
from fedtailor.errors import InputError

# The first forward derivative, and the first compilation, of a process make torch load scripts in
# its deprecated form.

Mode = Literal["reverse", "forward"]
MODES: tuple[Mode, ...] = ("reverse", "forward")
SHAPES = {"w1": (3, 4), "b1": (4,), "w2": (4, 2)}


def draw(seed: int, *lead: int) -> Params:
    source = torch.Generator().manual_seed(seed)
    return {
        k: torch.randn(*lead, *shape, generator=source, dtype=torch.float64)
        for k, shape in SHAPES.items()
    }


def batch(seed: int, *lead: int, size: int = 6) -> Batch:
    """Random examples, of which the last of each batch is padding."""
    source = torch.Generator().manual_seed(seed)
    mask = torch.ones(*lead, size, dtype=torch.float64)
    mask[..., -1] = 0
    x = torch.randn(*lead, size, 3, generator=source, dtype=torch.float64)
    y = torch.randint(2, (*lead, size), generator=source)
    return Batch(x, y, mask, torch.zeros(*lead, 2, dtype=torch.int64))


def mlp(params: Params, data: Batch) -> Tensor:
    """Cross-entropy of a tanh network over the examples that the mask marks as real."""
    scores = torch.tanh(data.x @ params["w1"] + params["b1"]) @ params["w2"]
    each = torch.nn.functional.cross_entropy(scores, data.y, reduction="none")
    return (each * data.mask).sum() / data.mask.sum()


def quadratic(params: Params, data: Batch) -> Tensor:
    """1/2 w'Aw + b'w with the matrix A in x and the vector b in y."""
    w = params["w"]
    return 0.5 * w @ data.x @ w + data.y @ w


def quartic(params: Params, data: Batch) -> Tensor:
    """Sum of w^4 / 24: its gradient is w^3 / 6 and its Hessian diag(w^2 / 2)."""
    return (params["w"] ** 4).sum() / 24


W, U, V, DATA = draw(1), draw(2), draw(3), batch(4)
CUBE = {"w": torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)}
ALONG = {"w": torch.tensor([1.0, 3.0, -0.5], dtype=torch.float64)}


def as_vector(tree: Params) -> Tensor:
    return torch.cat([tree[name].reshape(-1) for name in SHAPES])


def as_params(vector: Tensor) -> Params:
    parts = torch.split(vector, [math.prod(shape) for shape in SHAPES.values()])
    return {
        name: part.reshape(shape) for part, (name, shape) in zip(parts, SHAPES.items(), strict=True)
    }


def dense_hessian(data: Batch) -> Tensor:
    found: Tensor = torch.func.hessian(lambda vector: mlp(as_params(vector), data))(as_vector(W))
    return found


def assert_close(found: Params, wanted: Params, atol: float = 1e-12) -> None:
    torch.testing.assert_close(found, wanted, rtol=0, atol=atol)


def matrix() -> Batch:
    source = torch.Generator().manual_seed(5)
    half = torch.randn(3, 3, generator=source, dtype=torch.float64)
    linear = torch.randn(3, generator=source, dtype=torch.float64)
    return Batch(half + half.T, linear, torch.ones(3), torch.zeros(2, dtype=torch.int64))


def test_gradient_is_that_of_autograd() -> None:
    leaves = {name: value.clone().requires_grad_() for name, value in W.items()}
    mlp(leaves, DATA).backward()  # type: ignore[no-untyped-call]
    wanted = {name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}
    assert_close(gradient(mlp, W, DATA), wanted)


def test_gradient_of_a_quadratic() -> None:
    data = matrix()
    assert_close(gradient(quadratic, CUBE, data), {"w": data.x @ CUBE["w"] + data.y})


def product_of(kind: str) -> Callable[[Loss, Params, Batch, Params], Params]:
    """H u by one of the three ways; the difference with a step that is good to about 1e-9 here."""
    if kind == "difference":
        return lambda loss, params, data, along: finite_difference_hvp(
            loss, params, data, along, 1e-5
        )
    mode: Mode = "forward" if kind == "forward" else "reverse"
    return lambda loss, params, data, along: hvp(loss, params, data, along, mode)


KINDS = [("reverse", 1e-12), ("forward", 1e-12), ("difference", 1e-8)]


@pytest.mark.parametrize(("kind", "atol"), KINDS)
def test_products_are_those_of_the_dense_hessian(kind: str, atol: float) -> None:
    found = product_of(kind)(mlp, W, DATA, U)
    assert_close(found, as_params(dense_hessian(DATA) @ as_vector(U)), atol)


@pytest.mark.parametrize(("kind", "atol"), KINDS)
def test_products_on_a_quadratic(kind: str, atol: float) -> None:
    data = matrix()
    assert_close(product_of(kind)(quadratic, CUBE, data, ALONG), {"w": data.x @ ALONG["w"]}, atol)


def test_reverse_is_the_default_and_equals_forward() -> None:
    assert_close(hvp(mlp, W, DATA, U), hvp(mlp, W, DATA, U, "reverse"), 0)
    assert_close(hvp(mlp, W, DATA, U), hvp(mlp, W, DATA, U, "forward"), 1e-14)


class Square(torch.autograd.Function):
    """x^2 as an operation that has a backward rule but no forward one."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x * x

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> Tensor:
        x: Tensor = ctx.saved_tensors[0]
        return 2 * x * grad_outputs[0]


def test_only_the_forward_mode_needs_forward_rules() -> None:
    def square(params: Params, data: Batch) -> Tensor:
        squared: Tensor = Square.apply(params["w"])  # type: ignore[no-untyped-call]
        return squared.sum()

    assert_close(hvp(square, CUBE, DATA, ALONG, "reverse"), trees.scale(ALONG, 2.0))
    with pytest.raises(RuntimeError, match="jvp"):
        hvp(square, CUBE, DATA, ALONG, "forward")


@pytest.mark.parametrize("mode", MODES)
def test_the_hessian_is_symmetric(mode: Mode) -> None:
    one = as_vector(U) @ as_vector(hvp(mlp, W, DATA, V, mode))
    other = as_vector(V) @ as_vector(hvp(mlp, W, DATA, U, mode))
    assert abs(one) > 1e-3
    torch.testing.assert_close(one, other, rtol=1e-12, atol=0)


@pytest.mark.parametrize("kind", ["reverse", "forward", "difference"])
def test_a_direction_may_name_the_parameters_in_any_order(kind: str) -> None:
    shuffled = {name: U[name] for name in reversed(SHAPES)}
    product = product_of(kind)
    assert_close(product(mlp, W, DATA, shuffled), product(mlp, W, DATA, U), 0)


@pytest.mark.parametrize("step", [1e-3, 0.1, 1.0])
def test_the_difference_of_a_quartic_is_off_by_its_third_derivative(step: float) -> None:
    found = finite_difference_hvp(quartic, CUBE, DATA, ALONG, step)
    w, u = CUBE["w"], ALONG["w"]
    assert_close(found, {"w": w**2 * u / 2 + step**2 * u**3 / 6})


def test_the_error_of_the_difference_falls_with_the_square_of_the_step() -> None:
    exact = hvp(mlp, W, DATA, U)
    steps = [10 ** (-1.5 - 0.25 * i) for i in range(8)]
    errors = [
        trees.norm(trees.sub(finite_difference_hvp(mlp, W, DATA, U, h), exact)).item()
        for h in steps
    ]
    for (h, error), (smaller, less) in pairwise(zip(steps, errors, strict=True)):
        assert math.log(error / less) / math.log(h / smaller) == pytest.approx(2, abs=0.02)


@pytest.mark.parametrize(("kind", "atol"), KINDS)
def test_products_can_be_differentiated_once_more(kind: str, atol: float) -> None:
    def curvature(params: Params) -> Tensor:
        return trees.dot(ALONG, product_of(kind)(quartic, params, DATA, ALONG))

    assert_close(torch.func.grad(curvature)(CUBE), {"w": CUBE["w"] * ALONG["w"] ** 2}, atol)


@pytest.mark.parametrize("kind", ["reverse", "forward", "difference"])
def test_vectorized_products_are_those_of_a_loop(kind: str) -> None:
    params, along, data = draw(6, 4), draw(7, 4), batch(8, 4)
    product = product_of(kind)
    found = vmap(lambda p, d, u: product(mlp, p, d, u))(params, data, along)
    loop = [
        product(mlp, trees.take_row(params, i), trees.take_row(data, i), trees.take_row(along, i))
        for i in range(4)
    ]
    assert_close(found, trees.stack(loop), 1e-10 if kind == "difference" else 1e-13)


def test_vectorized_gradients_are_those_of_a_loop() -> None:
    params, data = draw(6, 4), batch(8, 4)
    found = vmap(lambda p, d: gradient(mlp, p, d))(params, data)
    assert_close(
        found,
        trees.stack(
            [gradient(mlp, trees.take_row(params, i), trees.take_row(data, i)) for i in range(4)]
        ),
        1e-13,
    )


@pytest.mark.parametrize("kind", ["reverse", "forward", "difference"])
def test_padding_has_no_say(kind: str) -> None:
    real = Batch(DATA.x[:-1], DATA.y[:-1], DATA.mask[:-1], DATA.key)
    wild = DATA._replace(x=torch.cat([DATA.x[:-1], torch.full((1, 3), 50.0, dtype=torch.float64)]))
    assert_close(gradient(mlp, W, wild), gradient(mlp, W, real))
    assert_close(product_of(kind)(mlp, W, wild, U), product_of(kind)(mlp, W, real, U), 1e-9)


def proximal(lam: float, center: Params, params: Params, data: Batch) -> Tensor:
    """The loss whose gradient is written out."""
    away = trees.sub(params, center)
    return mlp(params, data) + 0.5 * lam * trees.dot(away, away)


@pytest.mark.parametrize("lam", [0.0, 0.3])
def test_the_proximal_gradient_is_that_of_the_proximal_loss(lam: float) -> None:
    assert_close(
        proximal_gradient(mlp, lam, V, W, DATA), gradient(partial(proximal, lam, V), W, DATA)
    )


def test_the_proximal_gradient_takes_a_center_per_client() -> None:
    params, centers, data = draw(6, 4), draw(9, 4), batch(8, 4)
    found = vmap(lambda p, c, d: proximal_gradient(mlp, 0.3, c, p, d))(params, centers, data)
    plain = vmap(lambda p, d: gradient(mlp, p, d))(params, data)
    assert_close(found, trees.add(plain, trees.sub(params, centers), 0.3), 1e-13)


@pytest.mark.parametrize("kind", ["reverse", "difference"])
def test_autograd_finds_what_torch_func_does(kind: str) -> None:
    wanted = gradient(mlp, W, DATA), product_of(kind)(mlp, W, DATA, U)
    with use_autograd():
        found = gradient(mlp, W, DATA), product_of(kind)(mlp, W, DATA, U)
        assert not any(leaf.requires_grad for leaf in trees.leaves(found))
    assert_close(found[0], wanted[0], 1e-14)
    assert_close(found[1], wanted[1], 1e-13)


@pytest.mark.parametrize("order", [1, 2])
def test_derivatives_nest_by_autograd_as_by_torch_func(order: int) -> None:
    def after_two_steps(params: Params, data: Batch) -> Tensor:
        for _ in range(2):
            start = params if order == 2 else trees.apply(Tensor.detach, params)
            params = trees.add(params, gradient(mlp, start, data), -0.1)
        return mlp(params, data)

    wanted = gradient(after_two_steps, W, DATA)
    with use_autograd():
        assert_close(gradient(after_two_steps, W, DATA), wanted, 1e-13)


def test_other_uses_of_the_same_tensors_are_constants() -> None:
    with use_autograd():
        slope = gradient(partial(proximal, 0.3, W), W, DATA)  # held near where it is: no pull
    assert_close(slope, gradient(mlp, W, DATA), 1e-14)


def test_inputs_stay_as_they_were() -> None:
    before = copy.deepcopy((W, DATA, U, V))
    proximal_gradient(mlp, 0.3, V, W, DATA)
    for kind in ("reverse", "forward", "difference"):
        product_of(kind)(mlp, W, DATA, U)
    torch.testing.assert_close((W, DATA, U, V), before, rtol=0, atol=0)


def test_a_compiled_vectorized_product_equals_the_eager_one() -> None:
    params, along, data = draw(6, 3), draw(7, 3), batch(8, 3)
    product = vmap(lambda p, d, u: hvp(mlp, p, d, u))
    assert_close(
        torch.compile(product, fullgraph=True)(params, data, along),
        product(params, data, along),
        1e-13,
    )


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (
            lambda: finite_difference_hvp(mlp, W, DATA, U, 0.0),
            "finite_difference_hvp: step must be positive, got 0.0.",
        ),
        (
            lambda: hvp(mlp, W, DATA, U, "sideways"),  # type: ignore[arg-type]
            "hvp: mode must be reverse or forward, got 'sideways'.",
        ),
        (
            lambda: hvp(mlp, W, DATA, {"w1": U["w1"]}),
            "hvp: direction must name the parameters ['b1', 'w1', 'w2'], got ['w1'].",
        ),
        (
            lambda: finite_difference_hvp(mlp, W, DATA, {}, 0.1),
            "finite_difference_hvp: direction must name the parameters ['b1', 'w1', 'w2'], got [].",
        ),
    ],
)
def test_what_cannot_be_used_is_refused(call: Callable[[], object], sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        call()
    assert str(caught.value) == sentence
