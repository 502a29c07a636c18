"""Models for images: plain `nn.Sequential`s from [B, channels, height, width] to [B, classes].

The last layer is the linear head and all before it the encoder: `model[:-1]` and `model[-1]`. A convolutional model is
made for images of one size, of any that survives its pooling. A shape without channels, [height, width], is that of
gray images, which come as [B, height, width].
"""

import itertools
from collections.abc import Sequence
from functools import reduce

from torch import nn


def mlp(
    inputs: int, hidden: tuple[int, ...], classes: int, activation: type[nn.Module] = nn.ReLU
) -> nn.Sequential:
    """A multilayer perceptron on flattened inputs."""
    sizes = (inputs, *hidden)
    layers = [
        layer for a, b in itertools.pairwise(sizes) for layer in (nn.Linear(a, b), activation())
    ]
    return nn.Sequential(nn.Flatten(), *layers, nn.Linear(sizes[-1], classes))


def lenet(shape: Sequence[int], classes: int) -> nn.Sequential:
    """FedMeta-Per's network for CIFAR-10: 6 and 16 channels of 5 x 5, each pooled, then 120, 84 and the classes."""
    channels = parse_image_shape("lenet", shape)[0]
    first = (nn.Conv2d(channels, 6, 5), nn.ReLU(), nn.MaxPool2d(2))
    second = (nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2))
    return _image_classifier("lenet", shape, (*first, *second), (120, 84), classes)


def fsl_emnist(shape: Sequence[int], classes: int) -> nn.Sequential:
    """FSL's network for EMNIST (table II): only the first convolution keeps the size, and one pooling follows both."""
    return _two_layer_cnn("fsl_emnist", shape, classes, padding=(1, 0), pools=1)


def fsl_cifar(shape: Sequence[int], classes: int) -> nn.Sequential:
    """FSL's network for CIFAR-10 (table III): convolutions that keep the size, each followed by pooling."""
    return _two_layer_cnn("fsl_cifar", shape, classes, padding=(1, 1), pools=2)


def fedsim_femnist(shape: Sequence[int], classes: int) -> nn.Sequential:
    """FedSIM's network for FEMNIST (table 6): no convolution keeps the size, and one pooling follows both."""
    return _two_layer_cnn("fedsim_femnist", shape, classes, padding=(0, 0), pools=1)


def conv4(shape: Sequence[int], classes: int, channels: int = 32, groups: int = 2) -> nn.Sequential:
    """The encoder of few-shot learning, four times convolution, GroupNorm, ReLU and pooling, with a linear head.

    AFML does not print its models; this is the one that its kind of experiment uses most.
    """
    widths = (parse_image_shape("conv4", shape)[0], *(channels,) * 4)
    blocks = [
        layer
        for a, b in itertools.pairwise(widths)
        for layer in (
            nn.Conv2d(a, b, 3, padding=1),
            nn.GroupNorm(groups, b),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
    ]
    return _image_classifier("conv4", shape, blocks, (), classes)


def parse_image_shape(model: str, shape: Sequence[int]) -> tuple[int, int, int]:
    """Channels, height and width of images of a shape, which may leave the channels out if there is one."""
    if len(shape) not in (2, 3):
        raise ValueError(
            f"{model}: images must be of shape [channels, height, width], got {list(shape)}."
        )
    channels, height, width = (1, *shape)[-3:]
    return channels, height, width


def make_channel_layers(shape: Sequence[int]) -> list[nn.Module]:
    """The layer that gives gray images a channel, if their shape has none."""
    return [nn.Unflatten(1, (1, shape[0]))] if len(shape) == 2 else []


def _two_layer_cnn(
    name: str, shape: Sequence[int], classes: int, padding: tuple[int, int], pools: int
) -> nn.Sequential:
    """32 and 64 channels of 3 x 3, the last or both pooled, then 128 and the classes; dropout of 1/4 and 1/2."""
    channels = parse_image_shape(name, shape)[0]
    features = (
        nn.Conv2d(channels, 32, 3, padding=padding[0]),
        nn.ReLU(),
        *(nn.MaxPool2d(2) for _ in range(pools - 1)),
        nn.Conv2d(32, 64, 3, padding=padding[1]),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
    )
    return _image_classifier(name, shape, features, (128,), classes, dropout=0.5)


def _image_classifier(
    name: str,
    shape: Sequence[int],
    features: Sequence[nn.Module],
    hidden: tuple[int, ...],
    classes: int,
    dropout: float = 0.0,
) -> nn.Sequential:
    """Layers that look at images, dense ones with ReLU (and dropout) after each, and the head."""
    sizes, dropped = (_compute_flat_size(name, shape, features), *hidden), dropout > 0
    dense = [
        layer
        for a, b in itertools.pairwise(sizes)
        for layer in (nn.Linear(a, b), nn.ReLU(), *(nn.Dropout(dropout) for _ in range(dropped)))
    ]
    return nn.Sequential(
        *make_channel_layers(shape), *features, nn.Flatten(), *dense, nn.Linear(sizes[-1], classes)
    )


def _compute_flat_size(name: str, shape: Sequence[int], features: Sequence[nn.Module]) -> int:
    """How many numbers an image has become behind these layers."""
    channels, height, width = parse_image_shape(name, shape)
    least = reduce(_compute_input_side, reversed(features), 1)
    if min(height, width) < least:
        raise ValueError(
            f"{name}: images must be at least {least} x {least}, got {height} x {width}."
        )
    channels = [layer.out_channels for layer in features if isinstance(layer, nn.Conv2d)][-1]
    return (
        channels
        * reduce(_compute_output_side, features, height)
        * reduce(_compute_output_side, features, width)
    )


def _compute_output_side(side: int, layer: nn.Module) -> int:
    kernel, stride, padding = _get_kernel_stride_padding(layer)
    return (side + 2 * padding - kernel) // stride + 1


def _compute_input_side(side: int, layer: nn.Module) -> int:
    """The least side that a layer makes this one of."""
    kernel, stride, padding = _get_kernel_stride_padding(layer)
    return (side - 1) * stride + kernel - 2 * padding


def _get_kernel_stride_padding(layer: nn.Module) -> tuple[int, int, int]:
    """Kernel, stride and padding of a layer along a side."""
    if isinstance(layer, nn.Conv2d):
        return layer.kernel_size[0], layer.stride[0], int(layer.padding[0])
    return (2, 2, 0) if isinstance(layer, nn.MaxPool2d) else (1, 1, 0)
