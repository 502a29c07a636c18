"""What a processor can do, and what its C library is told."""

import ctypes
import sys
from collections.abc import Hashable
from functools import cache

import torch

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # as malloc.h numbers them


_TRIM_BYTES, _MMAP_BYTES = 1 << 28, 1 << 25
"""Bytes that are kept when they are freed, and from which on something gets memory of its own, which is not."""


@cache
def tune_malloc() -> None:
    """Has this process keep memory that is freed, where the system's C library can be told to.

    Every step frees what it made, and the next one wants it again: from the system, that is page by page, with zeros.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _MMAP_BYTES)
        mallopt(_TRIM_THRESHOLD, _TRIM_BYTES)


def cpu_signature() -> tuple[Hashable, ...]:
    """What code for this processor alone depends on."""
    return sys.platform, *sorted(torch.cpu.get_capabilities().items())


def has_native_bf16() -> bool:
    """Whether this processor multiplies bfloat16 by itself."""
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(name, False) for name in ("amx_bf16", "avx512_bf16", "bf16"))
