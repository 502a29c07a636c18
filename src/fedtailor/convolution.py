"""Convolutions that stay one operation when `vmap` gives every client weights of its own.

torch turns such a stack into a grouped convolution, which GPU libraries work off group by group. Here it is one product
for all clients (see `kernels`), with derivatives of any order: a convolution is linear in its images and in its
weights, and both derivatives are such convolutions again.
"""

from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as nnf

from fedtailor.purity import twin

Size = tuple[int, int]


class Window(NamedTuple):
    """How a window moves over images, the same way down and across."""

    stride: int = 1
    dilate: int = 1  # of the images: zeros stand between their places
    pad: int = 0

    def back(self, side: int) -> "Window":
        """That of the way back, of a window so long: strides become zeros between places, and zeros strides."""
        return Window(self.dilate, self.stride, side - 1 - self.pad)


def with_stacked_convolutions(model: nn.Module) -> nn.Module:
    """A twin of the model whose convolutions stay whole in a stack of clients, where these are of a kind that can."""
    copied = twin(model)
    for module in copied.modules():
        if type(module) is nn.Conv2d and _fits(module):
            module.__class__ = Convolution
    return copied


def with_plain_convolutions(model: nn.Module) -> nn.Module:
    """A twin of the model whose convolutions are torch's own again."""
    copied = twin(model)
    for module in copied.modules():
        if type(module) is Convolution:
            module.__class__ = nn.Conv2d  # type: ignore[assignment]
    return copied


def convolves_much(model: nn.Module) -> bool:
    """Whether a model has convolutions whose channels fill a processor's vectors of 16 numbers."""
    layers = (module for module in model.modules() if isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d))
    return any(min(layer.in_channels // layer.groups, layer.out_channels) >= 16 for layer in layers)


def works_on(device: torch.device) -> bool:
    """Whether there are kernels for a device: a GPU with matrix units for short floats, and Triton."""
    there = device.type == "cuda" and torch.version.hip is None and find_spec("triton") is not None
    return there and torch.cuda.get_device_capability(device) >= (8, 0)


class Convolution(nn.Conv2d):
    """`nn.Conv2d` with a square window that moves alike down and across."""

    def forward(self, input: Tensor) -> Tensor:
        """What `nn.Conv2d` gives, laid out with the channels last."""
        window, images = Window(self.stride[0], 1, _padding(self)), input.permute(0, 2, 3, 1)[None]
        size = (_after(input.shape[2], self), _after(input.shape[3], self))
        found = convolved(images, self.weight.permute(0, 2, 3, 1)[None], size, window)[0].permute(0, 3, 1, 2)
        return found if self.bias is None else found + self.bias[:, None, None]


def convolved(x: Tensor, w: Tensor, size: Size, window: Window) -> Tensor:
    """Images [clients, batch, height, width, inputs] under weights [clients, outputs, height, width, inputs]."""
    found: Tensor = _Convolved.apply(x, w, size, window)  # type: ignore[no-untyped-call]
    return found


def correlated(x: Tensor, g: Tensor, size: Size, window: Window) -> Tensor:
    """The gradient of `convolved` by its weights, whose height and width are `size`, from that by its result, g."""
    found: Tensor = _Correlated.apply(x, g, size, window)  # type: ignore[no-untyped-call]
    return found


def _by_images(x: Tensor, w: Tensor, g: Tensor, window: Window) -> Tensor:
    """The gradient of `convolved` by its images, from that by its result, g: the way back."""
    return convolved(g, _turned(w), _size(x), window.back(w.shape[2]))


def _turned(w: Tensor) -> Tensor:
    """The weights of the way back."""
    return w.flip(2, 3).transpose(1, 4)


def _size(images: Tensor) -> Size:
    return int(images.shape[2]), int(images.shape[3])


class _Bilinear(torch.autograd.Function):
    """What convolutions and correlations have in common as functions of two tensors, a size and a window."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keeps both factors. Directions that are zero stay None, which spares a product."""
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs[:2])
        ctx.save_for_forward(*inputs[:2])
        ctx.size, ctx.window = inputs[2:]

    @classmethod
    def vmap(cls, info: Any, in_dims: Any, a: Tensor, b: Tensor, size: Size, window: Window) -> tuple[Tensor, int]:
        """More clients are only a longer stack."""
        count = info.batch_size
        stacked = [
            (each.expand(count, *each.shape) if dim is None else each.movedim(dim, 0)).flatten(0, 1)
            for each, dim in zip((a, b), in_dims, strict=False)
        ]
        found: Tensor = cls.apply(*stacked, size, window)  # type: ignore[no-untyped-call]
        return found.reshape(count, -1, *found.shape[1:]), 0

    @classmethod
    def jvp(cls, ctx: Any, a: Tensor | None, b: Tensor | None, *fixed: None) -> Tensor:
        """The derivative along a direction."""
        first, second = ctx.saved_tensors
        rest = (ctx.size, ctx.window)
        along: Tensor = cls.apply(first if a is None else a, second, *rest)  # type: ignore[no-untyped-call]
        other: Tensor = cls.apply(first, second if b is None else b, *rest)  # type: ignore[no-untyped-call]
        return other if a is None else along if b is None else along + other


class _Convolved(_Bilinear):
    @staticmethod
    def forward(x: Tensor, w: Tensor, size: Size, window: Window) -> Tensor:
        """All clients at once."""
        found: Tensor = _convolve(x.contiguous(), w.contiguous(), list(size), list(window))
        return found

    @staticmethod
    def backward(ctx: Any, g: Tensor | None) -> tuple[Tensor | None, Tensor | None, None, None]:
        """By the images and by the weights."""
        if g is None:
            return None, None, None, None
        (x, w), needed = ctx.saved_tensors, ctx.needs_input_grad
        by_x = _by_images(x, w, g, ctx.window) if needed[0] else None
        by_w = correlated(x, g, _size(w), ctx.window) if needed[1] else None
        return by_x, by_w, None, None


class _Correlated(_Bilinear):
    @staticmethod
    def forward(x: Tensor, g: Tensor, size: Size, window: Window) -> Tensor:
        """All clients at once."""
        found: Tensor = _correlate(x.contiguous(), g.contiguous(), list(size), list(window))
        return found

    @staticmethod
    def backward(ctx: Any, v: Tensor | None) -> tuple[Tensor | None, Tensor | None, None, None]:
        """By the images and by what came back, from that by the weights, v."""
        if v is None:
            return None, None, None, None
        x, g = ctx.saved_tensors
        return _by_images(x, v, g, ctx.window), convolved(x, v, _size(g), ctx.window), None, None


@torch.library.custom_op("fedtailor::convolve", mutates_args=())
def _convolve(x: Tensor, w: Tensor, size: list[int], window: list[int]) -> Tensor:
    if x.is_cuda:
        from fedtailor.kernels import convolve

        return convolve(x, w, (size[0], size[1]), (window[0], window[1], window[2]))
    stacked, (clients, batch) = _spread(x, w.shape[2:4], size, Window(*window)), x.shape[:2]
    weights = w.permute(0, 1, 4, 2, 3).flatten(0, 1)
    found = nnf.conv2d(stacked.transpose(0, 1).flatten(1, 2), weights, stride=window[0], groups=clients)
    apart = found.reshape(batch, clients, -1, *size)
    return apart.permute(1, 0, 3, 4, 2).contiguous()


@torch.library.custom_op("fedtailor::correlate", mutates_args=())
def _correlate(x: Tensor, g: Tensor, size: list[int], window: list[int]) -> Tensor:
    if x.is_cuda:
        from fedtailor.kernels import correlate

        return correlate(x, g, (size[0], size[1]), (window[0], window[1], window[2]))
    stacked = _spread(x, size, g.shape[2:4], Window(*window))
    taps = [
        stacked[..., down : down + _reach(g.shape[2], window[0]) : window[0], right:][
            ..., : _reach(g.shape[3], window[0]) : window[0]
        ]
        for down in range(size[0])
        for right in range(size[1])
    ]
    found = [torch.einsum("cbihw,cbhwo->coi", tap, g) for tap in taps]
    return torch.stack(found, 2).reshape(len(x), g.shape[4], *size, x.shape[4])


@_convolve.register_fake
def _(x: Tensor, w: Tensor, size: list[int], window: list[int]) -> Tensor:
    return x.new_empty(*x.shape[:2], *size, w.shape[1])


@_correlate.register_fake
def _(x: Tensor, g: Tensor, size: list[int], window: list[int]) -> Tensor:
    return x.new_empty(x.shape[0], g.shape[4], *size, x.shape[4])


def _spread(x: Tensor, sides: Any, size: Any, window: Window) -> Tensor:
    """Images [clients, batch, inputs, height, width] with the zeros between and around them that windows meet."""
    clients, batch, height, width, inputs = x.shape
    lengths = [_reach(each, window.stride) + side - 1 for each, side in zip(size, sides, strict=True)]
    between = [(each - 1) * window.dilate + 1 for each in (height, width)]
    apart = x.new_zeros(clients, batch, inputs, *between)
    apart[..., :: window.dilate, :: window.dilate] = x.permute(0, 1, 4, 2, 3)
    behind = [length - each - window.pad for length, each in zip(lengths, between, strict=True)]
    return nnf.pad(apart, (window.pad, behind[1], window.pad, behind[0]))


def _reach(count: int, stride: int) -> int:
    return (count - 1) * stride + 1


def _fits(layer: nn.Conv2d) -> bool:
    """Whether a layer is a plain convolution with a square window that moves alike down and across."""
    alike = all(len(set(each)) == 1 for each in (layer.kernel_size, layer.stride, layer.dilation))
    plain = layer.groups == 1 and layer.padding_mode == "zeros" and layer.dilation[0] == 1
    if not (alike and plain) or layer.padding == "same":
        return False
    padding = layer.padding
    return padding == "valid" or (len(set(padding)) == 1 and int(padding[0]) < layer.kernel_size[0])


def _padding(layer: nn.Conv2d) -> int:
    return 0 if layer.padding == "valid" else int(layer.padding[0])


def _after(side: int, layer: nn.Conv2d) -> int:
    return (side + 2 * _padding(layer) - layer.kernel_size[0]) // layer.stride[0] + 1
