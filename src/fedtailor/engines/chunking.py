"""How much memory clients need, measured on a few of them, and how many are stacked at a time because of that.

On a CPU a large stack of small networks is taken through its steps in parts whose weights stay in the cache.
"""

import os
import weakref
from itertools import pairwise
from typing import Any, Self

import torch
from torch import Tensor

from fedtailor.compat.torch_internals import flatten_tree, identify_storage, intercept_operations

MAX_CHUNK = 256
"""Clients at a time; more of them no longer make a step cheaper per client."""
CACHE_BYTES = 1 << 23
"""Bytes of cache that a thread's clients may fill."""
MIN_CLIENTS_PER_THREAD = 4
"""Clients that a thread has in a part, so that all have as much to do."""

NUM_PROCESSES_ENV = "FEDTAILOR_PROCESSES"
"""The environment's name for how many processes share a machine, if they are told."""


class PeakMemory:
    """Count the bytes of tensors made inside that are alive at the same time.

    `peak_bytes` is the most there ever were; 0 where torch does not let its operations be looked at.
    """

    def __init__(self) -> None:
        self.peak_bytes = self._live_bytes = 0
        self._storages: dict[int, Any] = {}
        self._interception = intercept_operations(self._run_and_track)

    def __enter__(self) -> Self:
        self._interception.__enter__()
        return self

    def __exit__(self, *problem: Any) -> None:
        self._interception.__exit__(*problem)

    def _run_and_track(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Do what was asked for, and look at what came of it."""
        for leaf in flatten_tree((args, kwargs)):
            self._track(leaf, is_new=False)
        result = function(*args, **kwargs)
        for leaf in flatten_tree(result):
            self._track(leaf, is_new=True)
        return result

    def _track(self, leaf: Any, is_new: bool) -> None:
        """Counts a tensor's storage, if it is a tensor's, once, and if it was not there before."""
        if (
            isinstance(leaf, Tensor)
            and (storage_id := identify_storage(storage := leaf.untyped_storage()))
            not in self._storages
        ):
            size = storage.nbytes() if is_new else 0
            self._storages[storage_id] = weakref.finalize(storage, self._release, storage_id, size)
            self._live_bytes += size
            self.peak_bytes = max(self.peak_bytes, self._live_bytes)

    def _release(self, storage_id: int, size: int) -> None:
        self._live_bytes -= size
        del self._storages[storage_id]


def max_chunk_size(bytes_per_client: int, device: torch.device) -> int:
    """How many clients that need so many bytes each are stacked: a power of two, so that it seldom changes."""
    fits = min(MAX_CHUNK, _available_bytes(device) // max(1, bytes_per_client))
    return 1 << max(0, fits.bit_length() - 1)


def cache_sized_slices(num_clients: int, bytes_per_client: int) -> list[slice]:
    """A stack of clients, whose carries take so many bytes each, in parts that stay in cache from step to step.

    A step has weights, gradients and what it makes of both, about four times a carry. Parts are of one size, for which
    code is compiled once, where that divides the stack; where there is but one part, it is the whole stack.
    """
    threads = torch.get_num_threads()
    size = threads * max(MIN_CLIENTS_PER_THREAD, CACHE_BYTES // (4 * max(1, bytes_per_client)))
    alike = [
        some
        for some in range(-(-size // 2), min(num_clients, size + size // 2) + 1)
        if num_clients % some == 0
    ]
    if num_clients < 2 * size:
        return [slice(0, num_clients)]
    if alike:
        size = min(alike, key=lambda some: abs(some - size))
        return [slice(at, at + size) for at in range(0, num_clients, size)]
    ends = [num_clients * part // (num_clients // size) for part in range(num_clients // size + 1)]
    return [slice(*bytes_per_client) for bytes_per_client in pairwise(ends)]


def _available_bytes(device: torch.device) -> int:
    """The bytes that stacks may take: half of what a GPU has free, or a quarter of all memory that there is.

    Processes that work side by side have that together.
    """
    if device.type == "cuda":
        whole = (
            torch.cuda.mem_get_info(device)[1]
            if NUM_PROCESSES_ENV in os.environ
            else torch.cuda.mem_get_info(device)[0]
        )
        return whole // 2 // int(os.environ.get(NUM_PROCESSES_ENV, 1))
    return (
        os.sysconf("SC_PAGE_SIZE")
        * os.sysconf("SC_PHYS_PAGES")
        // 4
        // int(os.environ.get(NUM_PROCESSES_ENV, 1))
    )
