"""Functions as the lists of plain operations that they come down to for tensors of certain shapes.

Such a list is found once, by following the function through `vmap` and `grad`. Going through it again costs the host
little; a compiler that is given it need not see through anything, and what has its own derivative, or its own rule for
stacks, keeps it.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from fedtailor.compat.torch_internals import can_record_operations, record_operations
from fedtailor.core import trees
from fedtailor.core.types import Tree

Decompositions = Mapping[Any, Callable[..., Any]]
"""What an operation is replaced by where a function is traced."""


def trace(
    function: Callable[..., None],
    args: tuple[Tree, ...],
    decompositions: Decompositions | None = None,
) -> GraphModule:
    """Return the graph of the operations that a function does to the leaves of its arguments."""
    return _make_graph(_FlatFunction(function, args), trees.leaves(args), decompositions)


class TracedFunction:
    """A pure function of trees of tensors, followed once for each kind of trees that it is given twice."""

    def __init__(self, function: Callable[..., Tree]) -> None:
        self._function = function
        self._graphs: dict[Hashable, tuple[Callable[..., Sequence[Tensor]], Tree] | None] = {}

    def __call__(self, *args: Tree) -> Tree:
        """What the function makes of it."""
        signature = trees.signature(args)
        if signature not in self._graphs:
            self._graphs[signature] = None
            return self._function(*args)
        found = self._graphs[signature]
        if found is None:
            if not can_record_operations():
                return self._function(*args)
            flat = _FlatFunction(self._function, args)
            operations, nothing = _make_graph(flat, trees.leaves(args)).forward, torch.empty(0)
            found = self._graphs[signature] = (
                operations,
                trees.apply(lambda _: nothing, flat.output_tree),
            )
        operations, output_tree = found
        return trees.unflatten(output_tree, operations(*trees.leaves(args)))


class _FlatFunction:
    """A function of trees as one of their leaves; `made` is the tree that it returned last."""

    def __init__(self, function: Callable[..., Tree], like: tuple[Tree, ...]) -> None:
        self._function, self._like = function, like
        self.output_tree: Tree = ()

    def __call__(self, *leaves: Tensor) -> list[Tensor]:
        self.output_tree = self._function(*trees.unflatten(self._like, leaves))
        return trees.leaves(self.output_tree)


def _make_graph(
    function: Callable[..., Any],
    leaves: Sequence[Tensor],
    decompositions: Decompositions | None = None,
) -> GraphModule:
    """Return the operations that the result depends on, found without doing them."""
    graph_module = record_operations(function, leaves, decompositions)
    graph_module.graph.eliminate_dead_code()
    graph_module.recompile()
    return graph_module
