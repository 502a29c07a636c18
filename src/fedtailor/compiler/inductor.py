"""Traced steps as code that Inductor compiles, with its bugs worked around."""

from collections.abc import Callable
from functools import cache, partial
from typing import Literal

import torch
from torch.fx import GraphModule

from fedtailor.compat.torch_internals import compile_graph, patch_write_order, teach_decomposition
from fedtailor.compiler.decompositions import DECOMPOSITIONS, DecomposeGroupNorm
from fedtailor.compiler.trace import trace
from fedtailor.core import trees
from fedtailor.core.types import Tree
from fedtailor.prng import threefry

BoundStep = Callable[[], object]


Backend = Callable[[Callable[..., None], tuple[Tree, ...]], BoundStep]
"""Makes of a function and what it is given something that only has to be called."""


CompileMode = bool | Literal["training"]
"""Whether steps are compiled: all, none, or those of training but not those of personalizing and scoring."""


def bind_eager(function: Callable[..., None], args: tuple[Tree, ...]) -> BoundStep:
    """A function with what it is given."""
    return partial(function, *args)


def bind_compiled(function: Callable[..., None], args: tuple[Tree, ...]) -> BoundStep:
    """The same as compiled code, without the checks of what it is given that `torch.compile` would do each time."""
    leaves = trees.leaves(args)
    return partial(compile_graph(_trace_for_inductor(function, args), leaves), *leaves)


def _trace_for_inductor(function: Callable[..., None], args: tuple[Tree, ...]) -> GraphModule:
    """A function's list, for a compiler that knows what a draw comes down to."""
    _register_rng_decomposition()
    patch_write_order()
    with DecomposeGroupNorm():
        graph = trace(function, args, DECOMPOSITIONS)
    multiply_out_alpha(graph)
    return graph


def multiply_out_alpha(graph: GraphModule) -> None:
    """Replace `add(a, b, alpha)` by `add(a, alpha * b)` throughout a graph.

    Inductor (torch 2.13 and before) drops `alpha` where it turns the sum with a product of matrices into one `addmm`,
    and then the result is wrong without a word.
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
    """Tell the compiler what a draw's one operation comes down to, once."""
    teach_decomposition(torch.ops.fedtailor.mixed.default, threefry.threefry_reference)
