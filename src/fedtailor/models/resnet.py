"""ResNet-18 with GroupNorm, the model of federated CIFAR-100."""

from collections.abc import Sequence
from typing import Literal

from torch import Tensor, nn

from fedtailor.models.vision import make_channel_layers, parse_image_shape

STAGES = (
    (64, 64, 1),
    (64, 128, 2),
    (128, 256, 2),
    (256, 512, 2),
)  # channels in, channels out, stride


def resnet18(
    shape: Sequence[int], classes: int, groups: int = 2, stem: Literal["7x7", "3x3"] = "7x7"
) -> nn.Sequential:
    """ResNet-18 for images of any size, with GroupNorm of `groups` groups; the last layer is the linear head.

    The stem "7x7" with stride 2 and pooling is ResNet's own and the one of federated work on CIFAR-100, where images of
    24 x 24 reach the last stage as a single place. The stem "3x3" with neither is meant for images that small.
    """
    channels = parse_image_shape("resnet18", shape)[0]
    blocks = [
        block
        for inputs, outputs, stride in STAGES
        for block in (
            ResidualBlock(inputs, outputs, stride, groups),
            ResidualBlock(outputs, outputs, 1, groups),
        )
    ]
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
    """Two convolutions of 3 x 3 beside a way past them, which is a convolution of 1 x 1 where shapes change."""

    def __init__(self, inputs: int, outputs: int, stride: int, groups: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.GroupNorm(groups, outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.GroupNorm(groups, outputs),
        )
        same = inputs == outputs and stride == 1
        self.downsample = (
            nn.Sequential() if same else _make_projection(inputs, outputs, stride, groups)
        )
        self.activation = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """The activated sum of both ways."""
        activated: Tensor = self.activation(self.residual(x) + self.downsample(x))
        return activated


def _make_projection(inputs: int, outputs: int, stride: int, groups: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.GroupNorm(groups, outputs)
    )


def _make_stem(channels: int, groups: int, stem: str) -> list[nn.Module]:
    if stem not in ("7x7", "3x3"):
        raise ValueError(f"resnet18: stem must be 7x7 or 3x3, got {stem!r}.")
    if stem == "3x3":
        return [nn.Conv2d(channels, 64, 3, 1, 1, bias=False), nn.GroupNorm(groups, 64), nn.ReLU()]
    conv = nn.Conv2d(channels, 64, 7, 2, 3, bias=False)
    return [conv, nn.GroupNorm(groups, 64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
