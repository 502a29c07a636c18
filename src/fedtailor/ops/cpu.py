"""Capabilities of the CPU, and settings of the C library's allocator."""

import ctypes
import os
import sys
from collections.abc import Hashable
from functools import cache

import torch

# Parameters of mallopt, as malloc.h numbers them.
_TRIM_THRESHOLD = -1
_MMAP_THRESHOLD = -3

# Free memory at the top of the heap, in bytes, beyond which it goes back to the system.
_TRIM_BYTES = 1 << 28
# Size of an allocation, in bytes, from which it is mapped by itself and unmapped when it is freed.
_MMAP_BYTES = 1 << 25


@cache
def tune_malloc() -> None:
    """Let this process keep memory that it frees, where the C library is glibc.

    Every step frees its tensors, and the next step allocates the same amount again: from the
    system it would come page by page, filled with zeros.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _MMAP_BYTES)
        mallopt(_TRIM_THRESHOLD, _TRIM_BYTES)


def count_processors() -> int:
    """Return the number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def get_cpu_signature() -> tuple[Hashable, ...]:
    """Return the platform and the capabilities of this CPU, which compiled code depends on."""
    return sys.platform, *sorted(torch.cpu.get_capabilities().items())


def has_native_bf16() -> bool:
    """Return whether this CPU multiplies bf16 in hardware."""
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(name, False) for name in ("amx_bf16", "avx512_bf16", "bf16"))
