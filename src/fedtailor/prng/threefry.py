"""Threefry-2x32 on tensors, arrays and integers: one algorithm, one custom operation.

Keys and counters are 64 bits each, a pair of words of 32 bits, of which the low word comes first.
"""

from ctypes import c_int64, c_void_p
from functools import cache, lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedtailor.compat.torch_internals import is_tracing
from fedtailor.errors import require
from fedtailor.ops import cpp_build

Array = NDArray[Any]
Keys = TypeVar("Keys", Tensor, Array)
Int = TypeVar("Int", int, Tensor, Array)  # words of 32 bits, or 64 bits that are a pair of them

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA
_FOLD_DOMAIN = 0x464F4C44
"""Domain of keys that fold; keys that draw have the domain 0."""


def make_int64(value: int, device: torch.device | None = None) -> Tensor:
    """Return 64 bits, signed or not, as an int64 tensor without dimensions."""
    return torch.full((), _to_signed(value), dtype=torch.int64, device=device)


def make_int64_like(value: int, like: Keys) -> Keys:
    """Return 64 bits, signed or not, as int64: a tensor on the device of `like`, or an array."""
    if isinstance(like, Tensor):
        return make_int64(value, like.device)
    return np.array([_to_signed(value)], dtype=np.int64)


def _to_signed(value: int) -> int:
    if value < 2**63:
        return value
    return value - 2**64


def derive_key(key: Int, value: Int) -> Int:
    """Derive the key of a name, of 64 bits, below `key`; they broadcast."""
    return dispatch_threefry(key, value, _FOLD_DOMAIN)


def dispatch_threefry(key: Int, counters: Int, domain: int) -> Int:
    """Return 64 random bits for each counter, in the fastest available way.

    Args:
        key: Keys, which broadcast with the counters.
        counters: Counters, of the same type as the keys.
        domain: 32 bits by which keys differ between uses.
    """
    if isinstance(key, Tensor) and isinstance(counters, Tensor) and should_fuse(key):
        bits: Tensor = threefry_op(key, counters, domain)
        return bits
    if (
        isinstance(key, np.ndarray)
        and isinstance(counters, np.ndarray)
        and _load_native() is not None
    ):
        return _threefry_native(key, counters, domain)
    return threefry_reference(key, counters, domain)


def _threefry_native(key: Array, counters: Array, domain: int) -> Array:
    """Return the bits for arrays by compiled code instead of a hundred small operations."""
    shape = key.shape
    if counters.shape != shape:
        shape = np.broadcast_shapes(shape, counters.shape)
    out = np.empty(shape, dtype=np.int64)
    key = _broadcast_contiguous(key, out)
    counters = _broadcast_contiguous(counters, out)
    # A single number serves all, with a step of 0.
    key_step = int(key.size > 1)
    counter_step = int(counters.size > 1)
    _load_native().threefry(
        key.ctypes.data,
        counters.ctypes.data,
        out.ctypes.data,
        key_step,
        counter_step,
        out.size,
        domain,
    )
    return out


def _broadcast_contiguous(array: Array, like: Array) -> Array:
    """Return a contiguous int64 array of a single number, or of the shape of `like`."""
    if array.size not in (1, like.size):
        array = np.broadcast_to(array, like.shape)
    return np.ascontiguousarray(array, dtype=np.int64)


@cache
def _load_native() -> Any:
    """Return the library compiled from `threefry.cpp`, or None without a compiler."""
    library = cpp_build.load_library(Path(__file__).with_suffix(".cpp"))
    if library is not None:
        library.threefry.argtypes = [c_void_p] * 3 + [c_int64] * 4
        library.threefry.restype = None
    return library


@lru_cache(4096)
def derive_int_key(key: int, value: int) -> int:
    """Derive a key of plain integers; many are needed again, such as those of a run's seed."""
    return derive_key(key, value)


def split_words(pair: Int) -> tuple[Int, Int]:
    """Return the low and the high word of 64 bits."""
    if isinstance(pair, Tensor):
        require(
            not pair.is_floating_point(),
            f"prng: keys, names and counters must be integers, got {pair.dtype}.",
        )
        return pair.to(torch.int32), (pair.to(torch.int64) >> 32).to(torch.int32)
    if isinstance(pair, np.ndarray):
        return pair.astype(np.uint32), (pair >> 32).astype(np.uint32)
    return pair, pair >> 32


def _join_words(low: Int, high: Int) -> Int:
    """Return the 64 bits whose words these are."""
    if isinstance(low, Tensor):
        return (high.to(torch.int64) << 32) | (low.to(torch.int64) & 0xFFFFFFFF)
    if isinstance(low, np.ndarray) and isinstance(high, np.ndarray):
        return (high.astype(np.uint64) << 32 | low).view(np.int64)
    return ((high & 0xFFFFFFFF) << 32) | (low & 0xFFFFFFFF)


def threefry2x32(key: tuple[Int, Int], counter: tuple[Int, Int | int]) -> tuple[Int, Int]:
    """Mix the two words of a counter with the two words of a key, in 20 rounds."""
    k0, k1 = key
    keys = (k0, k1, k0 ^ k1 ^ _PARITY)
    x0: Int = k0 + counter[0]
    x1: Int = k1 + counter[1]
    rotate, prevent_inlining = _WORD_OPS.get(type(x1), (_rotate_tensor, _prevent_inlining))
    for block in range(5):
        for r in _ROTATIONS[block % 2]:
            x0 = x0 + x1
            x1 = prevent_inlining(rotate(x1, r) ^ x0)
        x0 = x0 + keys[(block + 1) % 3]
        x1 = x1 + (keys[(block + 2) % 3] + (block + 1))
    return x0, x1


@torch.library.custom_op("fedtailor::threefry", mutates_args=(), device_types="cpu")
def threefry_op(key: Tensor, counters: Tensor, domain: int) -> Tensor:
    """Return 64 random bits for each counter as one operation.

    On a GPU, 140 tiny operations take longer than what uses the bits.

    Args:
        key: Keys, which broadcast with the counters.
        counters: Counters.
        domain: 32 bits by which keys differ between uses.
    """
    return threefry_reference(key, counters, domain)


def threefry_reference(key: Int, counters: Int, domain: int) -> Int:
    """Return 64 random bits for each counter by many elementary operations.

    Args:
        key: Keys, which broadcast with the counters.
        counters: Counters, of the same type as the keys.
        domain: 32 bits by which keys differ between uses.
    """
    low, high = split_words(key)
    return _join_words(*threefry2x32((low ^ domain, high), split_words(counters)))


@threefry_op.register_kernel("cuda")
def _threefry_cuda(key: Tensor, counters: Tensor, domain: int) -> Tensor:
    from fedtailor.prng.threefry_triton import triton_threefry

    return triton_threefry(key, counters, domain)


@threefry_op.register_fake
def _threefry_fake(key: Tensor, counters: Tensor, domain: int) -> Tensor:
    shape = torch.broadcast_tensors(key, counters)[0].shape  # type: ignore[no-untyped-call]
    return key.new_empty(shape)


@threefry_op.register_vmap
def _threefry_vmap(
    info: Any, in_dims: tuple[int | None, ...], key: Tensor, counters: Tensor, domain: int
) -> tuple[Tensor, int]:
    key_dim, counters_dim, _ = in_dims
    rank = max(_count_own_dims(key, key_dim), _count_own_dims(counters, counters_dim))
    key = _move_batch_first(key, key_dim, rank)
    counters = _move_batch_first(counters, counters_dim, rank)
    return threefry_op(key, counters, domain), 0


def _count_own_dims(x: Tensor, vmap_dim: int | None) -> int:
    """Return the number of dimensions besides that of `vmap`."""
    return x.ndim if vmap_dim is None else x.ndim - 1


def _move_batch_first(x: Tensor, vmap_dim: int | None, rank: int) -> Tensor:
    """Move the dimension of `vmap` first, and add dimensions of size 1 up to `rank` others."""
    if vmap_dim is None:
        return x
    moved = x.movedim(vmap_dim, 0)
    num_missing = rank + 1 - moved.ndim
    return moved.reshape(len(moved), *(1,) * num_missing, *moved.shape[1:])


def should_fuse(key: Tensor) -> bool:
    """Return whether bits are drawn as one operation: on a GPU, and in traces, to keep them short.

    Under torch.compile they are not.
    """
    if torch.compiler.is_compiling():
        return False
    return is_tracing() or (key.is_cuda and _has_triton())


@lru_cache(1)
def _has_triton() -> bool:
    return torch.version.hip is None and find_spec("triton") is not None


def _rotate_array(x: Array, r: int) -> Array:
    """Rotate the bits of uint32 words up by r."""
    return x << r | x >> (32 - r)


def _rotate_int(x: int, r: int) -> int:
    x &= 0xFFFFFFFF
    return x << r | x >> (32 - r)


def _rotate_tensor(x: Tensor, r: int) -> Tensor:
    # A shift to the right of a negative int32 fills the upper bits with ones.
    return (x << r) | ((x >> (32 - r)) & ((1 << r) - 1))


def _identity(x: Int) -> Int:
    return x


def _prevent_inlining(x: Tensor) -> Tensor:
    """Return `x`, in compiled code behind a view.

    Otherwise the expression of each round would contain that of the round before three times.
    """
    if torch.compiler.is_compiling() or is_tracing():
        return x.as_strided(x.shape, x.stride())
    return x


# How words are rotated, and what is done to them after each round.
_WORD_OPS: dict[type, Any] = {np.ndarray: (_rotate_array, _identity), int: (_rotate_int, _identity)}
