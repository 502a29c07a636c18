"""Convolutions that stay one operation when `vmap` gives every client weights of its own.

torch turns such a stack into a grouped convolution, which GPU libraries compute group by group. Here it is one product
for all clients (see `conv2d_triton`), with derivatives of any order. A convolution of images x under weights w, times a
gradient g by its result, is one number that is linear in all three, so there are three operations, each the derivative
of that number by one of them: `conv2d` (by g), `conv2d_grad_input` (by x) and `conv2d_grad_weight` (by w). The
derivatives of each are the other two.
"""

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as nnf

from fedtailor.ops.modules import copy_module

Size = tuple[int, int]


class ConvGeometry(NamedTuple):
    """How a window moves over images, the same way down and across."""

    stride: int = 1
    pad: int = 0


def with_stacked_convolutions(model: nn.Module) -> nn.Module:
    """A twin of the model whose convolutions stay whole in a stack of clients, where these are of a kind that can."""
    copied = copy_module(model)
    for module in copied.modules():
        if type(module) is nn.Conv2d and _is_stackable(module):
            module.__class__ = StackedConv2d
    return copied


def with_plain_convolutions(model: nn.Module) -> nn.Module:
    """A twin of the model whose convolutions are torch's own again."""
    copied = copy_module(model)
    for module in copied.modules():
        if type(module) is StackedConv2d:
            module.__class__ = nn.Conv2d  # type: ignore[assignment]
    return copied


def has_wide_convolutions(model: nn.Module) -> bool:
    """Whether a model has convolutions whose channels fill a processor's vectors of 16 numbers."""
    layers = (
        module
        for module in model.modules()
        if isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d)
    )
    return any(min(layer.in_channels // layer.groups, layer.out_channels) >= 16 for layer in layers)


def has_kernels_for(device: torch.device) -> bool:
    """Whether there are kernels for a device: a GPU with matrix units for short floats, and Triton."""
    there = device.type == "cuda" and torch.version.hip is None and find_spec("triton") is not None
    return there and torch.cuda.get_device_capability(device) >= (8, 0)


class StackedConv2d(nn.Conv2d):
    """`nn.Conv2d` with a square window that moves alike down and across."""

    def forward(self, input: Tensor) -> Tensor:
        """What `nn.Conv2d` gives, laid out with the channels last."""
        geometry, images = (
            ConvGeometry(self.stride[0], _get_padding(self)),
            input.permute(0, 2, 3, 1)[None],
        )
        size = (
            _compute_output_side(input.shape[2], self),
            _compute_output_side(input.shape[3], self),
        )
        found = conv2d(images, self.weight.permute(0, 2, 3, 1)[None], size, geometry)[0].permute(
            0, 3, 1, 2
        )
        return found if self.bias is None else found + self.bias[:, None, None]


def conv2d(x: Tensor, w: Tensor, size: Size, geometry: ConvGeometry) -> Tensor:
    """Images [clients, batch, height, width, inputs] under weights [clients, outputs, height, width, inputs]."""
    found: Tensor = _Conv2d.apply(x, w, size, geometry)  # type: ignore[no-untyped-call]
    return found


def conv2d_grad_input(g: Tensor, w: Tensor, size: Size, geometry: ConvGeometry) -> Tensor:
    """The gradient of `conv2d` by its images, whose height and width are `size`, from that by its result, g."""
    found: Tensor = _Conv2dGradInput.apply(g, w, size, geometry)  # type: ignore[no-untyped-call]
    return found


def conv2d_grad_weight(x: Tensor, g: Tensor, size: Size, geometry: ConvGeometry) -> Tensor:
    """The gradient of `conv2d` by its weights, whose height and width are `size`, from that by its result, g."""
    found: Tensor = _Conv2dGradWeight.apply(x, g, size, geometry)  # type: ignore[no-untyped-call]
    return found


def _spatial_size(images: Tensor) -> Size:
    return int(images.shape[2]), int(images.shape[3])


class _BilinearConv(torch.autograd.Function):
    """What the three have in common as functions of two tensors, a size and a window."""

    output_role: str  # which of x, w and g

    @classmethod
    def forward(cls, a: Tensor, b: Tensor, size: Size, geometry: ConvGeometry) -> Tensor:
        """All clients at once."""
        found: Tensor = _OP_BY_ROLE[cls.output_role](
            a.contiguous(), b.contiguous(), list(size), list(geometry)
        )
        return found

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keeps both factors. Directions that are zero stay None, which spares a product."""
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs[:2])
        ctx.save_for_forward(*inputs[:2])
        ctx.size, ctx.window = inputs[2:]

    @classmethod
    def backward(cls, ctx: Any, grad_output: Tensor | None) -> tuple[Tensor | None, ...]:
        """By both factors: each is made of the other one and of `by`, the gradient by the result."""
        if grad_output is None:
            return None, None, None, None
        known = dict(
            zip(
                (*_FACTOR_ROLES[cls.output_role], cls.output_role),
                (*ctx.saved_tensors, grad_output),
                strict=True,
            )
        )
        wanted = zip(_FACTOR_ROLES[cls.output_role], ctx.needs_input_grad, strict=False)
        return (
            *(
                _compute_grad(name, known, ctx.window) if needed else None
                for name, needed in wanted
            ),
            None,
            None,
        )

    @classmethod
    def vmap(
        cls, info: Any, in_dims: Any, a: Tensor, b: Tensor, size: Size, geometry: ConvGeometry
    ) -> tuple[Tensor, int]:
        """More clients are only a longer stack."""
        count = info.batch_size
        stacked = [
            (each.expand(count, *each.shape) if dim is None else each.movedim(dim, 0)).flatten(0, 1)
            for each, dim in zip((a, b), in_dims, strict=False)
        ]
        found: Tensor = cls.apply(*stacked, size, geometry)  # type: ignore[no-untyped-call]
        return found.reshape(count, -1, *found.shape[1:]), 0

    @classmethod
    def jvp(cls, ctx: Any, a: Tensor | None, b: Tensor | None, *fixed: None) -> Tensor:
        """The derivative along a direction, of either factor or of both."""
        first, second = ctx.saved_tensors
        rest = (ctx.size, ctx.window)
        if a is None or b is None:
            one: Tensor = cls.apply(first if a is None else a, second if b is None else b, *rest)  # type: ignore[no-untyped-call]
            return one
        return cls.apply_sum((a, second), (first, b), *rest)

    @classmethod
    def apply_sum(
        cls,
        one: tuple[Tensor, Tensor],
        other: tuple[Tensor, Tensor],
        size: Size,
        geometry: ConvGeometry,
    ) -> Tensor:
        """The sum of two such."""
        found: Tensor = cls.apply(*one, size, geometry) + cls.apply(*other, size, geometry)  # type: ignore[no-untyped-call]
        return found


def _compute_grad(role: str, known: dict[str, Tensor], geometry: ConvGeometry) -> Tensor:
    """One of x, w and g from the other two, as large as it is known to be."""
    a, b = (known[name] for name in _FACTOR_ROLES[role])
    return _FUNCTION_BY_ROLE[role](a, b, _spatial_size(known[role]), geometry)


class _Conv2d(_BilinearConv):
    output_role = "g"


class _Conv2dGradInput(_BilinearConv):
    output_role = "x"

    @classmethod
    def apply_sum(
        cls,
        one: tuple[Tensor, Tensor],
        other: tuple[Tensor, Tensor],
        size: Size,
        geometry: ConvGeometry,
    ) -> Tensor:
        """The sum of two such: one with the outputs of both, which spares a GPU half of what passes its memory."""
        g, w = torch.cat([one[0], other[0]], -1), torch.cat([one[1], other[1]], 1)
        found: Tensor = cls.apply(g, w, size, geometry)  # type: ignore[no-untyped-call]
        return found


class _Conv2dGradWeight(_BilinearConv):
    output_role = "w"


@torch.library.custom_op("fedtailor::convolve", mutates_args=())
def _conv2d_op(x: Tensor, w: Tensor, size: list[int], geometry: list[int]) -> Tensor:
    if x.is_cuda:
        from fedtailor.ops.conv2d_triton import triton_conv2d

        return triton_conv2d(
            x.contiguous(), w.contiguous(), (size[0], size[1]), (geometry[0], geometry[1])
        )
    stride, pad = geometry
    return _from_grouped_images(
        nnf.conv2d(_to_grouped_images(x), _to_grouped_weights(w), None, stride, pad, groups=len(x)),
        len(x),
    )


@torch.library.custom_op("fedtailor::convolve_back", mutates_args=())
def _conv2d_grad_input_op(g: Tensor, w: Tensor, size: list[int], geometry: list[int]) -> Tensor:
    if g.is_cuda:
        from fedtailor.ops.conv2d_triton import triton_conv2d_grad_input

        return triton_conv2d_grad_input(
            g.contiguous(), w.contiguous(), (size[0], size[1]), (geometry[0], geometry[1])
        )
    stride, pad = geometry
    reached = [
        _compute_extent(grad_side, stride) + side - 1 - 2 * pad
        for grad_side, side in zip(g.shape[2:4], w.shape[2:4], strict=True)
    ]
    unseen = [whole - each for whole, each in zip(size, reached, strict=True)]
    return _from_grouped_images(
        nnf.conv_transpose2d(
            _to_grouped_images(g), _to_grouped_weights(w), None, stride, pad, unseen, len(g)
        ),
        len(g),
    )


@torch.library.custom_op("fedtailor::correlate", mutates_args=())
def _conv2d_grad_weight_op(x: Tensor, g: Tensor, size: list[int], geometry: list[int]) -> Tensor:
    if x.is_cuda:
        from fedtailor.ops.conv2d_triton import triton_conv2d_grad_weight

        return triton_conv2d_grad_weight(
            x.contiguous(), g.contiguous(), (size[0], size[1]), (geometry[0], geometry[1])
        )
    stride, pad = geometry
    around = nnf.pad(x, (0, 0, pad, pad, pad, pad))
    down, right = (_compute_extent(each, stride) for each in g.shape[2:4])
    found = [
        torch.einsum(
            "cbhwi,cbhwo->coi", around[:, :, i : i + down : stride, j : j + right : stride], g
        )
        for i in range(size[0])
        for j in range(size[1])
    ]
    return torch.stack(found, 2).reshape(len(x), g.shape[4], *size, x.shape[4])


@_conv2d_op.register_fake
def _(x: Tensor, w: Tensor, size: list[int], geometry: list[int]) -> Tensor:
    return x.new_empty(*x.shape[:2], *size, w.shape[1])


@_conv2d_grad_input_op.register_fake
def _(g: Tensor, w: Tensor, size: list[int], geometry: list[int]) -> Tensor:
    return g.new_empty(*g.shape[:2], *size, w.shape[4])


@_conv2d_grad_weight_op.register_fake
def _(x: Tensor, g: Tensor, size: list[int], geometry: list[int]) -> Tensor:
    return x.new_empty(x.shape[0], g.shape[4], *size, x.shape[4])


_FACTOR_ROLES = {"g": ("x", "w"), "x": ("g", "w"), "w": ("x", "g")}
_FUNCTION_BY_ROLE = {"g": conv2d, "x": conv2d_grad_input, "w": conv2d_grad_weight}
_OP_BY_ROLE: dict[str, Callable[..., Tensor]] = {
    "g": _conv2d_op,
    "x": _conv2d_grad_input_op,
    "w": _conv2d_grad_weight_op,
}


def _to_grouped_images(images: Tensor) -> Tensor:
    """Images as grouped convolutions take them: [batch, clients x channels, height, width]."""
    return images.permute(1, 0, 4, 2, 3).flatten(1, 2)


def _to_grouped_weights(w: Tensor) -> Tensor:
    """Weights as grouped convolutions take them: [clients x outputs, inputs, height, width]."""
    return w.permute(0, 1, 4, 2, 3).flatten(0, 1)


def _from_grouped_images(images: Tensor, clients: int) -> Tensor:
    """Images of a grouped convolution as they lie here: [clients, batch, height, width, channels]."""
    apart = images.reshape(len(images), clients, -1, *images.shape[2:])
    return apart.permute(1, 0, 3, 4, 2).contiguous()


def _compute_extent(count: int, stride: int) -> int:
    return (count - 1) * stride + 1


def _is_stackable(layer: nn.Conv2d) -> bool:
    """Whether a layer is a plain convolution with a square window that moves alike down and across."""
    alike = all(len(set(each)) == 1 for each in (layer.kernel_size, layer.stride, layer.dilation))
    plain = layer.groups == 1 and layer.padding_mode == "zeros" and layer.dilation[0] == 1
    if not (alike and plain) or layer.padding == "same":
        return False
    padding = layer.padding
    return padding == "valid" or (len(set(padding)) == 1 and int(padding[0]) < layer.kernel_size[0])


def _get_padding(layer: nn.Conv2d) -> int:
    return 0 if layer.padding == "valid" else int(layer.padding[0])


def _compute_output_side(side: int, layer: nn.Conv2d) -> int:
    return (side + 2 * _get_padding(layer) - layer.kernel_size[0]) // layer.stride[0] + 1
