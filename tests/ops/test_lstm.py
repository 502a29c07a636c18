"""One client's recurrent layer is torch's own; a stack's is written out, and both do what the
formula says.
"""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap

from fedtailor import models
from fedtailor.core import autodiff
from fedtailor.core.task import Task, sequences
from fedtailor.core.types import Batch, Params
from fedtailor.ops.lstm import lstm_layer

STACKED = (1, 0, 0, 0)


def drawn(clients: int, places: int, rows: int, hidden: int, width: int) -> tuple[Tensor, ...]:
    """Draw inputs [T, C, B, width], their weights, biases and recurrent weights."""
    draws = torch.Generator().manual_seed(hidden)
    of_weights = [
        (clients, 4 * hidden, width),
        (clients, 4 * hidden),
        (clients, 4 * hidden, hidden),
    ]
    shapes = (places, clients, rows, width), *of_weights
    inputs, into, bias, weight = (
        torch.randn(shape, generator=draws, dtype=torch.float64) for shape in shapes
    )
    return inputs, 2 * into / width**0.5, bias, weight / hidden**0.5


def gradient(*given: Tensor) -> tuple[Tensor, ...]:
    return grad(lambda *each: (lstm_layer(*each) ** 2).sum(), argnums=(0, 1, 2, 3))(*given)  # type: ignore[no-any-return]


def test_a_stack_is_each_of_its_clients() -> None:
    given = drawn(4, 5, 3, 12, 7)
    stacked = vmap(gradient, in_dims=STACKED)(*given)
    for client in range(4):
        alone = gradient(
            *(each.select(dim, client) for each, dim in zip(given, STACKED, strict=True))
        )
        for both, one in zip(stacked, alone, strict=True):
            torch.testing.assert_close(both[client], one, rtol=1e-12, atol=1e-12)


def test_torch_finds_the_same_for_one_client() -> None:
    given = [each.select(dim, 0) for each, dim in zip(drawn(1, 6, 3, 8, 5), STACKED, strict=True)]
    leaves = [each.clone().requires_grad_() for each in given]
    states = lstm_layer(*leaves)
    found = torch.autograd.grad((states**2).sum(), leaves)
    torch.testing.assert_close(
        vmap(lstm_layer)(*(each[None] for each in given))[0], states.detach()
    )
    for one, other in zip(found, gradient(*given), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def task(dtype: torch.dtype) -> Task:
    torch.manual_seed(0)
    return sequences(models.language_model(20, 4, 8, layers=2)).to(dtype=dtype)


def batch(dtype: torch.dtype) -> Batch:
    draws = torch.Generator().manual_seed(1)
    x, y = (torch.randint(1, 20, (3, 6), generator=draws) for _ in range(2))
    return Batch(x, y, torch.ones(3, dtype=dtype), torch.zeros((), dtype=torch.int64))


@pytest.mark.parametrize(("dtype", "gap"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
def test_second_derivatives_by_autograd_are_those_of_the_formula(
    dtype: torch.dtype, gap: float
) -> None:
    own, given = task(dtype), batch(dtype)
    draws = torch.Generator().manual_seed(2)
    along: Params = {
        k: torch.randn(v.shape, generator=draws, dtype=dtype) for k, v in own.params.items()
    }
    wanted = autodiff.hvp(own.loss, own.params, given, along)
    slopes = autodiff.gradient(own.loss, own.params, given)
    before: Any = torch.backends.mkldnn.enabled
    with autodiff.use_autograd():
        torch.testing.assert_close(
            autodiff.hvp(own.loss, own.params, given, along), wanted, rtol=gap, atol=gap
        )
        torch.testing.assert_close(
            autodiff.gradient(own.loss, own.params, given), slopes, rtol=gap, atol=gap
        )
    assert torch.backends.mkldnn.enabled == before
