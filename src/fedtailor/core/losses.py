"""Losses and metrics, example by example. Every figure is a ratio of sums, so it can be gathered in any order."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as nnf

PerExample = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""(outputs, y) -> for each example a sum and a weight; a figure over many examples is sum of sums / sum of weights."""


def masked_sums(pairs: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
    """The pair (sum of sums, sum of weights) over the real examples."""
    return torch.stack(_masked_totals(pairs, mask))


def masked_mean(pairs: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
    """The mean over the real examples; 0 if there is nothing to count."""
    total, weight = _masked_totals(pairs, mask)
    return total / weight.clamp(min=1.0)


def _masked_totals(pairs: tuple[Tensor, Tensor], mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sum of sums and the sum of weights; padding may have any sum, even none that is finite."""
    sums, weights = pairs
    return torch.where(mask > 0, sums * mask, 0).sum(), (weights * mask).sum()


def _mean_per_example(values: Tensor) -> tuple[Tensor, Tensor]:
    """Mean over everything but the first dimension, each example with weight 1."""
    flat = values.flatten(1).mean(1) if values.dim() > 1 else values
    return flat, torch.ones_like(flat)


def cross_entropy(outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Of classes."""
    return _mean_per_example(nnf.cross_entropy(outputs, y, reduction="none"))


def binary_cross_entropy(outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Mean over labels."""
    return _mean_per_example(
        nnf.binary_cross_entropy_with_logits(outputs, y.to(outputs.dtype), reduction="none")
    )


def squared_error(outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Mean over outputs."""
    return _mean_per_example((outputs - y.reshape(outputs.shape)) ** 2)


def _token_mask(y: Tensor, ignored: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    counts = torch.ones_like(y, dtype=dtype)
    for token in ignored:
        counts = counts * (y != token)
    return counts


def token_cross_entropy(
    padding: tuple[int, ...], outputs: Tensor, y: Tensor
) -> tuple[Tensor, Tensor]:
    """Cross-entropy summed over the tokens that are no padding."""
    counts = _token_mask(y, padding, outputs.dtype)
    known = torch.where(counts > 0, y, 0)  # padding may lie outside the vocabulary
    return (nnf.cross_entropy(outputs.transpose(1, 2), known, reduction="none") * counts).sum(
        1
    ), counts.sum(1)
