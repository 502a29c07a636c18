"""Metrics, example by example: figures by which models are compared."""

from typing import NamedTuple

import torch
from torch import Tensor

from fedtailor.core.losses import PerExample, _mean_per_example, _token_mask


class Metric(NamedTuple):
    """A figure by which models are compared."""

    name: str
    per_example: PerExample
    higher_is_better: bool


def replace_nonfinite(
    is_finite: Tensor, pairs: tuple[Tensor, Tensor], higher_is_better: bool
) -> tuple[Tensor, Tensor]:
    """Pairs in which an example that is not finite has the worst sum there is."""
    return torch.where(is_finite, pairs[0], 0.0 if higher_is_better else torch.inf), pairs[1]


def accuracy(outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """1 for the right class."""
    return _mean_per_example((outputs.argmax(1) == y).to(outputs.dtype))


def label_accuracy(outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The share of right labels."""
    return _mean_per_example(((outputs > 0) == (y > 0)).to(outputs.dtype))


def f1(outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """2 true positives over what was said plus what is true, over all labels and examples."""
    predicted, true = (
        (outputs > 0).to(outputs.dtype).flatten(1),
        (y > 0).to(outputs.dtype).flatten(1),
    )
    return 2 * (predicted * true).sum(1), predicted.sum(1) + true.sum(1)


def absolute_error(outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Mean over outputs."""
    return _mean_per_example((outputs - y.reshape(outputs.shape)).abs())


def token_accuracy(ignored: tuple[int, ...], outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Right tokens among those that count."""
    counts = _token_mask(y, ignored, outputs.dtype)
    return ((outputs.argmax(2) == y) * counts).sum(1), counts.sum(1)
