"""Steps compiled by Inductor, torch's compiler, with its bugs worked around."""

from collections.abc import Callable
from functools import cache, partial

import torch
from torch.fx import GraphModule

from fedtailor.compat.torch_internals import compile_graph, patch_write_order, teach_decomposition
from fedtailor.compiler.decompositions import DECOMPOSITIONS, DecomposeGroupNorm
from fedtailor.compiler.trace import trace
from fedtailor.core import trees
from fedtailor.core.stopwatch import time_phase
from fedtailor.core.types import Tree
from fedtailor.prng import threefry

BoundStep = Callable[[], object]
"""A step with its arguments, which are read and written in place whenever it is called."""

Backend = Callable[[Callable[..., None], tuple[Tree, ...]], BoundStep]
"""Binds a function to its arguments, with or without compiling it."""


def bind_eager(function: Callable[..., None], args: tuple[Tree, ...]) -> BoundStep:
    """Bind a function to its arguments without compiling it."""
    return partial(function, *args)


def bind_compiled(function: Callable[..., None], args: tuple[Tree, ...]) -> BoundStep:
    """Compile a function for its arguments and bind it to them.

    A call skips the checks of arguments that `torch.compile` would do each time.
    """
    with time_phase("compiling"):
        leaves = trees.leaves(args)
        graph = _trace_for_inductor(function, args)
        return partial(compile_graph(graph, leaves), *leaves)


def _trace_for_inductor(function: Callable[..., None], args: tuple[Tree, ...]) -> GraphModule:
    """Return the graph of a function, with operations that Inductor compiles right and well."""
    _register_rng_decomposition()
    patch_write_order()
    with DecomposeGroupNorm():
        graph = trace(function, args, DECOMPOSITIONS)
    multiply_out_alpha(graph)
    return graph


def multiply_out_alpha(graph: GraphModule) -> None:
    """Replace `add(a, b, alpha)` by `add(a, alpha * b)` throughout a graph.

    Inductor (torch 2.13 and before) drops `alpha` where it fuses the sum with a matrix product into
    one `addmm`, and the result is silently wrong.
    """
    for node in graph.graph.nodes:
        alpha = node.kwargs.get("alpha", 1)
        if node.target is not torch.ops.aten.add.Tensor or alpha == 1:
            continue
        first, second = node.args
        with graph.graph.inserting_before(node):
            scaled = graph.graph.call_function(torch.ops.aten.mul.Tensor, (second, alpha))
        node.args = (first, scaled)
        node.kwargs = {}
    graph.recompile()


@cache
def _register_rng_decomposition() -> None:
    """Tell Inductor, once, which elementary operations draw random bits."""
    teach_decomposition(torch.ops.fedtailor.threefry.default, threefry.threefry_reference)
