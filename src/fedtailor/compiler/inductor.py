"""Steps compiled by Inductor, torch's compiler, with its bugs worked around."""

import os
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import torch
from torch.fx import GraphModule

from fedtailor.compat.torch_internals import compile_graph, patch_write_order, teach_decomposition
from fedtailor.compiler.decompositions import DECOMPOSITIONS, DecomposeGroupNorm
from fedtailor.compiler.trace import trace
from fedtailor.core import trees
from fedtailor.core.stopwatch import time_phase
from fedtailor.core.types import Tree
from fedtailor.ops.cpp_build import INDUCTOR_CACHE_ENV
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
        removed_paths: list[str] = []
        while True:
            graph = _trace_for_inductor(function, args)
            try:
                return partial(compile_graph(graph, leaves), *leaves)
            except Exception as problem:
                path = _find_unloadable_library(problem)
                if path in removed_paths or not _remove_unfinished_library(path):
                    raise
                removed_paths.append(path)


def _find_unloadable_library(problem: BaseException) -> str:
    """Return the library that could not be loaded; "" if an error has another cause."""
    cause: BaseException | None = problem
    while cause is not None:
        if isinstance(cause, ImportError) and cause.path:
            return cause.path
        cause = cause.__cause__ or cause.__context__
    return ""


def _remove_unfinished_library(path: str) -> bool:
    """Remove a library that cannot be loaded from torch's cache; return whether it was there.

    A process that is killed while it compiles leaves an unfinished one, which torch would load
    ever after.
    """
    cache_dir = os.environ.get(INDUCTOR_CACHE_ENV)
    if cache_dir is None:
        return False
    library = Path(path)
    if library.suffix != ".so" or not library.is_relative_to(cache_dir) or not library.is_file():
        return False
    library.unlink(missing_ok=True)
    return True


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
