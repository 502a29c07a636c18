"""Operations on images in terms of others that Inductor compiles into faster code for a CPU.

Group norm is replaced before it is differentiated. The derivative that torch has for it converts
images to channels-first; means over pixels and then over the channels of a group need no
conversion, and neither do their derivatives.

Convolutions of images with one channel become one matrix product with the image's patches (im2col):
oneDNN has little to do at a time with a single input channel, and returns channels-first images
where all others are channels-last.

Max pooling over 2x2 windows becomes a comparison of four strided views. Torch's backward pass
scatters into computed positions, which Inductor cannot fuse; here each pixel checks whether it was
the maximum of its window, in the same loop as what follows.

Images are [batch, channels, height, width]. A replacement returns NotImplemented where it does not
apply, and the operation is then left alone.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as nnf
from torch.overrides import TorchFunctionMode

_ATEN = torch.ops.aten


class DecomposeGroupNorm(TorchFunctionMode):
    """Mode that replaces `group_norm` of images on a CPU before torch differentiates it whole."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call `func`, or `group_norm` in its place where that applies."""
        named = kwargs or {}
        if func is nnf.group_norm:
            result = group_norm(*args, **named)
            if result is not NotImplemented:
                return result
        return func(*args, **named)


def group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Any:
    """Compute `torch.nn.functional.group_norm` for images in float32 or float64 on a CPU.

    Args:
        input: Images.
        num_groups: Number of groups of channels.
        weight: Scale of each channel.
        bias: Shift of each channel.
        eps: Added to the variance.
    """
    if input.device.type != "cpu" or input.ndim != 4:
        return NotImplemented
    if input.dtype not in (torch.float32, torch.float64):
        return NotImplemented
    centered = input - _compute_group_means(input, num_groups)
    scale = torch.rsqrt(_compute_group_means(centered * centered, num_groups) + eps)
    if weight is not None:
        scale = scale * weight[:, None, None]
    result = centered * scale
    if bias is not None:
        result = result + bias[:, None, None]
    return result


def _compute_group_means(x: Tensor, num_groups: int) -> Tensor:
    """Return the mean of the group that each channel belongs to, [batch, channels, 1, 1]."""
    batch, channels = x.shape[:2]
    means = x.mean((2, 3)).view(batch, num_groups, -1).mean(2, keepdim=True)
    return means.expand(batch, num_groups, channels // num_groups).reshape(batch, channels, 1, 1)


def convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    *variant: Any,
) -> Any:
    """Compute `aten.convolution` for images with one channel.

    Args:
        x: Images.
        weight: Weights, [outputs, inputs, kernel height, kernel width].
        bias: Biases, [outputs].
        stride: Strides, vertical and horizontal.
        padding: Padding, vertical and horizontal.
        variant: Dilation, whether the convolution is transposed, output padding and groups.
    """
    if not _is_single_channel(x, *variant):
        return NotImplemented
    patches, height, width = _extract_patches(x, weight, stride, padding)
    result = patches.t() @ weight.flatten(1).t()
    if bias is not None:
        result = result + bias
    return result.view(len(x), height, width, len(weight)).permute(0, 3, 1, 2)


def convolution_backward(
    grad_output: Tensor,
    x: Tensor,
    weight: Tensor,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    *variant_and_mask: Any,
) -> Any:
    """Compute `aten.convolution_backward` for images with one channel that need no gradient.

    Args:
        grad_output: Gradient w.r.t. the result of the convolution.
        x: Images.
        weight: Weights, [outputs, inputs, kernel height, kernel width].
        bias_sizes: Shape of the biases, which is not needed.
        stride: Strides, vertical and horizontal.
        padding: Padding, vertical and horizontal.
        variant_and_mask: `variant` of `convolution`, and which of the gradients w.r.t. images,
            weights and biases are needed.
    """
    *variant, output_mask = variant_and_mask
    needs_images, needs_weight, needs_bias = output_mask
    if needs_images or not _is_single_channel(x, *variant):
        return NotImplemented
    grad_weight = None
    if needs_weight:
        patches, _, _ = _extract_patches(x, weight, stride, padding)
        grad_rows = grad_output.permute(0, 2, 3, 1).reshape(-1, len(weight))
        grad_weight = (patches @ grad_rows).t().reshape(weight.shape)
    grad_bias = grad_output.sum((0, 2, 3)) if needs_bias else None
    return None, grad_weight, grad_bias


def _is_single_channel(
    x: Tensor, dilation: Sequence[int], transposed: bool, output_padding: Sequence[int], groups: int
) -> bool:
    """Return whether this is a plain convolution of images with one channel, on a CPU."""
    is_plain = not transposed and groups == 1 and set(dilation) == {1}
    return is_plain and x.device.type == "cpu" and x.ndim == 4 and x.shape[1] == 1


def _extract_patches(
    x: Tensor, weight: Tensor, stride: Sequence[int], padding: Sequence[int]
) -> tuple[Tensor, int, int]:
    """Return the patches of images and the height and width of the convolution's output.

    Patches are [kernel height * kernel width, batch * height * width].
    """
    padded = _ATEN.constant_pad_nd.default(
        x[:, 0], [padding[1], padding[1], padding[0], padding[0]]
    )
    windows = padded.unfold(1, weight.shape[2], stride[0]).unfold(2, weight.shape[3], stride[1])
    patches = windows.permute(3, 4, 0, 1, 2).flatten(0, 1).flatten(1)
    return patches, windows.shape[1], windows.shape[2]


def max_pool(x: Tensor, window: Sequence[int], *variant: Any) -> Any:
    """Compute `aten.max_pool2d_with_indices` where 2x2 windows tile the images.

    `variant` is stride, padding, dilation and ceil mode.
    """
    if not _has_tiling_windows(x, window, *variant):
        return NotImplemented
    top_left = x[:, :, ::2, ::2]
    top_right = x[:, :, ::2, 1::2]
    bottom_left = x[:, :, 1::2, ::2]
    bottom_right = x[:, :, 1::2, 1::2]
    maximum = torch.maximum(
        torch.maximum(top_left, top_right), torch.maximum(bottom_left, bottom_right)
    )
    corner = _number_pixels(x)[::2, ::2]
    width = x.shape[3]
    index = torch.where(bottom_left == maximum, corner + width, corner + (width + 1))
    index = torch.where(top_right == maximum, corner + 1, index)
    index = torch.where(top_left == maximum, corner, index)
    return maximum, index.long()


def max_pool_backward(
    grad_output: Tensor, x: Tensor, window: Sequence[int], *variant_and_indices: Any
) -> Any:
    """Compute `aten.max_pool2d_with_indices_backward` where 2x2 windows tile the images.

    Args:
        grad_output: Gradient w.r.t. the maxima.
        x: Images, of which only the shape matters.
        window: Height and width of a window.
        variant_and_indices: `variant` of `max_pool`, and the indices that it returned.
    """
    *variant, indices = variant_and_indices
    if not _has_tiling_windows(x, window, *variant):
        return NotImplemented
    is_maximum = _upsample(indices.int()) == _number_pixels(x)
    return torch.where(is_maximum, _upsample(_materialize_channels_last(grad_output)), 0.0)


def _has_tiling_windows(
    x: Tensor,
    window: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> bool:
    """Return whether 2x2 windows without overlap or rest cover images on a CPU."""
    is_tiling = {2} == {*window, *stride} and not any(padding) and set(dilation) == {1}
    is_even = x.ndim == 4 and x.shape[2] % 2 == 0 and x.shape[3] % 2 == 0
    return is_tiling and is_even and x.device.type == "cpu"


def _number_pixels(x: Tensor) -> Tensor:
    """Return the index of every pixel of an image, [height, width], int32."""
    height, width = x.shape[2:]
    return torch.arange(height * width, dtype=torch.int32, device=x.device).view(height, width)


def _upsample(x: Tensor) -> Tensor:
    """Repeat every pixel twice in both directions."""
    batch, channels, height, width = x.shape
    blocks = x[:, :, :, None, :, None].expand(batch, channels, height, 2, width, 2)
    return blocks.reshape(batch, channels, 2 * height, 2 * width)


def _materialize_channels_last(x: Tensor) -> Tensor:
    """Copy images to channels-last behind a view.

    Without the view, Inductor would convert them anew for each reader.
    """
    rows = x.permute(0, 2, 3, 1).clone(memory_format=torch.contiguous_format)
    return rows.as_strided(rows.shape, rows.stride()).permute(0, 3, 1, 2)


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    _ATEN.convolution.default: convolution,
    _ATEN.convolution_backward.default: convolution_backward,
    _ATEN.max_pool2d_with_indices.default: max_pool,
    _ATEN.max_pool2d_with_indices_backward.default: max_pool_backward,
}
"""Replacements of operations in graphs for Inductor; group norm is replaced before tracing."""
