"""Functions traced into graphs of elementary operations, for arguments of fixed shapes.

A function is traced once, through `vmap` and `grad`. Calling its graph costs the CPU little, and a
compiler that gets the graph need not understand Python. Operations with their own derivative, or
their own rule for `vmap`, stay whole in it.
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
"""Functions that replace operations in a graph."""


def trace(
    function: Callable[..., None],
    args: tuple[Tree, ...],
    decompositions: Decompositions | None = None,
) -> GraphModule:
    """Trace a function that writes its results into its arguments.

    Args:
        function: Function of trees.
        args: Its arguments, which are neither read nor written here.
        decompositions: Functions that replace operations; None replaces nothing.

    Returns:
        A graph that takes the leaves of the arguments.
    """
    return _make_graph(_FlatFunction(function, args), trees.leaves(args), decompositions)


def trace_step(
    step: Callable[..., Tree], shared_input: Tree, carry: Tree, batches: Tree
) -> Callable[..., list[Tensor]] | None:
    """Return the graph of a step, from the leaves of its arguments to those of the new carry.

    Args:
        step: Step of a client.
        shared_input: Input that all clients have in common.
        carry: Carry of a client; like the other arguments, it is not written to.
        batches: Batches of the step.

    Returns:
        The graph; None if the step cannot be traced, or if its carry changes its shape.
    """
    if not can_record_operations():
        return None
    args = (shared_input, carry, batches)
    function = _FlatFunction(step, args)
    try:
        graph = _make_graph(function, trees.leaves(args))
    except Exception:  # the step runs as it is
        return None
    if trees.signature(function.output_tree) != trees.signature(carry):
        return None
    return graph.forward


class TracedFunction:
    """A pure function of trees, traced when it is called a second time with arguments of one kind.

    Arguments are of one kind if their trees, shapes and dtypes are the same.
    """

    def __init__(self, function: Callable[..., Tree]) -> None:
        self._function = function
        # None after the first call with arguments of a kind, which is not worth a trace yet.
        self._graphs: dict[Hashable, _Graph | None] = {}

    def __call__(self, *args: Tree) -> Tree:
        """Return the result of the function."""
        signature = trees.signature(args)
        if signature not in self._graphs:
            self._graphs[signature] = None
            return self._function(*args)
        graph = self._graphs[signature]
        if graph is None:
            if not can_record_operations():
                return self._function(*args)
            graph = _Graph(self._function, args)
            self._graphs[signature] = graph
        return graph(args)


class _Graph:
    """The graph of a pure function of trees, for arguments of one kind."""

    def __init__(self, function: Callable[..., Tree], args: tuple[Tree, ...]) -> None:
        flat_function = _FlatFunction(function, args)
        self._forward = _make_graph(flat_function, trees.leaves(args)).forward
        # Only the shape of the tree is needed, so its traced leaves need not be kept.
        placeholder = torch.empty(0)
        self._output_tree = trees.apply(lambda _: placeholder, flat_function.output_tree)

    def __call__(self, args: tuple[Tree, ...]) -> Tree:
        return trees.unflatten(self._output_tree, self._forward(*trees.leaves(args)))


class _FlatFunction:
    """A function of trees as a function of their leaves; `output_tree` is what it returned last."""

    def __init__(self, function: Callable[..., Tree], args: tuple[Tree, ...]) -> None:
        self._function = function
        self._args = args
        self.output_tree: Tree = ()

    def __call__(self, *leaves: Tensor) -> list[Tensor]:
        self.output_tree = self._function(*trees.unflatten(self._args, leaves))
        return trees.leaves(self.output_tree)


def _make_graph(
    function: Callable[..., Any],
    leaves: Sequence[Tensor],
    decompositions: Decompositions | None = None,
) -> GraphModule:
    """Return the graph of the operations that results and writes depend on."""
    graph_module = record_operations(function, leaves, decompositions)
    graph_module.graph.eliminate_dead_code()
    graph_module.recompile()
    return graph_module
