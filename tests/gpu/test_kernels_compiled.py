"""Kernels compiled for cards that are not there: whether they fit, for the shapes of common
networks.
"""

from collections.abc import Callable

import pytest
import torch
from cards import CARDS, Card, pretended
from code_under_test import INTERPRETED, conv2d_triton, threefry_triton
from torch import Tensor

pytest_plugins = ["gpu_fixtures"]
if INTERPRETED:
    pytest.skip("needs TRITON_INTERPRET=0", allow_module_level=True)

BF16, FLOAT32 = torch.bfloat16, torch.float32
MOST_SPILLED = 64
"""Bytes of slow memory that a thread may use: a few numbers that did not fit into its registers."""


def meta(dtype: torch.dtype, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def first_layer(dtype: torch.dtype) -> None:
    """The first convolution of FEMNIST's CNN."""
    x, w = meta(dtype, 10, 20, 28, 28, 1), meta(dtype, 10, 32, 3, 3, 1)
    conv2d_triton.triton_conv2d(x, w, (26, 26), (1, 0))


def second_layer(dtype: torch.dtype) -> None:
    """The second one, with tiles 128 tall."""
    x, w = meta(dtype, 100, 20, 26, 26, 32), meta(dtype, 100, 64, 3, 3, 32)
    conv2d_triton.triton_conv2d(x, w, (24, 24), (1, 0))


def few_outputs(dtype: torch.dtype) -> None:
    """LeNet's second convolution."""
    x, w = meta(dtype, 10, 20, 14, 14, 6), meta(dtype, 10, 16, 5, 5, 6)
    conv2d_triton.triton_conv2d(x, w, (10, 10), (1, 0))


def many_outputs(dtype: torch.dtype) -> None:
    """A convolution of ResNet-18, with two tiles 128 wide."""
    x, w = meta(dtype, 100, 20, 8, 8, 128), meta(dtype, 100, 256, 3, 3, 128)
    conv2d_triton.triton_conv2d(x, w, (4, 4), (2, 1))


def way_back_with_a_stride(dtype: torch.dtype) -> None:
    """The gradient by images of a convolution of ResNet-18 that makes them smaller."""
    g, w = meta(dtype, 10, 20, 8, 8, 128), meta(dtype, 10, 128, 3, 3, 128)
    conv2d_triton.triton_conv2d_grad_input(g, w, (16, 16), (2, 1))


def way_back_with_few_inputs(dtype: torch.dtype) -> None:
    """The same where channels double, and products are summed where they fall."""
    g, w = meta(dtype, 10, 20, 4, 4, 512), meta(dtype, 10, 512, 3, 3, 256)
    conv2d_triton.triton_conv2d_grad_input(g, w, (8, 8), (2, 1))


def by_few_weights(dtype: torch.dtype) -> None:
    """The gradient by weights of FEMNIST's first convolution."""
    x, g = meta(dtype, 10, 20, 28, 28, 1), meta(dtype, 10, 20, 26, 26, 32)
    conv2d_triton.triton_conv2d_grad_weight(x, g, (3, 3), (1, 0))


def by_many_weights(dtype: torch.dtype) -> None:
    """That of a convolution of ResNet-18."""
    x, g = meta(dtype, 10, 20, 16, 16, 64), meta(dtype, 10, 20, 16, 16, 64)
    conv2d_triton.triton_conv2d_grad_weight(x, g, (3, 3), (1, 1))


def bits(dtype: torch.dtype) -> None:
    """Random bits for many clients."""
    threefry_triton.triton_threefry(meta(torch.int64, 10, 1), meta(torch.int64, 1, 5000), 0)


CASES = [
    (first_layer, FLOAT32),
    (second_layer, FLOAT32),
    (second_layer, BF16),
    (few_outputs, BF16),
    (many_outputs, FLOAT32),
    (many_outputs, BF16),
    (way_back_with_a_stride, FLOAT32),
    (way_back_with_few_inputs, BF16),
    (by_few_weights, FLOAT32),
    (by_many_weights, FLOAT32),
    (by_many_weights, BF16),
    (bits, FLOAT32),
]
NAMES = [f"{launch.__name__}-{dtype}".replace("torch.", "") for launch, dtype in CASES]


@pytest.mark.parametrize("card", CARDS, ids=lambda card: f"sm_{card.architecture}")
@pytest.mark.parametrize(("launch", "dtype"), CASES, ids=NAMES)
@pytest.mark.usefixtures("tf32", "on_gpu")
def test_kernels_fit_the_card(
    launch: Callable[[torch.dtype], None], dtype: torch.dtype, card: Card
) -> None:
    with pretended(card) as compiled:
        launch(dtype)
    assert compiled
    for kernel in compiled:
        assert kernel.registers <= 255
        assert kernel.spilled <= MOST_SPILLED


def test_a_kernel_that_does_not_fit_is_refused() -> None:
    with (
        pretended(Card(75, 4096)) as compiled,
        pytest.raises(Exception, match="out of resource: shared memory"),
    ):
        second_layer(FLOAT32)
    assert not compiled
