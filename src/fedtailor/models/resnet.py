"""ResNet-18 with GroupNorm, the model of federated CIFAR-100."""

from collections.abc import Sequence
from typing import Literal

from torch import Tensor, nn

from fedtailor.models.vision import make_channel_layers, parse_image_shape

# Of each stage: input channels, output channels, stride.
STAGES = (
    (64, 64, 1),
    (64, 128, 2),
    (128, 256, 2),
    (256, 512, 2),
)


def resnet18(
    shape: Sequence[int], classes: int, groups: int = 2, stem: Literal["7x7", "3x3"] = "7x7"
) -> nn.Sequential:
    """Return ResNet-18 with GroupNorm for images of any size; the last layer is the linear head.

    Args:
        shape: Shape of an image, [channels, height, width], or [height, width] for gray images.
        classes: Number of classes.
        groups: Number of groups of each GroupNorm.
        stem: "7x7" has stride 2 and pooling, as in the original and in federated work on CIFAR-100,
            where images of 24 x 24 reach the last stage as a single pixel; "3x3" has neither and is
            meant for images that small.
    """
    channels = parse_image_shape("resnet18", shape)[0]
    # The order in which layers are built is the order in which their initial weights are drawn.
    blocks = []
    for inputs, outputs, stride in STAGES:
        blocks.append(ResidualBlock(inputs, outputs, stride, groups))
        blocks.append(ResidualBlock(outputs, outputs, 1, groups))
    model = nn.Sequential(
        *make_channel_layers(shape),
        *_make_stem(channels, groups, stem),
        *blocks,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(512, classes),
    )
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return model


class ResidualBlock(nn.Module):
    """Two 3 x 3 convolutions and a shortcut, which is a 1 x 1 convolution where shapes change.

    Args:
        inputs: Input channels.
        outputs: Output channels.
        stride: Stride of the first convolution and of the shortcut.
        groups: Number of groups of each GroupNorm.
    """

    def __init__(self, inputs: int, outputs: int, stride: int, groups: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.GroupNorm(groups, outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.GroupNorm(groups, outputs),
        )
        self.downsample = nn.Sequential()
        if inputs != outputs or stride != 1:
            self.downsample = _make_projection(inputs, outputs, stride, groups)
        self.activation = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """Return the activated sum of the residual and the shortcut, [batch, channels, h, w]."""
        activated: Tensor = self.activation(self.residual(x) + self.downsample(x))
        return activated


def _make_projection(inputs: int, outputs: int, stride: int, groups: int) -> nn.Sequential:
    conv = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
    return nn.Sequential(conv, nn.GroupNorm(groups, outputs))


def _make_stem(channels: int, groups: int, stem: str) -> list[nn.Module]:
    if stem not in ("7x7", "3x3"):
        raise ValueError(f"resnet18: stem must be 7x7 or 3x3, got {stem!r}.")
    if stem == "3x3":
        return [nn.Conv2d(channels, 64, 3, 1, 1, bias=False), nn.GroupNorm(groups, 64), nn.ReLU()]
    conv = nn.Conv2d(channels, 64, 7, 2, 3, bias=False)
    return [conv, nn.GroupNorm(groups, 64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
