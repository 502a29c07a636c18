"""The GPU code under test: the one place where it is imported, and what tests change about it.

Kernels are interpreted, unless the process was started with TRITON_INTERPRET=0: then they can be
compiled. Triton reads that when it is imported, so these tests need processes of their own.
"""

import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType
from typing import Any

os.environ.setdefault("TRITON_INTERPRET", "1")
INTERPRETED = os.environ["TRITON_INTERPRET"] == "1"

import interpreting  # noqa: E402
import pytest  # noqa: E402
import torch  # noqa: E402

from fedtailor import prng  # noqa: E402
from fedtailor.compiler import inductor  # noqa: E402
from fedtailor.core import trees  # noqa: E402
from fedtailor.engines import factory  # noqa: E402
from fedtailor.ops import conv2d, conv2d_triton  # noqa: E402
from fedtailor.ops.lstm import lstm_layer  # noqa: E402
from fedtailor.prng import threefry, threefry_triton  # noqa: E402

__all__ = [
    "INTERPRETED",
    "conv2d",
    "conv2d_triton",
    "factory",
    "interpreting",
    "list_for_compiler",
    "lstm_layer",
    "pretend_gpu",
    "prng",
    "put_everywhere",
    "threefry",
    "threefry_triton",
]

if INTERPRETED:
    interpreting.mend()


def put_everywhere(patch: pytest.MonkeyPatch, name: str, value: Any) -> None:
    """Gives a name another value in all modules of the library that have it; there must be one."""
    having = [module for module in _modules() if name in vars(module)]
    assert having, f"no module of the library has a {name}"
    for module in having:
        patch.setattr(module, name, value)


def pretend_gpu(patch: pytest.MonkeyPatch) -> None:
    """Has all tensors say that they lie on a GPU, and the library that it has kernels for it."""
    patch.setattr(torch.Tensor, "is_cuda", property(lambda _: True))
    put_everywhere(patch, "has_kernels_for", lambda _: True)


def list_for_compiler(
    function: Callable[..., None], given: tuple[Any, ...]
) -> tuple[Callable[[], object], list[str]]:
    """What the compiler is given for a GPU in place of a function, to be called as it is, and its
    operations.
    """
    graph = inductor._trace_for_inductor(function, given)
    return partial(graph, *trees.leaves(given)), [str(node.target) for node in graph.graph.nodes]


def _modules() -> Iterator[ModuleType]:
    loaded = list(sys.modules.items())
    return (module for name, module in loaded if name.partition(".")[0] == "fedtailor")
