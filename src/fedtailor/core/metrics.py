"""Metrics per example, as sums and weights; see losses.py."""

from typing import NamedTuple

import torch
from torch import Tensor

from fedtailor.core.losses import PerExample, make_token_weights, mean_per_example


class Metric(NamedTuple):
    """A figure by which models are compared."""

    name: str
    per_example: PerExample
    higher_is_better: bool


def replace_nonfinite(
    is_finite: Tensor, pairs: tuple[Tensor, Tensor], higher_is_better: bool
) -> tuple[Tensor, Tensor]:
    """Return sums and weights in which examples with non-finite outputs score the worst.

    Args:
        is_finite: `[B]`, whether all outputs of an example are finite.
        pairs: Sums and weights `[B]`.
        higher_is_better: Chooses the worst sum: 0, else infinity.
    """
    sums, weights = pairs
    worst = 0.0 if higher_is_better else torch.inf
    return torch.where(is_finite, sums, worst), weights


def accuracy(outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return 1 for each example whose highest logit is at its class, else 0."""
    return mean_per_example((outputs.argmax(1) == y).to(outputs.dtype))


def label_accuracy(outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the fraction of an example's labels that are predicted correctly."""
    return mean_per_example(((outputs > 0) == (y > 0)).to(outputs.dtype))


def f1(outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the terms of the micro-averaged F1 score over all labels and examples.

    The sum is 2 true positives, the weight is predicted positives + actual positives.
    """
    predicted = (outputs > 0).to(outputs.dtype).flatten(1)
    actual = (y > 0).to(outputs.dtype).flatten(1)
    return 2 * (predicted * actual).sum(1), predicted.sum(1) + actual.sum(1)


def absolute_error(outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the absolute error, averaged over an example's outputs."""
    return mean_per_example((outputs - y.reshape(outputs.shape)).abs())


def token_accuracy(ignored: tuple[int, ...], outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the number of an example's correct tokens, with the number of tokens as weight.

    Args:
        ignored: Tokens that do not count: padding, out of vocabulary, end of sentence.
        outputs: Logits `[B, T, vocabulary]`.
        y: Tokens `[B, T]`.
    """
    weights = make_token_weights(y, ignored, outputs.dtype)
    num_correct = ((outputs.argmax(2) == y) * weights).sum(1)
    return num_correct, weights.sum(1)
