"""2-d convolutions that stay one operation when `vmap` gives every client its own weights.

torch turns such a stack into a grouped convolution, which GPU libraries compute group by group.
Here it is one matrix product for all clients (see `conv2d_triton`), with derivatives of any order.

The convolution of images x with weights w, times a gradient g w.r.t. its result, is a number that
is linear in x, w and g. So there are three operations, the derivatives of that number: `conv2d`
(w.r.t. g), `conv2d_grad_input` (w.r.t. x) and `conv2d_grad_weight` (w.r.t. w). The derivatives of
each are the other two.
"""

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as nnf

from fedtailor.ops.modules import copy_module

Size = tuple[int, int]
"""Height and width."""

_MIN_WIDE_CHANNELS = 16
"""Number of float32 in a vector of a CPU with AVX-512."""

_MIN_CAPABILITY = (8, 0)
"""First compute capability of CUDA with matrix units for bf16 and tf32."""


class ConvGeometry(NamedTuple):
    """Stride and padding of a convolution, the same for height and width."""

    stride: int = 1
    pad: int = 0


def with_stacked_convolutions(model: nn.Module) -> nn.Module:
    """Return a copy of a model whose convolutions stay whole in a stack of clients.

    It shares its tensors with `model`. Convolutions that `StackedConv2d` does not cover stay
    torch's own.
    """
    copied = copy_module(model)
    for module in copied.modules():
        if type(module) is nn.Conv2d and _is_stackable(module):
            module.__class__ = StackedConv2d
    return copied


def with_plain_convolutions(model: nn.Module) -> nn.Module:
    """Return a copy, with shared tensors, whose convolutions are all torch's own again."""
    copied = copy_module(model)
    for module in copied.modules():
        if type(module) is StackedConv2d:
            module.__class__ = nn.Conv2d  # type: ignore[assignment]
    return copied


def has_wide_convolutions(model: nn.Module) -> bool:
    """Return whether the channels of some convolution fill the vectors of a CPU."""
    for module in model.modules():
        if not isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d):
            continue
        inputs_per_group = module.in_channels // module.groups
        if min(inputs_per_group, module.out_channels) >= _MIN_WIDE_CHANNELS:
            return True
    return False


def has_kernels_for(device: torch.device) -> bool:
    """Return whether there are kernels for a device: a CUDA GPU with matrix units, and Triton."""
    if device.type != "cuda" or torch.version.hip is not None or find_spec("triton") is None:
        return False
    return torch.cuda.get_device_capability(device) >= _MIN_CAPABILITY


class StackedConv2d(nn.Conv2d):
    """`nn.Conv2d` with a square kernel, and the same stride and padding for height and width."""

    def forward(self, input: Tensor) -> Tensor:
        """Return what `nn.Conv2d` returns, in channels-last memory order."""
        geometry = ConvGeometry(self.stride[0], _get_padding(self))
        height = _compute_output_side(input.shape[2], self)
        width = _compute_output_side(input.shape[3], self)
        images = input.permute(0, 2, 3, 1)[None]
        weights = self.weight.permute(0, 2, 3, 1)[None]
        output = conv2d(images, weights, (height, width), geometry)[0].permute(0, 3, 1, 2)
        if self.bias is None:
            return output
        return output + self.bias[:, None, None]


def conv2d(x: Tensor, w: Tensor, size: Size, geometry: ConvGeometry) -> Tensor:
    """Convolve the images of each client with its weights, [clients, batch, *size, outputs].

    Args:
        x: Images, [clients, batch, height, width, inputs].
        w: Weights, [clients, outputs, kernel height, kernel width, inputs].
        size: Height and width of the result.
        geometry: Stride and padding.
    """
    return _Conv2d.call(x, w, size, geometry)


def conv2d_grad_input(g: Tensor, w: Tensor, size: Size, geometry: ConvGeometry) -> Tensor:
    """Return the gradient of `conv2d` w.r.t. its images, [clients, batch, *size, inputs].

    Args:
        g: Gradient w.r.t. the result of `conv2d`, [clients, batch, height, width, outputs].
        w: Weights of `conv2d`.
        size: Height and width of the images.
        geometry: Stride and padding of `conv2d`.
    """
    return _Conv2dGradInput.call(g, w, size, geometry)


def conv2d_grad_weight(x: Tensor, g: Tensor, size: Size, geometry: ConvGeometry) -> Tensor:
    """Return the gradient of `conv2d` w.r.t. its weights, [clients, outputs, *size, inputs].

    Args:
        x: Images of `conv2d`.
        g: Gradient w.r.t. the result of `conv2d`, [clients, batch, height, width, outputs].
        size: Height and width of the kernel.
        geometry: Stride and padding of `conv2d`.
    """
    return _Conv2dGradWeight.call(x, g, size, geometry)


class _BilinearConv(torch.autograd.Function):
    """Base of the three operations: a function of two factors, linear in each.

    Subclasses say in `output_role` which of x, w and g they return; the other two are the factors,
    in the order of `_FACTOR_ROLES`.
    """

    output_role: str

    @classmethod
    def call(cls, a: Tensor, b: Tensor, size: Size, geometry: ConvGeometry) -> Tensor:
        """Return the result for factors `a` and `b`; `size` and `geometry` are those of `forward`.

        This is `apply` with a type.
        """
        result: Tensor = cls.apply(a, b, size, geometry)  # type: ignore[no-untyped-call]
        return result

    @classmethod
    def forward(cls, a: Tensor, b: Tensor, size: Size, geometry: ConvGeometry) -> Tensor:
        """Return the result for the stacked factors `a` and `b` of all clients.

        Its height and width are `size`; `geometry` is that of the convolution.
        """
        operation = _OPERATION_BY_ROLE[cls.output_role]
        return operation(a.contiguous(), b.contiguous(), list(size), list(geometry))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Save `inputs` for derivatives in `ctx`; `output` is not needed."""
        a, b, size, geometry = inputs
        # Gradients and tangents that are zero stay None, which saves a product.
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(a, b)
        ctx.save_for_forward(a, b)
        ctx.size = size
        ctx.geometry = geometry

    @classmethod
    def backward(cls, ctx: Any, grad_output: Tensor | None) -> tuple[Tensor | None, ...]:
        """Return the gradients w.r.t. both factors, each from the other and `grad_output`."""
        if grad_output is None:
            return None, None, None, None
        roles = _FACTOR_ROLES[cls.output_role]
        tensors = dict(zip(roles, ctx.saved_tensors, strict=True))
        tensors[cls.output_role] = grad_output
        grads: list[Tensor | None] = [None, None]
        for position, role in enumerate(roles):
            if ctx.needs_input_grad[position]:
                grads[position] = _compute_derivative(role, tensors, ctx.geometry)
        return *grads, None, None

    @classmethod
    def vmap(
        cls, info: Any, in_dims: Any, a: Tensor, b: Tensor, size: Size, geometry: ConvGeometry
    ) -> tuple[Tensor, int]:
        """Return the result for a further dimension of clients by making the stack longer.

        The dimension is at `in_dims` of `a` and `b` and has the size `info.batch_size`; it is the
        first one of the result. `size` and `geometry` are those of `forward`.
        """
        count = info.batch_size
        a = _fold_into_clients(a, in_dims[0], count)
        b = _fold_into_clients(b, in_dims[1], count)
        result = cls.call(a, b, size, geometry)
        return result.reshape(count, -1, *result.shape[1:]), 0

    @classmethod
    def jvp(cls, ctx: Any, a_tangent: Tensor | None, b_tangent: Tensor | None, *_: None) -> Tensor:
        """Return the derivative along a direction of either factor, saved in `ctx`, or of both.

        A factor that does not change has no tangent: `a_tangent` or `b_tangent` is None.
        """
        a, b = ctx.saved_tensors
        if b_tangent is None:
            assert a_tangent is not None  # else torch would not call this
            return cls.call(a_tangent, b, ctx.size, ctx.geometry)
        if a_tangent is None:
            return cls.call(a, b_tangent, ctx.size, ctx.geometry)
        return cls.call_sum((a_tangent, b), (a, b_tangent), ctx.size, ctx.geometry)

    @classmethod
    def call_sum(
        cls,
        first: tuple[Tensor, Tensor],
        second: tuple[Tensor, Tensor],
        size: Size,
        geometry: ConvGeometry,
    ) -> Tensor:
        """Return the sum of two results, for the factors `first` and for the factors `second`.

        `size` and `geometry` are those of `forward`.
        """
        return cls.call(*first, size, geometry) + cls.call(*second, size, geometry)


def _fold_into_clients(factor: Tensor, vmap_dim: int | None, count: int) -> Tensor:
    """Return a factor with the dimension of `vmap` folded into the first one, that of clients."""
    if vmap_dim is None:
        factor = factor.expand(count, *factor.shape)
    else:
        factor = factor.movedim(vmap_dim, 0)
    return factor.flatten(0, 1)


def _compute_derivative(role: str, tensors: dict[str, Tensor], geometry: ConvGeometry) -> Tensor:
    """Return the derivative w.r.t. x, w or g, which has its shape, from the other two."""
    a_role, b_role = _FACTOR_ROLES[role]
    size = (int(tensors[role].shape[2]), int(tensors[role].shape[3]))
    return _FUNCTION_BY_ROLE[role](tensors[a_role], tensors[b_role], size, geometry)


class _Conv2d(_BilinearConv):
    output_role = "g"


class _Conv2dGradInput(_BilinearConv):
    output_role = "x"

    @classmethod
    def call_sum(
        cls,
        first: tuple[Tensor, Tensor],
        second: tuple[Tensor, Tensor],
        size: Size,
        geometry: ConvGeometry,
    ) -> Tensor:
        """Return the sum of the results for the factors `first` and `second`.

        It is one operation over the output channels of both, which halves a GPU's memory traffic.
        `size` and `geometry` are those of `forward`.
        """
        g = torch.cat([first[0], second[0]], -1)
        w = torch.cat([first[1], second[1]], 1)
        return cls.call(g, w, size, geometry)


class _Conv2dGradWeight(_BilinearConv):
    output_role = "w"


@torch.library.custom_op("fedtailor::conv2d", mutates_args=())
def _conv2d_op(x: Tensor, w: Tensor, size: list[int], geometry: list[int]) -> Tensor:
    height, width = size
    stride, pad = geometry
    if x.is_cuda:
        from fedtailor.ops.conv2d_triton import triton_conv2d

        return triton_conv2d(x.contiguous(), w.contiguous(), (height, width), (stride, pad))
    clients = len(x)
    output = nnf.conv2d(
        _to_grouped_images(x), _to_grouped_weights(w), None, stride, pad, groups=clients
    )
    return _from_grouped_images(output, clients)


@torch.library.custom_op("fedtailor::conv2d_grad_input", mutates_args=())
def _conv2d_grad_input_op(g: Tensor, w: Tensor, size: list[int], geometry: list[int]) -> Tensor:
    height, width = size
    stride, pad = geometry
    if g.is_cuda:
        from fedtailor.ops.conv2d_triton import triton_conv2d_grad_input

        return triton_conv2d_grad_input(
            g.contiguous(), w.contiguous(), (height, width), (stride, pad)
        )
    # Rows and columns at the end of images that no window reaches.
    unused = []
    for side, grad_side, kernel_side in zip(size, g.shape[2:4], w.shape[2:4], strict=True):
        covered_side = _compute_extent(grad_side, stride) + kernel_side - 1 - 2 * pad
        unused.append(side - covered_side)
    clients = len(g)
    grad_images = nnf.conv_transpose2d(
        _to_grouped_images(g), _to_grouped_weights(w), None, stride, pad, unused, clients
    )
    return _from_grouped_images(grad_images, clients)


@torch.library.custom_op("fedtailor::conv2d_grad_weight", mutates_args=())
def _conv2d_grad_weight_op(x: Tensor, g: Tensor, size: list[int], geometry: list[int]) -> Tensor:
    height, width = size
    stride, pad = geometry
    if x.is_cuda:
        from fedtailor.ops.conv2d_triton import triton_conv2d_grad_weight

        return triton_conv2d_grad_weight(
            x.contiguous(), g.contiguous(), (height, width), (stride, pad)
        )
    padded = nnf.pad(x, (0, 0, pad, pad, pad, pad))
    rows = _compute_extent(g.shape[2], stride)
    columns = _compute_extent(g.shape[3], stride)
    taps = []
    for i in range(height):
        for j in range(width):
            pixels = padded[:, :, i : i + rows : stride, j : j + columns : stride]
            taps.append(torch.einsum("cbhwi,cbhwo->coi", pixels, g))
    return torch.stack(taps, 2).reshape(len(x), g.shape[4], height, width, x.shape[4])


@_conv2d_op.register_fake
def _(x: Tensor, w: Tensor, size: list[int], geometry: list[int]) -> Tensor:
    return x.new_empty(*x.shape[:2], *size, w.shape[1])


@_conv2d_grad_input_op.register_fake
def _(g: Tensor, w: Tensor, size: list[int], geometry: list[int]) -> Tensor:
    return g.new_empty(*g.shape[:2], *size, w.shape[4])


@_conv2d_grad_weight_op.register_fake
def _(x: Tensor, g: Tensor, size: list[int], geometry: list[int]) -> Tensor:
    return x.new_empty(x.shape[0], g.shape[4], *size, x.shape[4])


# What makes each of x, w and g from the other two.
_FACTOR_ROLES = {"g": ("x", "w"), "x": ("g", "w"), "w": ("x", "g")}
_FUNCTION_BY_ROLE = {"g": conv2d, "x": conv2d_grad_input, "w": conv2d_grad_weight}
_OPERATION_BY_ROLE: dict[str, Callable[..., Tensor]] = {
    "g": _conv2d_op,
    "x": _conv2d_grad_input_op,
    "w": _conv2d_grad_weight_op,
}


def _to_grouped_images(images: Tensor) -> Tensor:
    """Return images for a grouped convolution, [batch, clients * channels, height, width]."""
    return images.permute(1, 0, 4, 2, 3).flatten(1, 2)


def _to_grouped_weights(w: Tensor) -> Tensor:
    """Return weights for a grouped convolution, [clients * outputs, inputs, height, width]."""
    return w.permute(0, 1, 4, 2, 3).flatten(0, 1)


def _from_grouped_images(images: Tensor, clients: int) -> Tensor:
    """Return images of a grouped convolution as [clients, batch, height, width, channels]."""
    by_client = images.reshape(len(images), clients, -1, *images.shape[2:])
    return by_client.permute(1, 0, 3, 4, 2).contiguous()


def _compute_extent(count: int, stride: int) -> int:
    """Return the distance from the first to the last of `count` positions, both included."""
    return (count - 1) * stride + 1


def _is_stackable(layer: nn.Conv2d) -> bool:
    """Return whether `StackedConv2d` computes what this layer does."""
    if layer.groups != 1 or layer.padding_mode != "zeros" or layer.padding == "same":
        return False
    if not (_is_uniform(layer.kernel_size) and _is_uniform(layer.stride)):
        return False
    if set(layer.dilation) != {1}:
        return False
    if layer.padding == "valid":
        return True
    # The gradient w.r.t. images is a convolution with padding kernel - 1 - pad, which must not be
    # negative.
    return _is_uniform(layer.padding) and int(layer.padding[0]) < layer.kernel_size[0]


def _is_uniform(sides: Sequence[Any]) -> bool:
    return len(set(sides)) == 1


def _get_padding(layer: nn.Conv2d) -> int:
    if layer.padding == "valid":
        return 0
    return int(layer.padding[0])


def _compute_output_side(side: int, layer: nn.Conv2d) -> int:
    return (side + 2 * _get_padding(layer) - layer.kernel_size[0]) // layer.stride[0] + 1
