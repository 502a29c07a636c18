"""Operations on images in terms of others: torch's own are the oracle, in every derivative."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp, vjp
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as nnf

from fedtailor.compiler.decompositions import DECOMPOSITIONS, DecomposeGroupNorm
from fedtailor.compiler.inductor import _trace_for_inductor

Params = dict[str, Tensor]
Function = Callable[..., Any]


def rewritten(function: Function, *given: Any) -> GraphModule:
    with DecomposeGroupNorm():
        found: GraphModule = make_fx(
            function, DECOMPOSITIONS, tracing_mode="fake", _allow_non_fake_inputs=True
        )(*given)
    return found


def operations(graph: GraphModule) -> str:
    return " ".join(str(node.target) for node in graph.graph.nodes)


def drawn(*shape: int) -> Tensor:
    return torch.randn(
        shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64
    )


@pytest.mark.parametrize(("stride", "padding"), [(1, 0), (2, 1), ((1, 2), (2, 0))])
@pytest.mark.parametrize("bias", [True, False])
def test_convolutions_of_one_channel_are_products(stride: Any, padding: Any, bias: bool) -> None:
    x, given = drawn(4, 1, 9, 8), (drawn(5, 1, 3, 2), *([drawn(5)] if bias else []))

    def convolved(w: Tensor, bias: Tensor | None = None) -> Tensor:
        return nnf.conv2d(x, w, bias, stride, padding)

    def both(*given: Tensor) -> tuple[Tensor, ...]:
        value, back = vjp(convolved, *given)[:2]
        return value, *back(value.cos())

    graph = rewritten(both, *given)
    assert "convolution" not in operations(graph)
    torch.testing.assert_close(graph(*given), both(*given), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(2, 4, 3),
        nn.Conv2d(1, 4, 3, dilation=2),
        nn.Conv2d(2, 4, 3, groups=2),
        nn.ConvTranspose2d(1, 4, 3),
    ],
)
def test_other_convolutions_are_left_alone(layer: nn.Module) -> None:
    x = torch.ones(2, 2 if getattr(layer, "in_channels", 1) == 2 else 1, 6, 6)
    params = {name: value.detach() for name, value in layer.named_parameters()}

    def summed(own: Params) -> Tensor:
        total: Tensor = functional_call(layer, own, (x,)).sum()
        return total

    graph = rewritten(grad(summed), params)
    assert "aten.convolution_backward" in operations(graph)


def test_the_gradient_by_images_is_left_alone() -> None:
    x, w = drawn(2, 1, 5, 5), drawn(3, 1, 3, 3)

    def squares(x: Tensor) -> Tensor:
        return nnf.conv2d(x, w).square().sum()

    by_x = grad(squares)
    graph = rewritten(by_x, x)
    assert "aten.convolution_backward" in operations(graph)
    torch.testing.assert_close(graph(x), by_x(x), rtol=1e-10, atol=1e-12)


def _pooled(x: Tensor, kernel_size: int, **options: Any) -> Tensor:
    pooled: Tensor = nnf.max_pool2d(x, kernel_size, **options)
    return pooled.square().sum()


@pytest.mark.parametrize("shape", [(2, 3, 6, 8), (1, 1, 2, 2)])
def test_pooling_goes_back_to_the_first_of_the_largest(shape: tuple[int, ...]) -> None:
    x = drawn(*shape).round()  # many are equal
    by_x = vjp(lambda x: nnf.max_pool2d(x, 2), x)[1]
    g = drawn(*shape[:2], shape[2] // 2, shape[3] // 2)
    graph = rewritten(lambda x, g: vjp(lambda x: nnf.max_pool2d(x, 2), x)[1](g), x, g)
    assert "max_pool" not in operations(graph)
    assert torch.equal(graph(x, g)[0], by_x(g)[0])
    both = partial(nnf.max_pool2d_with_indices, kernel_size=(2, 2))
    assert all(map(torch.equal, rewritten(both, x)(x), both(x)))


def test_a_pooling_of_what_is_not_a_number_is_none() -> None:
    x = torch.tensor([[1.0, torch.nan], [3.0, 2.0]])[None, None]
    assert rewritten(partial(nnf.max_pool2d, kernel_size=2), x)(x).isnan().all()


@pytest.mark.parametrize(
    ("side", "options"),
    [
        (6, {"kernel_size": 3}),
        (6, {"kernel_size": 2, "stride": 1}),
        (7, {"kernel_size": 2}),
        (7, {"kernel_size": 2, "ceil_mode": True}),
        (6, {"kernel_size": 2, "padding": 1}),
        (6, {"kernel_size": 2, "dilation": 2}),
    ],
)
def test_other_poolings_are_left_alone(side: int, options: dict[str, Any]) -> None:
    back = partial(grad(_pooled), **options)
    assert "max_pool2d_with_indices_backward" in operations(
        rewritten(back, drawn(2, 3, side, side))
    )


@pytest.mark.parametrize(
    "layer", [nn.GroupNorm(2, 6), nn.GroupNorm(3, 6, eps=0.5, affine=False), nn.GroupNorm(6, 6)]
)
def test_groups_are_normalized_as_torch_does_it(layer: nn.GroupNorm) -> None:
    layer = layer.double()
    params = {name: drawn(*value.shape) for name, value in layer.named_parameters()}
    x = 100 + drawn(
        3, 6, 4, 5
    )  # far from zero: the square of the mean is large beside the variance

    def both(params: Params, x: Tensor) -> Any:
        value, back = vjp(lambda *own: functional_call(layer, own[0], (own[1],)), params, x)[:2]
        return value, back(value.cos())

    graph = rewritten(both, params, x)
    assert "group_norm" not in operations(graph)
    torch.testing.assert_close(graph(params, x), both(params, x), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(
    "x", [torch.ones(3, 4), torch.ones(3, 4, 5), torch.ones(3, 4, 2, 2, dtype=torch.bfloat16)]
)
def test_other_normalizations_are_left_alone(x: Tensor) -> None:
    assert "aten.native_group_norm" in operations(
        rewritten(partial(nnf.group_norm, num_groups=2), x)
    )


def test_what_is_compiled_is_replaced_so() -> None:
    def function(x: Tensor) -> None:
        x.copy_(nnf.group_norm(x, 2) * nnf.max_pool2d(x, 2).sum())

    found = operations(_trace_for_inductor(function, (drawn(2, 4, 4, 4),)))
    assert "group_norm" not in found
    assert "max_pool" not in found


def gradient(loss: Function) -> Function:
    return grad(loss)


def curvature(loss: Function) -> Function:
    return grad(lambda params: sum(value.square().sum() for value in grad(loss)(params).values()))


def curvature_forwards(loss: Function) -> Function:
    return lambda params: jvp(grad(loss), (params,), (params,))[1]


@pytest.mark.parametrize("kind", [gradient, curvature, curvature_forwards])
def test_a_network_is_differentiated_as_torch_does_it(kind: Callable[[Function], Function]) -> None:
    layers = (nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.Tanh(), nn.MaxPool2d(2))
    more = (nn.Conv2d(4, 3, 2), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 4))
    model = nn.Sequential(*layers, *more).double()
    params = {name: drawn(*value.shape) for name, value in model.named_parameters()}
    x, y = drawn(6, 1, 10, 10), torch.arange(6) % 4

    def loss(params: Params) -> Tensor:
        return nnf.cross_entropy(functional_call(model, params, (x,)), y)

    found, expected = rewritten(kind(loss), params)(params), kind(loss)(params)
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-10, atol=1e-12)
