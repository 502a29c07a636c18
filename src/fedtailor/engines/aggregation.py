"""Aggregation of a cohort's updates, which arrive in stacks of clients."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fedtailor.core import trees
from fedtailor.core.types import Method, Tree


class UpdateAggregator:
    """The weighted mean of a cohort's updates, or the result of the method's own rule.

    A rule needs all updates at once. For the mean only the weighted sum of the stacks so far is
    kept, so that memory does not grow with the cohort.

    Args:
        method: Its `aggregate` is the rule; None is the weighted mean.
        trace_once: Replaces a function by its graph where steps run as programs.
        is_single_stack: Whether all updates arrive in one stack; their mean is then one operation.
    """

    def __init__(
        self,
        method: Method,
        trace_once: Callable[[Any], Any] = lambda function: function,
        is_single_stack: bool = False,
    ) -> None:
        self._aggregate = method.aggregate
        self._trace_once = trace_once
        self._is_single_stack = is_single_stack
        self._stacks: list[Tree] = []
        self._weights: list[Tensor] = []

    def add(self, updates: Tree, weights: Tensor) -> None:
        """Add stacked updates, [clients, ...], with their weights, [clients]."""
        self._weights.append(weights)
        if self._aggregate is not None or self._is_single_stack:
            self._stacks.append(updates)
            return
        weighted_sum = self._trace_once(_compute_weighted_sum)(updates, weights)
        if self._stacks:
            weighted_sum = trees.add(self._stacks.pop(), weighted_sum)
        self._stacks.append(weighted_sum)

    def compute_update(self) -> Tree:
        """Return the aggregated update; the mean is zero if all weights are."""
        weights = torch.cat(self._weights) if len(self._weights) > 1 else self._weights[0]
        if self._aggregate is not None:
            return self._aggregate(trees.concat(self._stacks), weights)
        if self._is_single_stack:
            return self._trace_once(_compute_weighted_mean)(self._stacks[0], weights)
        return self._trace_once(_divide_by_total_weight)(self._stacks[0], weights)


def _compute_weighted_mean(updates: Tree, weights: Tensor) -> Tree:
    return trees.weighted_sum(updates, weights / _compute_total_weight(weights))


def _compute_weighted_sum(updates: Tree, weights: Tensor) -> Tree:
    """Return the weighted sum as a stack of one row."""
    return trees.apply(lambda leaf: leaf[None], trees.weighted_sum(updates, weights))


def _divide_by_total_weight(weighted_sum: Tree, weights: Tensor) -> Tree:
    """Return the mean from a weighted sum in a stack of one row."""
    total = _compute_total_weight(weights)
    return trees.apply(lambda leaf: leaf[0] / total.to(leaf.dtype), weighted_sum)


def _compute_total_weight(weights: Tensor) -> Tensor:
    """Return the sum of the weights, or 1 if it is 0; the device is not waited for."""
    total = weights.sum()
    return torch.where(total > 0, total, torch.ones_like(total))
