"""How much memory clients need, measured on a few of them, and how many are stacked at a time because of that."""

import os
import weakref
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

MOST = 256
"""Clients at a time; more of them no longer make a step cheaper per client."""


BESIDE = "FEDTAILOR_PROCESSES"
"""The environment's name for how many processes share a machine, if they are told."""


class Peak(TorchDispatchMode):
    """Counts the bytes of tensors made inside that are alive at the same time; `most` is the most there ever were."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.most = self._alive = 0
        self._known: dict[int, Any] = {}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Does what was asked for, and looks at what came of it."""
        for leaf in tree_leaves((args, kwargs)):
            self._add(leaf, made=False)
        result = function(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            self._add(leaf, made=True)
        return result

    def _add(self, leaf: Any, made: bool) -> None:
        """Counts a tensor's storage, if it is a tensor's, once, and if it was not there before."""
        if isinstance(leaf, Tensor) and (name := (storage := leaf.untyped_storage())._cdata) not in self._known:
            size = storage.nbytes() if made else 0
            self._known[name] = weakref.finalize(storage, self._drop, name, size)
            self._alive += size
            self.most = max(self.most, self._alive)

    def _drop(self, name: int, size: int) -> None:
        self._alive -= size
        del self._known[name]


def chunk_that_fits(each: int, device: torch.device) -> int:
    """How many clients that need so many bytes each are stacked: a power of two, so that it seldom changes."""
    fits = min(MOST, _room(device) // max(1, each))
    return 1 << max(0, fits.bit_length() - 1)


def _room(device: torch.device) -> int:
    """The bytes that stacks may take: half of what a GPU has free, or a quarter of all memory that there is.

    Processes that work side by side have that together.
    """
    if device.type == "cuda":
        whole = torch.cuda.mem_get_info(device)[1] if BESIDE in os.environ else torch.cuda.mem_get_info(device)[0]
        return whole // 2 // int(os.environ.get(BESIDE, 1))
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4 // int(os.environ.get(BESIDE, 1))
