"""Steps recorded as CUDA graphs."""

from functools import partial
from typing import Any

import torch

from fedtailor.compiler.inductor import BoundStep

_KEEPALIVE_GRAPHS: dict[torch.device, torch.cuda.CUDAGraph] = {}


def _record_graph(function: BoundStep, device: torch.device) -> torch.cuda.CUDAGraph:
    """What a function does, as a graph.

    All graphs of a process share their passing memory: they run one after another, and keep nothing in it. A first one,
    which does next to nothing, is kept, since torch gives the memory up with the last graph that has it.
    """
    if device not in _KEEPALIVE_GRAPHS:
        _KEEPALIVE_GRAPHS[device] = _capture_graph(partial(torch.zeros, 1, device=device), None)
    return _capture_graph(function, _KEEPALIVE_GRAPHS[device].pool())


def _capture_graph(function: BoundStep, pool: Any) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        function()
    return graph
