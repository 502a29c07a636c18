"""Models for images: plain `nn.Module`s."""

import itertools

from torch import nn


def mlp(inputs: int, hidden: tuple[int, ...], classes: int, activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """A multilayer perceptron on flattened inputs."""
    sizes = (inputs, *hidden)
    layers = [layer for a, b in itertools.pairwise(sizes) for layer in (nn.Linear(a, b), activation())]
    return nn.Sequential(nn.Flatten(), *layers, nn.Linear(sizes[-1], classes))
