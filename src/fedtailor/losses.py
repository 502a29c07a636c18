"""Losses and metrics, example by example. Every figure is a ratio of sums, so it can be gathered in any order."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as nnf

PerExample = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""(outputs, y) -> for each example a sum and a weight; a figure over many examples is sum of sums / sum of weights."""


class Metric(NamedTuple):
    """A figure by which models are compared."""

    name: str
    of: PerExample
    higher_is_better: bool


def masked_sums(pairs: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
    """The pair (sum of sums, sum of weights) over the real examples."""
    return torch.stack(_masked_totals(pairs, mask))


def worst_unless(finite: Tensor, pairs: tuple[Tensor, Tensor], higher_is_better: bool) -> tuple[Tensor, Tensor]:
    """Pairs in which an example that is not finite has the worst sum there is."""
    return torch.where(finite, pairs[0], 0.0 if higher_is_better else torch.inf), pairs[1]


def ratio(pairs: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
    """The mean over the real examples; 0 if there is nothing to count."""
    total, weight = _masked_totals(pairs, mask)
    return total / weight.clamp(min=1.0)


def _masked_totals(pairs: tuple[Tensor, Tensor], mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sum of sums and the sum of weights; padding may have any sum, even none that is finite."""
    sums, weights = pairs
    return torch.where(mask > 0, sums * mask, 0).sum(), (weights * mask).sum()


def _each(values: Tensor) -> tuple[Tensor, Tensor]:
    """Mean over everything but the first dimension, each example with weight 1."""
    flat = values.flatten(1).mean(1) if values.dim() > 1 else values
    return flat, torch.ones_like(flat)


def cross_entropy(outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Of classes."""
    return _each(nnf.cross_entropy(outputs, y, reduction="none"))


def hits(outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """1 for the right class."""
    return _each((outputs.argmax(1) == y).to(outputs.dtype))


def binary_cross_entropy(outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Mean over labels."""
    return _each(nnf.binary_cross_entropy_with_logits(outputs, y.to(outputs.dtype), reduction="none"))


def label_hits(outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The share of right labels."""
    return _each(((outputs > 0) == (y > 0)).to(outputs.dtype))


def f1(outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """2 true positives over what was said plus what is true, over all labels and examples."""
    said, true = (outputs > 0).to(outputs.dtype).flatten(1), (y > 0).to(outputs.dtype).flatten(1)
    return 2 * (said * true).sum(1), said.sum(1) + true.sum(1)


def squared_error(outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Mean over outputs."""
    return _each((outputs - y.reshape(outputs.shape)) ** 2)


def absolute_error(outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Mean over outputs."""
    return _each((outputs - y.reshape(outputs.shape)).abs())


def _tokens_that_count(y: Tensor, left_out: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    counts = torch.ones_like(y, dtype=dtype)
    for token in left_out:
        counts = counts * (y != token)
    return counts


def token_losses(padding: tuple[int, ...], outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Cross-entropy summed over the tokens that are no padding."""
    counts = _tokens_that_count(y, padding, outputs.dtype)
    known = torch.where(counts > 0, y, 0)  # padding may lie outside the vocabulary
    return (nnf.cross_entropy(outputs.transpose(1, 2), known, reduction="none") * counts).sum(1), counts.sum(1)


def token_hits(left_out: tuple[int, ...], outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Right tokens among those that count."""
    counts = _tokens_that_count(y, left_out, outputs.dtype)
    return ((outputs.argmax(2) == y) * counts).sum(1), counts.sum(1)
