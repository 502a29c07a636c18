"""Randomness by name: a draw is a pure function of a key, and a key is made from a seed and a path of names.

    noise = normal(key(seed, "noise", round, client, step), (20, 8))

Nothing is remembered between draws, so the values are the same one by one, under `vmap`, compiled, in any order and on
any device (normals up to the rounding of `erfinv`). A key serves one draw, and `fold` makes keys for others from it;
folding and drawing do not meet, so a key that was folded may still be drawn from. To draw for many keys, `vmap`.

Keys may also be NumPy arrays: the same values again, without the cost of a hundred tiny tensors for every fold, for
which a host that lays out batches while a device works has no time; by compiled code (`keyed.cpp`) where there is any.

The generator is Threefry-2x32 with 20 rounds (Salmon et al., Parallel random numbers: as easy as 1, 2, 3, SC 2011). Its
words are int32 tensors, uint32 arrays or plain integers. Only their low 32 bits ever matter, so integers may grow, and
a compiler may keep an overflowing sum in a wider register.
"""

import hashlib
import math
from collections.abc import Sequence
from ctypes import c_int64, c_void_p
from functools import cache, lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from fedtailor import native
from fedtailor.errors import InputError, require

Array = NDArray[Any]
Name = int | str | Tensor
Keys = TypeVar("Keys", Tensor, Array)
Int = TypeVar("Int", int, Tensor, Array)  # 32-bit words, or 64 bits that are a pair of them

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA
_FOLDING = 0x464F4C44  # sets the keys that fold apart from the keys that draw
_SHARES = 2**16  # dropout probabilities are multiples of one over this


def key(seed: int, *path: Name) -> Tensor:
    """The key of a path of names: `key(seed, "batches", round, client, step)`.

    Names are strings, integers of up to 64 bits, and tensors of integers, which make as many keys. Their order matters.
    """
    made: int | Tensor = 0
    for name in (seed, *path):
        if isinstance(made, Tensor):
            made = fold(made, name)
        elif isinstance(name, Tensor):
            made = fold(_tensor(made, name.device), name)
        else:
            made = _below_int(made, _number(name))  # plain integers while they last: much faster than tiny tensors
    return made if isinstance(made, Tensor) else _tensor(made)


def fold(key: Keys, value: int | str | Keys) -> Keys:
    """The key of a name below `key`. They broadcast: keys [C, 1] and a tensor [S] of names make keys [C, S]."""
    if isinstance(value, int | str):
        value = _as_key(_number(value), key)
    return _below(key, value)


def words(key: Keys, counters: Keys) -> Keys:
    """63 random bits for each counter, as non-negative int64; keys and counters broadcast."""
    return _mixed(key, counters, 0) & (2**63 - 1)


def bits(key: Tensor, n: int) -> Tensor:
    """n random int32; a longer draw begins with the shorter one."""
    at = _positions(key, (n + 1) // 2)
    pair = _split(mixed(key, at, 0)) if _in_one(key) else _threefry(_split(key), (at, 0))
    return torch.stack(pair, -1).flatten()[:n]


def uniform(key: Tensor, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
    """Uniform on [0, 1): multiples of 2^-24 in float32, of 2^-53 in float64."""
    require(dtype in (torch.float32, torch.float64), f"keyed: dtype must be float32 or float64, got {dtype}.")
    n = math.prod(shape)
    drawn = words(key, _positions(key, n)) >> 10 if dtype == torch.float64 else (bits(key, n) >> 8) & 0xFFFFFF
    return (drawn.to(dtype) * (torch.finfo(dtype).eps / 2)).reshape(tuple(shape))


def normal(key: Tensor, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
    """Standard normal and always finite: within 5.5 in float32, within 8.3 in float64."""
    centred = 2 * uniform(key, shape, dtype) - (1 - torch.finfo(dtype).eps / 2)  # exact, symmetric, never -1, 0 or 1
    return math.sqrt(2) * torch.erfinv(centred)


def integers(key: Tensor, shape: Sequence[int], high: int) -> Tensor:
    """Uniform on 0, ..., high - 1, as int64; the probabilities are off by less than 2^-63."""
    if not 0 < high < 2**63:
        raise InputError(f"keyed: high must be positive and below 2^63, got {high}.")
    return (words(key, _positions(key, math.prod(shape))) % high).reshape(tuple(shape))


def permutation(key: Tensor, n: int) -> Tensor:
    """A random order of 0, ..., n - 1."""
    return torch.argsort(words(key, _positions(key, n)), stable=True)


def choice(key: Keys, n: int, k: int) -> Keys:
    """k distinct numbers below n in random order; if n > 4k, in time and memory that do not grow with n.

    Those are the first k distinct ones among 2k + 64 draws. The probability that there are fewer than k is at most
    C(n, k) (k / n)^(2k + 64) < 2^-128. A key in an array has no dimension either.
    """
    if not 0 <= k <= n:
        raise InputError(f"keyed: cannot choose {k} distinct numbers out of {n}.")
    if not isinstance(key, Tensor):
        return _choice_array(key, n, k)
    if n <= 4 * k:
        return permutation(key, n)[:k]
    drawn = integers(key, (2 * k + 64,), n)
    ranked, order = torch.sort(drawn, stable=True)
    repeated = torch.cat((ranked[:1] < 0, ranked[1:] == ranked[:-1]))
    first = torch.where(repeated, len(drawn), order).sort().values[:k]
    return drawn[first]


def _choice_array(key: Array, n: int, k: int) -> Array:
    drawn = words(key[None], np.arange(n if n <= 4 * k else 2 * k + 64))
    if n <= 4 * k:
        return np.argsort(drawn, kind="stable")[:k]
    found, first = np.unique(drawn % n, return_index=True)
    return found[np.argsort(first)[:k]]


def keep_mask(key: Tensor, shape: Sequence[int], p: float) -> Tensor:
    """What dropout with probability p keeps: True with probability `keep_share(p)` exactly."""
    n, threshold = math.prod(shape), (_dropped(p) - _SHARES // 2) * _SHARES
    drawn = bits(key, (n + 1) // 2)
    kept = torch.stack((drawn >= threshold, drawn << 16 >= threshold), -1)  # 16 bits decide: the upper, then the lower
    return kept.flatten()[:n].reshape(tuple(shape))


def keep_share(p: float) -> float:
    """The probability with which `keep_mask` keeps: 1 - p to the nearest multiple of 2^-16, never 0."""
    return 1 - _dropped(p) / _SHARES


def _dropped(p: float) -> int:
    require(0 <= p < 1 - 2**-17, f"keyed: a dropout probability must lie in [0, 1 - 2^-17), got {p}.")
    return round(p * _SHARES)


def _positions(key: Tensor, n: int) -> Tensor:
    """0, ..., n - 1 beside the one key of a draw.

    They are only ever added to: in compiled code, their product with a large constant overflows the index of a loop.
    """
    require(key.ndim == 0, f"keyed: a draw takes one key, got keys of shape {tuple(key.shape)}; vmap over them.")
    if n < 0:  # not `require`: a sentence with n in it would have code compiled anew for every n
        raise InputError(f"keyed: a draw cannot have a negative size, got {n}.")
    return torch.arange(n, dtype=torch.int32, device=key.device)


def _number(name: int | str) -> int:
    if isinstance(name, str):
        return int(_hashed(name))
    if not isinstance(name, int) or not -(2**63) <= name < 2**64:
        raise InputError(f"keyed: a name must be a string, an integer of 64 bits or a tensor of them, got {name!r}.")
    return name


def _hashed(name: str) -> int:
    """64 bits that are the same in every process."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


# As torch.compiler.assume_constant_result marks it, which would import the compiler; that takes seconds.
_hashed._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _tensor(number: int, device: torch.device | None = None) -> Tensor:
    """64 bits, signed or not, as int64."""
    return torch.full((), number if number < 2**63 else number - 2**64, dtype=torch.int64, device=device)


def _as_key(number: int, like: Keys) -> Keys:
    """64 bits, signed or not, as int64 of the same kind as keys are."""
    signed = number if number < 2**63 else number - 2**64
    if isinstance(like, Tensor):
        return _tensor(signed, like.device)
    return np.array([signed], dtype=np.int64)


def _below(key: Int, number: Int) -> Int:
    return _mixed(key, number, _FOLDING)


def _mixed(key: Int, counters: Int, folding: int) -> Int:
    """64 bits for each counter, the fastest way that there is for them."""
    if isinstance(key, Tensor) and isinstance(counters, Tensor) and _in_one(key):
        drawn: Tensor = mixed(key, counters, folding)
        return drawn
    if isinstance(key, np.ndarray) and isinstance(counters, np.ndarray) and _native() is not None:
        return _mixed_natively(key, counters, folding)
    return mixed_in_full(key, counters, folding)


def _mixed_natively(key: Array, counters: Array, folding: int) -> Array:
    """The same of arrays, by compiled code instead of a hundred small operations."""
    shape = key.shape if key.shape == counters.shape else np.broadcast_shapes(key.shape, counters.shape)
    made = np.empty(shape, dtype=np.int64)
    given = [_laid_out(each, made) for each in (key, counters)]
    steps = (int(each.size > 1) for each in given)
    _native().mix(*(each.ctypes.data for each in (*given, made)), *steps, made.size, folding)
    return made


def _laid_out(given: Array, like: Array) -> Array:
    """One number, or as many as there are in another array, in its order."""
    whole = given if given.size in (1, like.size) else np.broadcast_to(given, like.shape)
    return np.ascontiguousarray(whole, dtype=np.int64)


@cache
def _native() -> Any:
    """The compiled code, or None."""
    found = native.library(Path(__file__).with_suffix(".cpp"))
    if found is not None:
        found.mix.argtypes = [c_void_p] * 3 + [c_int64] * 4
        found.mix.restype = None
    return found


@lru_cache(4096)
def _below_int(key: int, number: int) -> int:
    """The same for integers, many of which are asked for again: a run's seed, a purpose."""
    return _below(key, number)


def _split(pair: Int) -> tuple[Int, Int]:
    """The low and the high word of 64 bits."""
    if isinstance(pair, Tensor):
        require(not pair.is_floating_point(), f"keyed: keys, names and counters are integers, got {pair.dtype}.")
        return pair.to(torch.int32), (pair.to(torch.int64) >> 32).to(torch.int32)
    if isinstance(pair, np.ndarray):
        return pair.astype(np.uint32), (pair >> 32).astype(np.uint32)
    return pair, pair >> 32


def _join(low: Int, high: Int) -> Int:
    """64 bits from their low and their high word."""
    if isinstance(low, Tensor):
        return (high.to(torch.int64) << 32) | (low.to(torch.int64) & 0xFFFFFFFF)
    if isinstance(low, np.ndarray) and isinstance(high, np.ndarray):
        return (high.astype(np.uint64) << 32 | low).view(np.int64)
    return ((high & 0xFFFFFFFF) << 32) | (low & 0xFFFFFFFF)


def _threefry(key: tuple[Int, Int], counter: tuple[Int, Int | int]) -> tuple[Int, Int]:
    k0, k1 = key
    keys = (k0, k1, k0 ^ k1 ^ _PARITY)
    x0: Int = k0 + counter[0]
    x1: Int = k1 + counter[1]
    turned, stored = _WAYS.get(type(x1), (_turned_tensor, _stored))
    for block in range(5):
        for r in _ROTATIONS[block % 2]:
            x0 = x0 + x1
            x1 = stored(turned(x1, r) ^ x0)
        x0 = x0 + keys[(block + 1) % 3]
        x1 = x1 + (keys[(block + 2) % 3] + (block + 1))
    return x0, x1


@torch.library.custom_op("fedtailor::mixed", mutates_args=(), device_types="cpu")
def mixed(key: Tensor, counters: Tensor, folding: int) -> Tensor:
    """64 bits for each counter, in one operation: a GPU has more to do with 140 tiny ones than with what uses them."""
    return mixed_in_full(key, counters, folding)


def mixed_in_full(key: Int, counters: Int, folding: int) -> Int:
    """The same by its many plain operations."""
    low, high = _split(key)
    return _join(*_threefry((low ^ folding, high), _split(counters)))


@mixed.register_kernel("cuda")
def _mixed_on_gpu(key: Tensor, counters: Tensor, folding: int) -> Tensor:
    from fedtailor.kernels import mix

    return mix(key, counters, folding)


@mixed.register_fake
def _mixed_shape(key: Tensor, counters: Tensor, folding: int) -> Tensor:
    shape = torch.broadcast_tensors(key, counters)[0].shape  # type: ignore[no-untyped-call]
    return key.new_empty(shape)


@mixed.register_vmap
def _mixed_for_many(
    info: Any, in_dims: tuple[int | None, ...], key: Tensor, counters: Tensor, folding: int
) -> tuple[Tensor, int]:
    ranks = [each.ndim - (at is not None) for each, at in zip((key, counters), in_dims, strict=False)]
    rows = [_row_first(each, at, max(ranks)) for each, at in zip((key, counters), in_dims, strict=False)]
    return mixed(*rows, folding), 0


def _row_first(x: Tensor, at: int | None, rank: int) -> Tensor:
    """With the stack's dimension first, and then so many more."""
    if at is None:
        return x
    moved = x.movedim(at, 0)
    return moved.reshape(len(moved), *(1,) * (rank + 1 - moved.ndim), *moved.shape[1:])


def _in_one(key: Tensor) -> bool:
    """Whether bits are drawn in one operation: on a GPU, and in lists of operations, which are short then."""
    if torch.compiler.is_compiling():
        return False
    return get_proxy_mode() is not None or (key.is_cuda and _has_kernels())


@lru_cache(1)
def _has_kernels() -> bool:
    return torch.version.hip is None and find_spec("triton") is not None


def _turned_array(x: Array, r: int) -> Array:
    """Words with their bits moved up by r, and those that fall out below again."""
    return x << r | x >> (32 - r)


def _turned_int(x: int, r: int) -> int:
    x &= 0xFFFFFFFF
    return x << r | x >> (32 - r)


def _turned_tensor(x: Tensor, r: int) -> Tensor:
    return (x << r) | ((x >> (32 - r)) & ((1 << r) - 1))


def _itself(x: Int) -> Int:
    return x


_WAYS: dict[type, Any] = {np.ndarray: (_turned_array, _itself), int: (_turned_int, _itself)}


def _stored(x: Tensor) -> Tensor:
    """x itself, behind a view in compiled code: else each round would spell out the one before it three times."""
    return x.as_strided(x.shape, x.stride()) if _being_compiled() else x


def _being_compiled() -> bool:
    return torch.compiler.is_compiling() or get_proxy_mode() is not None
