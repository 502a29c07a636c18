"""Group norm in plain operations: torch's own is the oracle, in every derivative."""

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

from fedtailor.compiler.group_norm import DecomposeGroupNorm
from fedtailor.compiler.inductor import _trace_for_inductor

Params = dict[str, Tensor]
Function = Callable[..., Any]


def rewritten(function: Function, *given: Any) -> GraphModule:
    with DecomposeGroupNorm():
        found: GraphModule = make_fx(function, tracing_mode="fake", _allow_non_fake_inputs=True)(*given)
    return found


def operations(graph: GraphModule) -> str:
    return " ".join(str(node.target) for node in graph.graph.nodes)


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


@pytest.mark.parametrize("layer", [nn.GroupNorm(2, 6), nn.GroupNorm(3, 6, eps=0.5, affine=False), nn.GroupNorm(6, 6)])
def test_groups_are_normalized_as_torch_does_it(layer: nn.GroupNorm) -> None:
    layer = layer.double()
    params = {name: drawn(*value.shape) for name, value in layer.named_parameters()}
    x = 100 + drawn(3, 6, 4, 5)  # far from zero: the square of the mean is large beside the variance

    def both(params: Params, x: Tensor) -> Any:
        value, back = vjp(lambda *own: functional_call(layer, own[0], (own[1],)), params, x)[:2]
        return value, back(value.cos())

    graph = rewritten(both, params, x)
    assert "group_norm" not in operations(graph)
    torch.testing.assert_close(graph(params, x), both(params, x), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("x", [torch.ones(3, 4), torch.ones(3, 4, 5), torch.ones(3, 4, 2, 2, dtype=torch.bfloat16)])
def test_other_normalizations_are_left_alone(x: Tensor) -> None:
    assert "aten.native_group_norm" in operations(rewritten(partial(nnf.group_norm, num_groups=2), x))


def test_what_is_compiled_is_normalized_so() -> None:
    def function(x: Tensor) -> None:
        x.copy_(nnf.group_norm(x, 2))

    assert "group_norm" not in operations(_trace_for_inductor(function, (drawn(2, 4, 3, 3),)))


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
