"""How much memory clients need, measured on a few of them, and how many are stacked at a time because of that.

On a CPU a large stack of small networks is taken through its steps in parts whose weights stay in the cache.
"""

import os
import weakref
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

MOST = 256
"""Clients at a time; more of them no longer make a step cheaper per client."""
CACHED = 1 << 23
"""Bytes of cache that a thread's clients may fill."""
FEWEST = 4
"""Clients that a thread has in a part, so that all have as much to do."""

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


def parts_that_stay(count: int, each: int) -> list[slice]:
    """A stack of clients, whose carries take so many bytes each, in parts that stay in cache from step to step.

    A step has weights, gradients and what it makes of both, about four times a carry. Parts are of one size, for which
    code is compiled once, where that divides the stack; where there is but one part, it is the whole stack.
    """
    threads = torch.get_num_threads()
    size = threads * max(FEWEST, CACHED // (4 * max(1, each)))
    alike = [some for some in range(-(-size // 2), min(count, size + size // 2) + 1) if count % some == 0]
    if count < 2 * size:
        return [slice(0, count)]
    if alike:
        size = min(alike, key=lambda some: abs(some - size))
        return [slice(at, at + size) for at in range(0, count, size)]
    ends = [count * part // (count // size) for part in range(count // size + 1)]
    return [slice(*each) for each in pairwise(ends)]


def _room(device: torch.device) -> int:
    """The bytes that stacks may take: half of what a GPU has free, or a quarter of all memory that there is.

    Processes that work side by side have that together.
    """
    if device.type == "cuda":
        whole = torch.cuda.mem_get_info(device)[1] if BESIDE in os.environ else torch.cuda.mem_get_info(device)[0]
        return whole // 2 // int(os.environ.get(BESIDE, 1))
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4 // int(os.environ.get(BESIDE, 1))
