"""Steps captured as CUDA graphs."""

from functools import partial
from typing import Any

import torch

from fedtailor.compiler.inductor import BoundStep

_KEEPALIVE_GRAPHS: dict[torch.device, torch.cuda.CUDAGraph] = {}
"""One graph per device that is never replayed: it keeps the memory pool of all others alive."""


def capture_graph(function: BoundStep, device: torch.device) -> torch.cuda.CUDAGraph:
    """Capture the operations of `function` as a graph, without executing them.

    All graphs of a process share one memory pool for temporary tensors: they are replayed one after
    another and keep nothing in it.
    """
    if device not in _KEEPALIVE_GRAPHS:
        # Torch frees a pool with the last graph that uses it, so a tiny graph is kept for good.
        tiny_step = partial(torch.zeros, 1, device=device)
        _KEEPALIVE_GRAPHS[device] = _capture_in_pool(tiny_step, None)
    return _capture_in_pool(function, _KEEPALIVE_GRAPHS[device].pool())


def _capture_in_pool(function: BoundStep, pool: Any) -> torch.cuda.CUDAGraph:
    """Capture a graph whose temporary tensors are in `pool`; None gives it a pool of its own."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        function()
    return graph
