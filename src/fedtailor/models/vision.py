"""Models for images: plain `nn.Sequential`s from [B, channels, height, width] to [B, classes].

The last layer is the linear head and all before it the encoder: `model[:-1]` and `model[-1]`. A
convolutional model is built for images of one size, which must survive its pooling. The shape of
gray images may leave out the channel: images of shape [height, width] come as [B, height, width].
"""

import itertools
from collections.abc import Sequence

from torch import nn


def mlp(
    inputs: int, hidden: tuple[int, ...], classes: int, activation: type[nn.Module] = nn.ReLU
) -> nn.Sequential:
    """Return a multilayer perceptron on flattened inputs.

    Args:
        inputs: Number of input features.
        hidden: Widths of the hidden layers.
        classes: Number of classes.
        activation: Class of the activation after each hidden layer.
    """
    sizes = (inputs, *hidden)
    layers: list[nn.Module] = []
    for size, next_size in itertools.pairwise(sizes):
        layers += [nn.Linear(size, next_size), activation()]
    return nn.Sequential(nn.Flatten(), *layers, nn.Linear(sizes[-1], classes))


def lenet(shape: Sequence[int], classes: int) -> nn.Sequential:
    """Return FedMeta-Per's model for CIFAR-10, a LeNet.

    It has convolutions of 6 and 16 channels of 5 x 5, each pooled, and dense layers of 120 and 84.
    """
    channels = parse_image_shape("lenet", shape)[0]
    first = (nn.Conv2d(channels, 6, 5), nn.ReLU(), nn.MaxPool2d(2))
    second = (nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2))
    return _image_classifier("lenet", shape, (*first, *second), (120, 84), classes)


def fsl_emnist(shape: Sequence[int], classes: int) -> nn.Sequential:
    """Return FSL's model for EMNIST (table II): only the first of two convolutions is padded.

    One pooling follows both convolutions.
    """
    return _two_layer_cnn("fsl_emnist", shape, classes, padding=(1, 0), pools=1)


def fsl_cifar(shape: Sequence[int], classes: int) -> nn.Sequential:
    """Return FSL's model for CIFAR-10 (table III): two padded convolutions, each with pooling."""
    return _two_layer_cnn("fsl_cifar", shape, classes, padding=(1, 1), pools=2)


def fedsim_femnist(shape: Sequence[int], classes: int) -> nn.Sequential:
    """Return FedSIM's model for FEMNIST (table 6): two unpadded convolutions and one pooling."""
    return _two_layer_cnn("fedsim_femnist", shape, classes, padding=(0, 0), pools=1)


def conv4(shape: Sequence[int], classes: int, channels: int = 32, groups: int = 2) -> nn.Sequential:
    """Return the encoder of few-shot learning, four convolutions with pooling, and a linear head.

    AFML does not print its models; this is the most common one in experiments of its kind.

    Args:
        shape: Shape of an image.
        classes: Number of classes.
        channels: Channels of each convolution.
        groups: Number of groups of the GroupNorm after each convolution.
    """
    widths = (parse_image_shape("conv4", shape)[0], *(channels,) * 4)
    blocks: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(widths):
        conv = nn.Conv2d(inputs, outputs, 3, padding=1)
        blocks += [conv, nn.GroupNorm(groups, outputs), nn.ReLU(), nn.MaxPool2d(2)]
    return _image_classifier("conv4", shape, blocks, (), classes)


def parse_image_shape(model: str, shape: Sequence[int]) -> tuple[int, int, int]:
    """Return channels, height and width of images of a shape, which may leave out one channel."""
    if len(shape) not in (2, 3):
        raise ValueError(
            f"{model}: images must be of shape [channels, height, width], got {list(shape)}."
        )
    channels, height, width = (1, *shape)[-3:]
    return channels, height, width


def make_channel_layers(shape: Sequence[int]) -> list[nn.Module]:
    """Return the layer that adds the channel of gray images, if their shape leaves it out."""
    if len(shape) == 2:
        return [nn.Unflatten(1, (1, shape[0]))]
    return []


def _two_layer_cnn(
    name: str, shape: Sequence[int], classes: int, padding: tuple[int, int], pools: int
) -> nn.Sequential:
    """Return convolutions of 32 and 64 channels of 3 x 3, a dense layer of 128 and the head.

    The second or, with two `pools`, each convolution is pooled; dropout is 1/4 and 1/2.
    """
    channels = parse_image_shape(name, shape)[0]
    features: list[nn.Module] = [nn.Conv2d(channels, 32, 3, padding=padding[0]), nn.ReLU()]
    if pools == 2:
        features.append(nn.MaxPool2d(2))
    features += [nn.Conv2d(32, 64, 3, padding=padding[1]), nn.ReLU()]
    features += [nn.MaxPool2d(2), nn.Dropout(0.25)]
    return _image_classifier(name, shape, features, (128,), classes, dropout=0.5)


def _image_classifier(
    name: str,
    shape: Sequence[int],
    features: Sequence[nn.Module],
    hidden: tuple[int, ...],
    classes: int,
    dropout: float = 0.0,
) -> nn.Sequential:
    """Return `features`, dense layers with ReLU and dropout, and the head as one model."""
    sizes = (_count_features(name, shape, features), *hidden)
    dense: list[nn.Module] = []
    for size, next_size in itertools.pairwise(sizes):
        dense += [nn.Linear(size, next_size), nn.ReLU()]
        if dropout > 0:
            dense.append(nn.Dropout(dropout))
    head = nn.Linear(sizes[-1], classes)
    return nn.Sequential(*make_channel_layers(shape), *features, nn.Flatten(), *dense, head)


def _count_features(name: str, shape: Sequence[int], layers: Sequence[nn.Module]) -> int:
    """Return the number of features of an image after these layers."""
    _, height, width = parse_image_shape(name, shape)
    min_side = 1
    for layer in reversed(layers):
        min_side = _compute_input_side(min_side, layer)
    if min(height, width) < min_side:
        raise ValueError(
            f"{name}: images must be at least {min_side} x {min_side}, got {height} x {width}."
        )
    channels = [layer.out_channels for layer in layers if isinstance(layer, nn.Conv2d)][-1]
    for layer in layers:
        height = _compute_output_side(height, layer)
        width = _compute_output_side(width, layer)
    return channels * height * width


def _compute_output_side(side: int, layer: nn.Module) -> int:
    kernel, stride, padding = _get_kernel_stride_padding(layer)
    return (side + 2 * padding - kernel) // stride + 1


def _compute_input_side(side: int, layer: nn.Module) -> int:
    """Return the smallest input side for which the output side of a layer is `side`."""
    kernel, stride, padding = _get_kernel_stride_padding(layer)
    return (side - 1) * stride + kernel - 2 * padding


def _get_kernel_stride_padding(layer: nn.Module) -> tuple[int, int, int]:
    """Return kernel size, stride and padding of a layer along a side."""
    if isinstance(layer, nn.Conv2d):
        return layer.kernel_size[0], layer.stride[0], int(layer.padding[0])
    if isinstance(layer, nn.MaxPool2d):
        return 2, 2, 0  # all poolings of this file
    return 1, 1, 0
