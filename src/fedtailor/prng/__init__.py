"""Randomness by name: a draw is a pure function of a key, and a key is made from a seed and a path of names.

    noise = normal(key(seed, "noise", round, client, step), (20, 8))

Nothing is remembered between draws, so the values are the same one by one, under `vmap`, compiled, in any order and on
any device (normals up to the rounding of `erfinv`). A key serves one draw, and `fold` makes keys for others from it;
folding and drawing do not meet, so a key that was folded may still be drawn from. To draw for many keys, `vmap`.

Keys may also be NumPy arrays: the same values, by compiled code (`threefry.cpp`) where there is a compiler, which
spares a host that lays out batches a hundred tiny tensors for every fold.

The generator is Threefry-2x32 with 20 rounds (Salmon et al., Parallel random numbers: as easy as 1, 2, 3, SC 2011). Its
words are int32 tensors, uint32 arrays or plain integers. Only their low 32 bits ever matter, so integers may grow, and
a compiler may keep an overflowing sum in a wider register.
"""

import hashlib
import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fedtailor.compat.torch_internals import mark_constant
from fedtailor.errors import InputError, require
from fedtailor.prng.threefry import (
    Array,
    Keys,
    derive_int_key,
    derive_key,
    dispatch_threefry,
    make_int64,
    make_int64_like,
    should_fuse,
    split_words,
    threefry2x32,
    threefry_op,
)

Name = int | str | Tensor


_DROP_RESOLUTION = 2**16  # dropout probabilities are multiples of one over this


def key(seed: int, *path: Name) -> Tensor:
    """The key of a path of names: `key(seed, "batches", round, client, step)`.

    Names are strings, integers of up to 64 bits, and tensors of integers, which make as many keys. Their order matters.
    """
    derived: int | Tensor = 0
    for name in (seed, *path):
        if isinstance(derived, Tensor):
            derived = fold(derived, name)
        elif isinstance(name, Tensor):
            derived = fold(make_int64(derived, name.device), name)
        else:
            derived = derive_int_key(
                derived, _name_to_int(name)
            )  # plain integers while they last: much faster than tiny tensors
    return derived if isinstance(derived, Tensor) else make_int64(derived)


def fold(key: Keys, value: int | str | Keys) -> Keys:
    """The key of a name below `key`. They broadcast: keys [C, 1] and a tensor [S] of names make keys [C, S]."""
    if isinstance(value, int | str):
        value = make_int64_like(_name_to_int(value), key)
    return derive_key(key, value)


def random_bits(key: Keys, counters: Keys) -> Keys:
    """63 random bits for each counter, as non-negative int64; keys and counters broadcast."""
    return dispatch_threefry(key, counters, 0) & (2**63 - 1)


def random_int32(key: Tensor, n: int) -> Tensor:
    """n random int32; a longer draw begins with the shorter one."""
    at = _make_counters(key, (n + 1) // 2)
    pair = (
        split_words(threefry_op(key, at, 0))
        if should_fuse(key)
        else threefry2x32(split_words(key), (at, 0))
    )
    return torch.stack(pair, -1).flatten()[:n]


def uniform(key: Tensor, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
    """Uniform on [0, 1): multiples of 2^-24 in float32, of 2^-53 in float64."""
    require(
        dtype in (torch.float32, torch.float64),
        f"keyed: dtype must be float32 or float64, got {dtype}.",
    )
    n = math.prod(shape)
    drawn = (
        random_bits(key, _make_counters(key, n)) >> 10
        if dtype == torch.float64
        else (random_int32(key, n) >> 8) & 0xFFFFFF
    )
    return (drawn.to(dtype) * (torch.finfo(dtype).eps / 2)).reshape(tuple(shape))


def normal(key: Tensor, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
    """Standard normal and always finite: within 5.5 in float32, within 8.3 in float64."""
    centered = 2 * uniform(key, shape, dtype) - (
        1 - torch.finfo(dtype).eps / 2
    )  # exact, symmetric, never -1, 0 or 1
    return math.sqrt(2) * torch.erfinv(centered)


def integers(key: Tensor, shape: Sequence[int], high: int) -> Tensor:
    """Uniform on 0, ..., high - 1, as int64; the probabilities are off by less than 2^-63."""
    if not 0 < high < 2**63:
        raise InputError(f"keyed: high must be positive and below 2^63, got {high}.")
    return (random_bits(key, _make_counters(key, math.prod(shape))) % high).reshape(tuple(shape))


def permutation(key: Tensor, n: int) -> Tensor:
    """A random order of 0, ..., n - 1."""
    return torch.argsort(random_bits(key, _make_counters(key, n)), stable=True)


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
    drawn = random_bits(key[None], np.arange(n if n <= 4 * k else 2 * k + 64))
    if n <= 4 * k:
        return np.argsort(drawn, kind="stable")[:k]
    found, first = np.unique(drawn % n, return_index=True)
    return found[np.argsort(first)[:k]]


def dropout_mask(key: Tensor, shape: Sequence[int], p: float) -> Tensor:
    """Return what dropout with probability p keeps: True with probability `keep_prob(p)` exactly."""
    n, threshold = (
        math.prod(shape),
        (_quantize_drop_prob(p) - _DROP_RESOLUTION // 2) * _DROP_RESOLUTION,
    )
    drawn = random_int32(key, (n + 1) // 2)
    kept = torch.stack(
        (drawn >= threshold, drawn << 16 >= threshold), -1
    )  # 16 bits decide: the upper, then the lower
    return kept.flatten()[:n].reshape(tuple(shape))


def keep_prob(p: float) -> float:
    """Return the probability with which `dropout_mask` keeps: 1 - p to the nearest multiple of 2^-16, never 0."""
    return 1 - _quantize_drop_prob(p) / _DROP_RESOLUTION


def _quantize_drop_prob(p: float) -> int:
    require(
        0 <= p < 1 - 2**-17, f"keyed: a dropout probability must lie in [0, 1 - 2^-17), got {p}."
    )
    return round(p * _DROP_RESOLUTION)


def _make_counters(key: Tensor, n: int) -> Tensor:
    """0, ..., n - 1 beside the one key of a draw.

    They are only ever added to: in compiled code, their product with a large constant overflows the index of a loop.
    """
    require(
        key.ndim == 0,
        f"keyed: a draw takes one key, got keys of shape {tuple(key.shape)}; vmap over them.",
    )
    if n < 0:  # not `require`: a sentence with n in it would have code compiled anew for every n
        raise InputError(f"keyed: a draw cannot have a negative size, got {n}.")
    return torch.arange(n, dtype=torch.int32, device=key.device)


def _name_to_int(name: int | str) -> int:
    if isinstance(name, str):
        return int(_hash_string(name))
    if not isinstance(name, int) or not -(2**63) <= name < 2**64:
        raise InputError(
            f"keyed: a name must be a string, an integer of 64 bits or a tensor of them, got {name!r}."
        )
    return name


@mark_constant
def _hash_string(name: str) -> int:
    """64 bits that are the same in every process."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")
