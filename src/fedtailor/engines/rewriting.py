"""Operations as others of the same outcome that compiled code does faster.

On CPUs these are operations on images; on GPUs, products that sum over much, and gradients of convolutions by weights,
see `products` and `kernels`. On a CPU, convolutions of images with one channel leave oneDNN little to do at a time, and
come out with the channels first, where all others have them last. As a product of the weights and what each tap of the
window meets they are three to ten times as fast; with three channels they would be no faster. The way back through a
pooling is a sum into scattered places for torch's compiler. With pairs down and across it is a question to each place,
whether it is the largest of its window, and that is part of the loop that goes on from there. The derivative of
normalising groups of channels lays images out anew, channels first. Means over places for each channel, and then over a
group's channels, need not, and neither do their derivatives; so this function is exchanged before it is differentiated.
"""

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as nnf
from torch.overrides import TorchFunctionMode

from fedtailor.products import is_long, multiply
from fedtailor.sharing import is_split

_ATEN = torch.ops.aten
_FEW = 16


def convolution(
    x: Tensor, w: Tensor, bias: Tensor | None, stride: Sequence[int], padding: Sequence[int], *kind: Any
) -> Any:
    """`aten.convolution`, or NotImplemented for a kind that is best left alone."""
    if not _has_one_channel(x, *kind):
        return NotImplemented
    met, size = _met(x, w, stride, padding)
    found = met.t() @ w.flatten(1).t()
    found = found if bias is None else found + bias
    return found.view(len(x), *size, len(w)).permute(0, 3, 1, 2)


def convolution_backward(
    g: Tensor,
    x: Tensor,
    w: Tensor,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    *kind: Any,
) -> Any:
    """`aten.convolution_backward`, or NotImplemented if that by the images is wanted or for another kind."""
    *kind_alone, (by_images, by_weights, by_bias) = kind
    if by_images or not _has_one_channel(x, *kind_alone):
        return NotImplemented
    met, _ = _met(x, w, stride, padding)
    found = (met @ g.permute(0, 2, 3, 1).reshape(-1, len(w))).t().reshape(w.shape) if by_weights else None
    return None, found, g.sum((0, 2, 3)) if by_bias else None


def max_pool(x: Tensor, window: Sequence[int], *kind: Any) -> Any:
    """`aten.max_pool2d_with_indices` of pairs down and across, or NotImplemented for other windows."""
    if not _has_pairs(x, window, *kind):
        return NotImplemented
    four = [x[:, :, down::2, right::2] for down in range(2) for right in range(2)]
    most = torch.maximum(torch.maximum(four[0], four[1]), torch.maximum(four[2], four[3]))
    corners, width = _places(x)[::2, ::2], x.shape[3]
    below = torch.where(four[2] == most, corners + width, corners + (width + 1))
    first = torch.where(four[0] == most, corners, torch.where(four[1] == most, corners + 1, below))
    return most, first.long()


def max_pool_backward(g: Tensor, x: Tensor, window: Sequence[int], *kind: Any) -> Any:
    """`aten.max_pool2d_with_indices_backward`, which may be given anything of the shape of the images for them."""
    *kind_alone, indices = kind
    if not _has_pairs(x, window, *kind_alone):
        return NotImplemented
    return torch.where(_spread(indices.int()) == _places(x), _spread(_channels_last(g)), 0.0)


def product(x: Tensor, w: Tensor) -> Any:
    """`aten.bmm`, or NotImplemented for what is best left to the GPU's library."""
    if x.dtype != w.dtype or not is_long(x, w.mT):
        return NotImplemented
    return _total(multiply(x, w.mT)).to(x.dtype)


def correlate(x: Tensor, g: Tensor, size: list[int], window: list[int]) -> Any:
    """`fedtailor.correlate` of float32, split where it is made, or NotImplemented if it is not to be split."""
    if not is_split(x, size):
        return NotImplemented
    return _total(torch.ops.fedtailor.correlate_halves(*_halves(x), *_halves(g), size, window))


TABLE: dict[Any, Callable[..., Any]] = {
    _ATEN.bmm.default: product,
    torch.ops.fedtailor.correlate.default: correlate,
    _ATEN.convolution.default: convolution,
    _ATEN.convolution_backward.default: convolution_backward,
    _ATEN.max_pool2d_with_indices.default: max_pool,
    _ATEN.max_pool2d_with_indices_backward.default: max_pool_backward,
}


class InPlainOperations(TorchFunctionMode):
    """Has functions that torch would differentiate as a whole come down to operations first."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Does what a function does."""
        if func is nnf.group_norm:
            found = group_norm(*args, **(kwargs or {}))
            if found is not NotImplemented:
                return found
        return func(*args, **(kwargs or {}))


def group_norm(
    input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Any:
    """`torch.nn.functional.group_norm` of images on a CPU, or NotImplemented for other tensors and for short floats."""
    if input.device.type != "cpu" or input.ndim != 4 or input.dtype not in (torch.float32, torch.float64):
        return NotImplemented
    away = input - _group_means(input, num_groups)
    scale = torch.rsqrt(_group_means(away * away, num_groups) + eps)
    found = away * (scale if weight is None else scale * weight[:, None, None])
    return found if bias is None else found + bias[:, None, None]


def _group_means(x: Tensor, groups: int) -> Tensor:
    """The mean of each image's groups of channels, for each channel [batch, channels, 1, 1]."""
    batch, channels = x.shape[:2]
    means = x.mean((2, 3)).view(batch, groups, -1).mean(2, keepdim=True)
    return means.expand(batch, groups, channels // groups).reshape(batch, channels, 1, 1)


def _total(shares: Tensor) -> Tensor:
    """The sum of some shares, which come second; of few, term by term, which joins whatever goes on from there.

    As one operation torch's compiler may choose to have it done by programs that each sum up for one place.
    """
    return reduce(torch.add, shares.unbind(1)) if shares.shape[1] <= _FEW else shares.sum(1)


def _halves(x: Tensor) -> tuple[Tensor, Tensor]:
    """Float32 as two bf16: its first bits, cut off by hand since compiled code would not round, and the rest."""
    high = (x.view(torch.int32) & -(1 << 16)).view(torch.float32)
    return high.to(torch.bfloat16), (x - high).to(torch.bfloat16)


def _has_one_channel(
    x: Tensor, dilation: Sequence[int], transposed: bool, output_padding: Sequence[int], groups: int
) -> bool:
    """Whether a plain convolution is one of images with one channel, on a CPU."""
    plain = not transposed and groups == 1 and set(dilation) == {1}
    return plain and x.device.type == "cpu" and x.ndim == 4 and x.shape[1] == 1


def _met(x: Tensor, w: Tensor, stride: Sequence[int], padding: Sequence[int]) -> tuple[Tensor, Sequence[int]]:
    """What the taps of windows [height * width] meet at all places [batch * height * width], and an image's places."""
    down, right = padding
    seen = _ATEN.constant_pad_nd.default(x[:, 0], [right, right, down, down])
    met = seen.unfold(1, w.shape[2], stride[0]).unfold(2, w.shape[3], stride[1])
    return met.permute(3, 4, 0, 1, 2).flatten(0, 1).flatten(1), met.shape[1:3]


def _has_pairs(
    x: Tensor,
    window: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> bool:
    """Whether windows part images into pairs down and across, on a CPU."""
    apart = {2} == {*window, *stride} and not any(padding) and set(dilation) == {1}
    return apart and x.device.type == "cpu" and x.ndim == 4 and not (x.shape[2] % 2 or x.shape[3] % 2)


def _places(x: Tensor) -> Tensor:
    """The number of every place in an image."""
    height, width = x.shape[2:]
    return torch.arange(height * width, dtype=torch.int32, device=x.device).view(height, width)


def _spread(x: Tensor) -> Tensor:
    """Every place as two down and two across."""
    batch, channels, height, width = x.shape
    pairs = x[:, :, :, None, :, None].expand(batch, channels, height, 2, width, 2)
    return pairs.reshape(batch, channels, 2 * height, 2 * width)


def _channels_last(x: Tensor) -> Tensor:
    """The same with its channels next to each other, behind a view: else each of its readers would turn it anew."""
    turned = x.permute(0, 2, 3, 1).clone(memory_format=torch.contiguous_format)
    return turned.as_strided(turned.shape, turned.stride()).permute(0, 3, 1, 2)
