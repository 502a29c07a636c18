"""The GPU code under test: the one place where it is imported, and what tests change about it.

Kernels are interpreted, unless the process was started with TRITON_INTERPRET=0: then they can be
compiled. Triton reads that when it is imported, so these tests need processes of their own.
"""

import os
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

os.environ.setdefault("TRITON_INTERPRET", "1")
INTERPRETED = os.environ["TRITON_INTERPRET"] == "1"

import interpreting  # noqa: E402
import pytest  # noqa: E402
import torch  # noqa: E402

from fedtailor import engines, kernels  # noqa: E402

__all__ = ["INTERPRETED", "engines", "interpreting", "kernels", "pretend_gpu", "put_everywhere"]

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
    put_everywhere(patch, "works_on", lambda _: True)


def _modules() -> Iterator[ModuleType]:
    loaded = list(sys.modules.items())
    return (module for name, module in loaded if name.partition(".")[0] == "fedtailor")
