"""Threefry-2x32 on tensors, arrays and integers: one algorithm, one custom operation."""

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


Int = TypeVar("Int", int, Tensor, Array)  # 32-bit words, or 64 bits that are a pair of them


_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


_PARITY = 0x1BD11BDA


_FOLD_DOMAIN = 0x464F4C44  # sets the keys that fold apart from the keys that draw


def make_int64(value: int, device: torch.device | None = None) -> Tensor:
    """64 bits, signed or not, as int64."""
    return torch.full(
        (), value if value < 2**63 else value - 2**64, dtype=torch.int64, device=device
    )


def make_int64_like(value: int, like: Keys) -> Keys:
    """64 bits, signed or not, as int64 of the same kind as keys are."""
    signed = value if value < 2**63 else value - 2**64
    if isinstance(like, Tensor):
        return make_int64(signed, like.device)
    return np.array([signed], dtype=np.int64)


def derive_key(key: Int, value: Int) -> Int:
    """Return the key that a value leads to from another key."""
    return dispatch_threefry(key, value, _FOLD_DOMAIN)


def dispatch_threefry(key: Int, counters: Int, domain: int) -> Int:
    """64 bits for each counter, the fastest way that there is for them."""
    if isinstance(key, Tensor) and isinstance(counters, Tensor) and should_fuse(key):
        drawn: Tensor = threefry_op(key, counters, domain)
        return drawn
    if (
        isinstance(key, np.ndarray)
        and isinstance(counters, np.ndarray)
        and _load_native() is not None
    ):
        return _threefry_native(key, counters, domain)
    return threefry_reference(key, counters, domain)


def _threefry_native(key: Array, counters: Array, domain: int) -> Array:
    """The same of arrays, by compiled code instead of a hundred small operations."""
    shape = (
        key.shape if key.shape == counters.shape else np.broadcast_shapes(key.shape, counters.shape)
    )
    out = np.empty(shape, dtype=np.int64)
    operands = [_broadcast_contiguous(each, out) for each in (key, counters)]
    steps = (int(each.size > 1) for each in operands)
    _load_native().mix(*(each.ctypes.data for each in (*operands, out)), *steps, out.size, domain)
    return out


def _broadcast_contiguous(array: Array, like: Array) -> Array:
    """One number, or as many as there are in another array, in its order."""
    whole = array if array.size in (1, like.size) else np.broadcast_to(array, like.shape)
    return np.ascontiguousarray(whole, dtype=np.int64)


@cache
def _load_native() -> Any:
    """The compiled code, or None."""
    found = cpp_build.load_library(Path(__file__).with_suffix(".cpp"))
    if found is not None:
        found.mix.argtypes = [c_void_p] * 3 + [c_int64] * 4
        found.mix.restype = None
    return found


@lru_cache(4096)
def derive_int_key(key: int, value: int) -> int:
    """The same for integers, many of which are asked for again: a run's seed, a purpose."""
    return derive_key(key, value)


def split_words(pair: Int) -> tuple[Int, Int]:
    """The low and the high word of 64 bits."""
    if isinstance(pair, Tensor):
        require(
            not pair.is_floating_point(),
            f"keyed: keys, names and counters are integers, got {pair.dtype}.",
        )
        return pair.to(torch.int32), (pair.to(torch.int64) >> 32).to(torch.int32)
    if isinstance(pair, np.ndarray):
        return pair.astype(np.uint32), (pair >> 32).astype(np.uint32)
    return pair, pair >> 32


def _join_words(low: Int, high: Int) -> Int:
    """64 bits from their low and their high word."""
    if isinstance(low, Tensor):
        return (high.to(torch.int64) << 32) | (low.to(torch.int64) & 0xFFFFFFFF)
    if isinstance(low, np.ndarray) and isinstance(high, np.ndarray):
        return (high.astype(np.uint64) << 32 | low).view(np.int64)
    return ((high & 0xFFFFFFFF) << 32) | (low & 0xFFFFFFFF)


def threefry2x32(key: tuple[Int, Int], counter: tuple[Int, Int | int]) -> tuple[Int, Int]:
    """Mix two words of a counter under two words of a key, in 20 rounds."""
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


@torch.library.custom_op("fedtailor::mixed", mutates_args=(), device_types="cpu")
def threefry_op(key: Tensor, counters: Tensor, domain: int) -> Tensor:
    """64 bits for each counter, in one operation: a GPU has more to do with 140 tiny ones than with what uses them."""
    return threefry_reference(key, counters, domain)


def threefry_reference(key: Int, counters: Int, domain: int) -> Int:
    """The same by its many plain operations."""
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
    ranks = [
        each.ndim - (dim is not None) for each, dim in zip((key, counters), in_dims, strict=False)
    ]
    rows = [
        _move_batch_first(each, dim, max(ranks))
        for each, dim in zip((key, counters), in_dims, strict=False)
    ]
    return threefry_op(*rows, domain), 0


def _move_batch_first(x: Tensor, dim: int | None, rank: int) -> Tensor:
    """With the stack's dimension first, and then so many more."""
    if dim is None:
        return x
    moved = x.movedim(dim, 0)
    return moved.reshape(len(moved), *(1,) * (rank + 1 - moved.ndim), *moved.shape[1:])


def should_fuse(key: Tensor) -> bool:
    """Whether bits are drawn in one operation: on a GPU, and in lists of operations, which are short then."""
    if torch.compiler.is_compiling():
        return False
    return is_tracing() or (key.is_cuda and _has_triton())


@lru_cache(1)
def _has_triton() -> bool:
    return torch.version.hip is None and find_spec("triton") is not None


def _rotate_array(x: Array, r: int) -> Array:
    """Words with their bits moved up by r, and those that fall out below again."""
    return x << r | x >> (32 - r)


def _rotate_int(x: int, r: int) -> int:
    x &= 0xFFFFFFFF
    return x << r | x >> (32 - r)


def _rotate_tensor(x: Tensor, r: int) -> Tensor:
    return (x << r) | ((x >> (32 - r)) & ((1 << r) - 1))


def _identity(x: Int) -> Int:
    return x


_WORD_OPS: dict[type, Any] = {np.ndarray: (_rotate_array, _identity), int: (_rotate_int, _identity)}


def _prevent_inlining(x: Tensor) -> Tensor:
    """x itself, behind a view in compiled code: else each round would spell out the one before it three times."""
    return x.as_strided(x.shape, x.stride()) if _is_compiling() else x


def _is_compiling() -> bool:
    return torch.compiler.is_compiling() or is_tracing()
