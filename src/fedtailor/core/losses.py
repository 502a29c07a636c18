"""Losses per example, as sums and weights.

A loss or metric over many examples is a sum of sums divided by a sum of weights, so batches and
clients can be added up in any order. Metrics are in metrics.py.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as nnf

PerExample = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""(outputs, y) -> (sums `[B]`, weights `[B]`), one of each per example."""


def masked_sums(pairs: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
    """Return `[2]`: the sum of the sums and the sum of the weights over the real examples."""
    return torch.stack(_masked_totals(pairs, mask))


def masked_mean(pairs: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
    """Return the weighted mean over the real examples, or 0 if there are none."""
    total, weight = _masked_totals(pairs, mask)
    return total / weight.clamp(min=1.0)


def _masked_totals(pairs: tuple[Tensor, Tensor], mask: Tensor) -> tuple[Tensor, Tensor]:
    sums, weights = pairs
    # Padding may have an infinite or undefined sum, which a product with 0 would not remove.
    total = torch.where(mask > 0, sums * mask, 0).sum()
    return total, (weights * mask).sum()


def mean_per_example(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean of `values` over all dimensions but the first, each with weight 1."""
    if values.dim() > 1:
        values = values.flatten(1).mean(1)
    return values, torch.ones_like(values)


def make_token_weights(y: Tensor, ignored: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return a tensor shaped like `y`: 0 for each token in `ignored`, 1 for the others.

    Args:
        y: Tokens `[B, T]`.
        ignored: Tokens without weight, such as padding.
        dtype: Type of the weights: that of the model's outputs.
    """
    weights = torch.ones_like(y, dtype=dtype)
    for token in ignored:
        weights = weights * (y != token)
    return weights


def cross_entropy(outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the cross-entropy of `outputs` `[B, classes, ...]` against integer classes."""
    return mean_per_example(nnf.cross_entropy(outputs, y, reduction="none"))


def binary_cross_entropy(outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the binary cross-entropy of logits `[B, labels]`, averaged over the labels."""
    targets = y.to(outputs.dtype)
    return mean_per_example(
        nnf.binary_cross_entropy_with_logits(outputs, targets, reduction="none")
    )


def squared_error(outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the squared error, averaged over an example's outputs."""
    return mean_per_example((outputs - y.reshape(outputs.shape)) ** 2)


def token_cross_entropy(
    padding: tuple[int, ...], outputs: Tensor, y: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the cross-entropy summed over an example's tokens, with their number as weight.

    Args:
        padding: Tokens that do not count.
        outputs: Logits `[B, T, vocabulary]`.
        y: Tokens `[B, T]`.
    """
    weights = make_token_weights(y, padding, outputs.dtype)
    targets = torch.where(weights > 0, y, 0)  # padding may lie outside the vocabulary
    token_losses = nnf.cross_entropy(outputs.transpose(1, 2), targets, reduction="none")
    return (token_losses * weights).sum(1), weights.sum(1)
