"""A small convolutional network for gray images of 28 x 28, which no scenario was tuned on."""

from torch import nn


def build_small_cnn(classes: int) -> nn.Module:
    """Return two strided convolutions and a linear layer."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 5, stride=2, padding=2),
        nn.Tanh(),
        nn.Conv2d(8, 16, 5, stride=2, padding=2),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(16 * 7 * 7, classes),
    )


def balanced() -> nn.Module:
    """Return the network for the 47 classes of balanced EMNIST."""
    return build_small_cnn(47)


def femnist() -> nn.Module:
    """Return the network for the 62 classes of FEMNIST."""
    return build_small_cnn(62)
