"""From the updates of a cohort to the one update that the server works with."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fedtailor.core import trees
from fedtailor.core.types import Method, Tree


class UpdateAggregator:
    """Turns changes, as they arrive, into the one change that the server works with.

    Without a `combine` rule only the running weighted sum is kept, whatever the size of the cohort, unless all changes
    come `at_once`.
    """

    def __init__(
        self,
        method: Method,
        trace_once: Callable[[Any], Any] = lambda function: function,
        is_single_stack: bool = False,
    ) -> None:
        self._aggregate, self._trace_once, self._is_single_stack = (
            method.aggregate,
            trace_once,
            is_single_stack,
        )
        self._stacks: list[Tree] = []
        self._weights: list[Tensor] = []

    def add(self, updates: Tree, weights: Tensor) -> None:
        """Takes stacked changes with a weight for each."""
        if self._aggregate is None and not self._is_single_stack:
            updates = self._trace_once(_weighted_sum)(updates, weights)
            if self._stacks:
                updates = trees.add(self._stacks.pop(), updates)
        self._stacks.append(updates)
        self._weights.append(weights)

    def result(self) -> Tree:
        """The weighted mean of all changes, or what the combining rule makes of them."""
        weights = torch.cat(self._weights) if len(self._weights) > 1 else self._weights[0]
        if self._aggregate is not None:
            return self._aggregate(trees.concat(self._stacks), weights)
        return self._trace_once(
            _weighted_mean if self._is_single_stack else _divide_by_total_weight
        )(self._stacks[0], weights)


def _weighted_mean(updates: Tree, weights: Tensor) -> Tree:
    return trees.weighted_sum(updates, weights / _total_weight(weights))


def _weighted_sum(updates: Tree, weights: Tensor) -> Tree:
    return trees.apply(lambda x: x[None], trees.weighted_sum(updates, weights))


def _divide_by_total_weight(weighted_sum: Tree, weights: Tensor) -> Tree:
    """The mean, from the sum and all weights."""
    total = _total_weight(weights)
    return trees.apply(lambda x: x[0] / total.to(x.dtype), weighted_sum)


def _total_weight(weights: Tensor) -> Tensor:
    """All weights together; if nobody counts, 1, so that nothing changes."""
    total = weights.sum()
    return torch.where(total > 0, total, torch.ones_like(total))
