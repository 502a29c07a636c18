"""Convolutions that stay whole in a stack: torch's own, client by client, are the oracle, in every
derivative.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from fedtailor import models
from fedtailor.core.task import classification
from fedtailor.ops.conv2d import (
    ConvGeometry,
    StackedConv2d,
    conv2d,
    conv2d_grad_input,
    conv2d_grad_weight,
    has_kernels_for,
    has_wide_convolutions,
    with_plain_convolutions,
    with_stacked_convolutions,
)

Params = dict[str, Tensor]
Loss = Callable[[Params, Tensor, Tensor], Tensor]
CLIENTS = 3


def draws() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def network() -> nn.Sequential:
    """Convolutions of all kinds that stay whole: padded, strided, of one place, without bias."""
    layers = (
        nn.Conv2d(1, 4, 3, padding=1),
        nn.Tanh(),
        nn.Conv2d(4, 5, 3, stride=2, padding=1),
        nn.Tanh(),
    )
    more = (
        nn.Conv2d(5, 3, 3, padding="valid"),
        nn.Tanh(),
        nn.Conv2d(3, 4, 1, stride=2, bias=False),
    )
    return nn.Sequential(*layers, *more, nn.Flatten(), nn.Linear(36, 4)).double()


def stacked(model: nn.Module) -> Params:
    generator = draws()
    return {
        name: torch.stack(
            [
                value.detach() + 0.1 * torch.randn(value.shape, generator=generator)
                for _ in range(CLIENTS)
            ]
        )
        for name, value in model.named_parameters()
    }


def examples() -> tuple[Tensor, Tensor]:
    x = torch.randn(CLIENTS, 6, 1, 13, 13, generator=draws()).double()
    return x, torch.randint(0, 4, (CLIENTS, 6), generator=draws())


def loss_of(model: nn.Module) -> Loss:
    return lambda params, x, y: nn.functional.cross_entropy(functional_call(model, params, (x,)), y)


def gradient(loss: Loss) -> Any:
    return vmap(grad(loss))


def by_shared_weights(loss: Loss) -> Any:
    return lambda params, x, y: vmap(grad(loss), (None, 0, 0))(
        {name: value[0] for name, value in params.items()}, x, y
    )


def twice_stacked(loss: Loss) -> Any:
    each = vmap(vmap(grad(loss), (0, None, None)))
    return lambda params, x, y: each(
        {name: torch.stack([v, 0.9 * v], 1) for name, v in params.items()}, x, y
    )


def curvature(loss: Loss) -> Any:
    def squared(params: Params, x: Tensor, y: Tensor) -> Tensor:
        return sum(
            ((value**2).sum() for value in grad(loss)(params, x, y).values()), torch.zeros(())
        )

    return vmap(grad(squared))


def curvature_forwards(loss: Loss) -> Any:
    def along(params: Params, x: Tensor, y: Tensor) -> Any:
        return jvp(lambda own: grad(loss)(own, x, y), (params,), (params,))[1]

    return vmap(along)


@pytest.mark.parametrize(
    "kind", [gradient, by_shared_weights, twice_stacked, curvature, curvature_forwards]
)
@pytest.mark.parametrize("traced", [False, True])
def test_a_stack_is_differentiated_as_torch_does_it(
    kind: Callable[[Loss], Any], traced: bool
) -> None:
    plain = network()
    whole, given = with_stacked_convolutions(plain), (stacked(plain), *examples())
    found = kind(loss_of(whole))
    found = make_fx(found, tracing_mode="fake")(*given) if traced else found
    result, expected = found(*given), kind(loss_of(plain))(*given)
    for name in expected:
        torch.testing.assert_close(result[name], expected[name], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("stride", "pad", "side"), [(1, 0, 3), (2, 1, 3), (3, 0, 2), (2, 2, 5), (1, 0, 1)]
)
def test_gradients_are_those_of_differences(stride: int, pad: int, side: int) -> None:
    generator, window = draws(), ConvGeometry(stride, pad)
    size = ((7 + 2 * pad - side) // stride + 1, (6 + 2 * pad - side) // stride + 1)
    shapes = {"x": (2, 2, 7, 6, 3), "w": (2, 2, side, side, 3), "g": (2, 2, *size, 2)}
    drawn = {
        name: torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True)
        for name, shape in shapes.items()
    }
    ways = (
        (conv2d, ("x", "w"), size),
        (conv2d_grad_input, ("g", "w"), (7, 6)),
        (conv2d_grad_weight, ("x", "g"), (side, side)),
    )
    for function, pair, of in ways:
        whole = partial(_with, function, of, window)
        given = tuple(drawn[name] for name in pair)
        assert torch.autograd.gradcheck(whole, given, check_forward_ad=True)
        assert torch.autograd.gradgradcheck(whole, given)


def _with(function: Any, size: Any, window: ConvGeometry, first: Tensor, second: Tensor) -> Tensor:
    found: Tensor = function(first, second, size, window)
    return found


def test_only_plain_square_convolutions_are_taken() -> None:
    others = [
        nn.Conv2d(2, 2, 3, groups=2),
        nn.Conv2d(2, 2, 3, dilation=2),
        nn.Conv2d(2, 2, (3, 1)),
        nn.Conv2d(2, 2, 3, stride=(1, 2)),
        nn.Conv2d(2, 2, 3, padding="same"),
        nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect"),
        nn.Conv2d(2, 2, 1, padding=1),
        type("Own", (nn.Conv2d,), {})(2, 2, 3),
    ]
    kept = with_stacked_convolutions(nn.Sequential(*others, nn.Conv2d(2, 2, 3)))
    assert [type(layer) is StackedConv2d for layer in kept.children()] == [False] * len(others) + [
        True
    ]
    assert not any(
        type(layer) is StackedConv2d for layer in with_plain_convolutions(kept).children()
    )


def test_a_task_trains_alike_and_gives_torchs_own_layers_away() -> None:
    task = classification(network())
    whole = task.with_stacked_ops()
    x = examples()[0][0]
    torch.testing.assert_close(
        whole.compute_outputs(whole.params, x),
        task.compute_outputs(task.params, x),
        rtol=1e-10,
        atol=1e-12,
    )
    assert not any(isinstance(layer, StackedConv2d) for layer in task.train_module.modules())
    assert any(isinstance(layer, StackedConv2d) for layer in whole.train_module.modules())
    assert not any(
        isinstance(layer, StackedConv2d) for layer in whole.to_module(whole.params).modules()
    )


def test_large_convolutions_are_told_from_small_ones() -> None:
    assert has_wide_convolutions(models.fedsim_femnist((1, 28, 28), 62))
    assert not has_wide_convolutions(models.lenet((3, 32, 32), 10))
    assert not has_wide_convolutions(nn.Conv2d(64, 64, 3, groups=64))
    assert not has_wide_convolutions(nn.Linear(64, 64))


def test_there_are_no_kernels_for_a_processor() -> None:
    assert not has_kernels_for(torch.device("cpu"))
