"""Sizes of stacks of clients, from the memory that a few clients were measured to need.

On a CPU, a large stack of small networks takes its steps in slices whose weights stay in the cache.
"""

import os
import weakref
from itertools import pairwise
from typing import Any, Self

import torch
from torch import Tensor

from fedtailor.compat.torch_internals import flatten_tree, identify_storage, intercept_operations

MAX_CHUNK = 256
"""Maximum number of stacked clients; in larger stacks a step is no cheaper per client."""
CACHE_BYTES = 1 << 23
"""Bytes of cache that the clients of one thread may fill."""
MIN_CLIENTS_PER_THREAD = 4
"""Minimum number of clients per thread in a slice, so that all threads have about equal work."""

MAX_LOOP_BYTES = 1 << 26
"""Bytes of models of clients that step one after another and wait for each other in a stack."""

NUM_PROCESSES_ENV = "FEDTAILOR_PROCESSES"
"""Environment variable with the number of processes that share this machine."""


class PeakMemory:
    """Context that measures the memory of the tensors that are created in it.

    `peak_bytes` is the maximum number of bytes that were alive at the same time; it is 0 where
    torch has no hook for intercepting operations.
    """

    def __init__(self) -> None:
        self.peak_bytes = 0
        self._live_bytes = 0
        self._storages: dict[int, Any] = {}
        self._interception = intercept_operations(self._run_and_track)

    def __enter__(self) -> Self:
        self._interception.__enter__()
        return self

    def __exit__(self, *problem: Any) -> None:
        self._interception.__exit__(*problem)

    def _run_and_track(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the result of an operation, with the storages of its results counted."""
        for leaf in flatten_tree((args, kwargs)):
            self._track(leaf, is_new=False)
        result = function(*args, **kwargs)
        for leaf in flatten_tree(result):
            self._track(leaf, is_new=True)
        return result

    def _track(self, leaf: Any, is_new: bool) -> None:
        """Count the storage of a tensor until it is freed; one from outside counts as empty."""
        if not isinstance(leaf, Tensor):
            return
        storage = leaf.untyped_storage()
        storage_id = identify_storage(storage)
        if storage_id in self._storages:
            return
        size = storage.nbytes() if is_new else 0
        self._storages[storage_id] = weakref.finalize(storage, self._release, storage_id, size)
        self._live_bytes += size
        self.peak_bytes = max(self.peak_bytes, self._live_bytes)

    def _release(self, storage_id: int, size: int) -> None:
        self._live_bytes -= size
        del self._storages[storage_id]


def compute_max_chunk_size(bytes_per_client: int, device: torch.device) -> int:
    """Return the number of clients that fit on a device, rounded down to a power of two.

    Rounding keeps the number the same if a little less memory is free.

    Args:
        bytes_per_client: Peak memory of a client.
        device: Device of the stacks.
    """
    num_clients = min(MAX_CHUNK, _compute_available_bytes(device) // max(1, bytes_per_client))
    return _round_down(num_clients)


def compute_loop_chunk_size(bytes_per_model: int) -> int:
    """Return the number of clients in a stack whose members step one after another on a CPU.

    They gain nothing from each other, and memory for many large models is slow: the system clears
    its pages in every round.
    """
    return _round_down(min(MAX_CHUNK, MAX_LOOP_BYTES // max(1, bytes_per_model)))


def compute_cache_sized_slices(num_clients: int, bytes_per_client: int) -> list[slice]:
    """Return slices of a stack of clients that stay in the cache of a CPU from step to step.

    A stack that is too small for two slices stays whole. Otherwise all slices have the same size,
    for which code is compiled once, if a size close to the ideal one divides the stack; if none
    does, their sizes differ by at most 1.

    Args:
        num_clients: Number of clients in the stack.
        bytes_per_client: Size of a client's carry.
    """
    # A step works on weights, gradients and values that it computes from both.
    step_bytes = 4 * max(1, bytes_per_client)
    clients_per_thread = max(MIN_CLIENTS_PER_THREAD, CACHE_BYTES // step_bytes)
    ideal_size = torch.get_num_threads() * clients_per_thread
    if num_clients < 2 * ideal_size:
        return [slice(0, num_clients)]
    candidates = range(-(-ideal_size // 2), ideal_size + ideal_size // 2 + 1)
    divisors = [size for size in candidates if num_clients % size == 0]
    size = min(divisors, key=lambda size: abs(size - ideal_size), default=ideal_size)
    num_slices = num_clients // size
    bounds = [num_clients * index // num_slices for index in range(num_slices + 1)]
    return [slice(begin, end) for begin, end in pairwise(bounds)]


def _round_down(num_clients: int) -> int:
    """Return the power of two below a number, and at least 1."""
    return 1 << max(0, num_clients.bit_length() - 1)


def _compute_available_bytes(device: torch.device) -> int:
    """Return the bytes that the stacks of this process may take.

    That is half of a GPU's memory, or a quarter of all RAM, shared equally by the processes of this
    machine.
    """
    num_processes = int(os.environ.get(NUM_PROCESSES_ENV, 1))
    if device.type != "cuda":
        ram_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return ram_bytes // 4 // num_processes
    free_bytes, total_bytes = torch.cuda.mem_get_info(device)
    if NUM_PROCESSES_ENV in os.environ:
        # What is free depends on what the other processes have allocated so far.
        return total_bytes // 2 // num_processes
    return free_bytes // 2 // num_processes
