"""Kernels on a GPU: torch's own convolutions in double precision, and bits drawn on the CPU, are
the oracles.
"""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import grad, jvp, vmap

from fedtailor import prng
from fedtailor.compiler.inductor import bind_compiled
from fedtailor.core import trees
from fedtailor.ops.conv2d import ConvGeometry, conv2d, has_kernels_for
from fedtailor.prng import threefry

HERE = torch.cuda.is_available() and has_kernels_for(torch.device("cuda"))
SHAPES = [  # clients, batch, height, width, inputs, outputs, side, stride, pad
    (2, 3, 28, 28, 1, 32, 3, 1, 0),
    (3, 20, 26, 26, 32, 64, 3, 1, 0),
    (2, 4, 9, 8, 16, 20, 3, 2, 1),
    (2, 2, 12, 12, 3, 24, 5, 2, 2),
    (1, 2, 7, 7, 48, 16, 1, 2, 0),
    (2, 5, 14, 14, 6, 16, 5, 1, 0),
]


def calculating(precision: str, request: pytest.FixtureRequest) -> torch.dtype:
    """What a test calculates in, with factors rounded to tf32 for as long as it runs or not."""
    request.addfinalizer(partial(setattr, torch.backends.cuda.matmul, "allow_tf32", False))
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    return torch.bfloat16 if precision == "bf16" else torch.float32


@pytest.mark.gpu
@pytest.mark.skipif(not HERE, reason="needs a GPU with matrix units and Triton")
@pytest.mark.parametrize(("precision", "most"), [("bf16", 1e-2), ("tf32", 1e-3), ("float32", 1e-5)])
@pytest.mark.parametrize("shape", SHAPES)
def test_kernels_do_what_double_precision_does(
    shape: tuple[int, ...], precision: str, most: float, request: pytest.FixtureRequest
) -> None:
    from fedtailor.ops import conv2d_triton

    dtype = calculating(precision, request)
    clients, batch, height, width, inputs, outputs, side, stride, pad = shape
    window = ConvGeometry(stride, pad)
    size = ((height + 2 * pad - side) // stride + 1, (width + 2 * pad - side) // stride + 1)
    generator = torch.Generator("cuda").manual_seed(0)
    x, w, g = (
        torch.randn(each, generator=generator, device="cuda").to(dtype)
        for each in (
            (clients, batch, height, width, inputs),
            (clients, outputs, side, side, inputs),
            (clients, batch, *size, outputs),
        )
    )
    exact = [each.double().cpu().requires_grad_() for each in (x, w)]
    result = conv2d(exact[0], exact[1], size, window)
    by_x, by_w = torch.autograd.grad(result, exact, g.double().cpu())
    back, side_by_side = (
        conv2d_triton.triton_conv2d_grad_input(g, w, (height, width), window),
        (side, side),
    )
    found = (
        conv2d_triton.triton_conv2d(x, w, size, window),
        back,
        conv2d_triton.triton_conv2d_grad_weight(x, g, side_by_side, window),
    )
    for own, expected in zip(found, (result, by_x, by_w), strict=True):
        assert own.dtype == dtype
        gap = (own.double().cpu() - expected).norm() / expected.norm()
        assert gap < most


@pytest.mark.gpu
@pytest.mark.skipif(not HERE, reason="needs a GPU with matrix units and Triton")
@pytest.mark.parametrize(
    "shapes", [((), ()), ((5,), ()), ((7, 1), (33,)), ((), (1000,)), ((3, 1), (3, 300)), ((0,), ())]
)
def test_bits_are_those_of_the_cpu(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    generator = torch.Generator().manual_seed(0)
    keys, counters = (
        torch.randint(-(2**63), 2**63 - 1, shape, generator=generator) for shape in shapes
    )
    for folding in (0, threefry._FOLD_DOMAIN):
        expected = threefry.threefry_op(keys, counters, folding)
        assert torch.equal(
            threefry.threefry_op(keys.cuda(), counters.cuda(), folding).cpu(), expected
        )
    assert torch.equal(prng.fold(keys.cuda(), counters.cuda()).cpu(), prng.fold(keys, counters))


@pytest.mark.gpu
@pytest.mark.skipif(not HERE, reason="needs a GPU with matrix units and Triton")
@pytest.mark.parametrize("clients", [2, 10])
def test_compiled_hessian_products_are_those_of_double_precision(
    clients: int, request: pytest.FixtureRequest
) -> None:
    """A derivative along a direction of a network with what is merged, split and shared out in
    compiled lists.
    """
    calculating("tf32", request)
    generator = torch.Generator().manual_seed(0)
    shapes = {"a": (32, 1, 3, 3), "b": (64, 32, 3, 3), "c": (16, 64 * 8 * 8)}
    params, along = (
        {
            name: 0.1 * torch.randn(clients, *shape, generator=generator)
            for name, shape in shapes.items()
        }
        for _ in range(2)
    )
    images = torch.randn(clients, 5, 1, 12, 12, generator=generator)

    def loss(own: dict[str, Tensor], x: Tensor) -> Tensor:
        first = conv2d(
            x.permute(0, 2, 3, 1)[None],
            own["a"].permute(0, 2, 3, 1)[None],
            (10, 10),
            ConvGeometry(),
        ).tanh()
        second = conv2d(first, own["b"].permute(0, 2, 3, 1)[None], (8, 8), ConvGeometry())[0].tanh()
        return (second.flatten(1) @ own["c"].mT).square().mean()

    def product(
        own: dict[str, Tensor], direction: dict[str, Tensor], x: Tensor
    ) -> dict[str, Tensor]:
        found: dict[str, Tensor] = jvp(lambda point: grad(loss)(point, x), (own,), (direction,))[1]
        return found

    def write(*given: Any) -> None:
        for name, value in vmap(product)(*given[:3]).items():
            given[3][name].copy_(value)

    exact = vmap(product)(*trees.apply(torch.Tensor.double, (params, along, images)))
    given = trees.apply(torch.Tensor.cuda, (params, along, images, trees.zeros_like(params)))
    bind_compiled(write, given)()
    for name, value in given[3].items():
        assert (value.double().cpu() - exact[name]).norm() < 5e-3 * exact[name].norm()
