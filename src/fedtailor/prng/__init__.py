"""Randomness by name: a draw is a pure function of a key, and a key of a seed and a path of names.

    noise = normal(key(seed, "noise", round, client, step), (20, 8))

There is no state between draws, so values are the same one by one, under `vmap`, compiled, in any
order and on any device (normals up to the rounding of `erfinv`). A key serves one draw, and `fold`
derives keys for other draws from it; folding and drawing never share values, so a key that was
folded may still be drawn from. To draw for many keys, `vmap`.

Keys may also be NumPy arrays, with the same values: compiled code (`threefry.cpp`), where there is
a compiler, saves a CPU that lays out batches a hundred tiny tensors for every fold.

The generator is Threefry-2x32 with 20 rounds (Salmon et al., Parallel random numbers: as easy as
1, 2, 3, SC 2011). Its words are int32 tensors, uint32 arrays or plain integers. Only their low 32
bits ever matter, so integers may grow, and a compiler may keep an overflowing sum in a wider
register.
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
"""One name of a path."""

_DROP_RESOLUTION = 2**16  # dropout probabilities are multiples of one over this


def key(seed: int, *path: Name) -> Tensor:
    """Derive the key of a path of names: `key(seed, "batches", round, client, step)`.

    Names are strings, integers of up to 64 bits, and integer tensors, which give a key for each
    element. Their order matters.
    """
    derived: int | Tensor = 0
    for name in (seed, *path):
        if isinstance(derived, Tensor):
            derived = fold(derived, name)
        elif isinstance(name, Tensor):
            derived = fold(make_int64(derived, name.device), name)
        else:
            # As long as there are only integers, they are much faster than tiny tensors.
            derived = derive_int_key(derived, _name_to_int(name))
    if isinstance(derived, Tensor):
        return derived
    return make_int64(derived)


def fold(key: Keys, value: int | str | Keys) -> Keys:
    """Derive the key of a name below `key`.

    Keys and names broadcast: keys [C, 1] and an integer tensor [S] of names give keys [C, S].
    """
    if isinstance(value, int | str):
        value = make_int64_like(_name_to_int(value), key)
    return derive_key(key, value)


def random_bits(key: Keys, counters: Keys) -> Keys:
    """Draw 63 bits for each counter, as non-negative int64; keys and counters broadcast."""
    return dispatch_threefry(key, counters, 0) & (2**63 - 1)


def random_int32(key: Tensor, n: int) -> Tensor:
    """Draw n int32 of 32 random bits; a longer draw begins with the shorter one."""
    counters = _make_counters(key, (n + 1) // 2)
    if should_fuse(key):
        words = split_words(threefry_op(key, counters, 0))
    else:
        words = threefry2x32(split_words(key), (counters, 0))
    return torch.stack(words, -1).flatten()[:n]


def uniform(key: Tensor, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
    """Draw uniformly from [0, 1).

    Args:
        key: Key of the draw.
        shape: Shape of the result.
        dtype: float32, for multiples of 2^-24, or float64, for multiples of 2^-53.
    """
    require(
        dtype in (torch.float32, torch.float64),
        f"prng: dtype must be float32 or float64, got {dtype}.",
    )
    n = math.prod(shape)
    if dtype == torch.float64:
        drawn = random_bits(key, _make_counters(key, n)) >> 10
    else:
        drawn = (random_int32(key, n) >> 8) & 0xFFFFFF
    return (drawn.to(dtype) * (torch.finfo(dtype).eps / 2)).reshape(tuple(shape))


def normal(key: Tensor, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
    """Draw from the standard normal distribution; values are always finite.

    Args:
        key: Key of the draw.
        shape: Shape of the result.
        dtype: float32, for values within 5.5, or float64, for values within 8.3.
    """
    # Exact and symmetric, and never -1, 0 or 1.
    centered = 2 * uniform(key, shape, dtype) - (1 - torch.finfo(dtype).eps / 2)
    return math.sqrt(2) * torch.erfinv(centered)


def integers(key: Tensor, shape: Sequence[int], high: int) -> Tensor:
    """Draw uniformly from 0, ..., high - 1, as int64.

    Args:
        key: Key of the draw.
        shape: Shape of the result.
        high: Number of values, below 2^63; probabilities are off by less than 2^-63.
    """
    if not 0 < high < 2**63:
        raise InputError(f"prng: high must be positive and below 2^63, got {high}.")
    return (random_bits(key, _make_counters(key, math.prod(shape))) % high).reshape(tuple(shape))


def permutation(key: Tensor, n: int) -> Tensor:
    """Draw a random order of 0, ..., n - 1."""
    return torch.argsort(random_bits(key, _make_counters(key, n)), stable=True)


def choice(key: Keys, n: int, k: int) -> Keys:
    """Draw k distinct numbers from 0, ..., n - 1, in random order.

    If n > 4k, time and memory do not grow with n: the numbers are the first k distinct ones among
    2k + 64 draws. The probability that there are fewer than k is at most
    C(n, k) (k / n)^(2k + 64) < 2^-128.

    Args:
        key: Key of the draw, a tensor or an array without dimensions.
        n: Number of values.
        k: Number of values to draw.
    """
    if not 0 <= k <= n:
        raise InputError(f"prng: cannot choose {k} distinct numbers out of {n}.")
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
    """Draw as `choice` does, from a key in an array."""
    if n <= 4 * k:
        bits = random_bits(key[None], np.arange(n))
        return np.argsort(bits, kind="stable")[:k]
    drawn = random_bits(key[None], np.arange(2 * k + 64)) % n
    distinct, first_positions = np.unique(drawn, return_index=True)
    return distinct[np.argsort(first_positions)[:k]]


def dropout_mask(key: Tensor, shape: Sequence[int], p: float) -> Tensor:
    """Draw what dropout keeps: True with probability `keep_prob(p)`, exactly.

    Args:
        key: Key of the draw.
        shape: Shape of the result.
        p: Probability to drop an element.
    """
    n = math.prod(shape)
    threshold = (_quantize_drop_prob(p) - _DROP_RESOLUTION // 2) * _DROP_RESOLUTION
    drawn = random_int32(key, (n + 1) // 2)
    # 16 bits decide about an element: the upper half of a word, then the lower half.
    kept = torch.stack((drawn >= threshold, drawn << 16 >= threshold), -1)
    return kept.flatten()[:n].reshape(tuple(shape))


def keep_prob(p: float) -> float:
    """Return the probability with which `dropout_mask` keeps an element.

    It is 1 - p, rounded to the nearest multiple of 2^-16, and never 0.
    """
    return 1 - _quantize_drop_prob(p) / _DROP_RESOLUTION


def _quantize_drop_prob(p: float) -> int:
    """Return the dropout probability in units of 2^-16."""
    require(
        0 <= p < 1 - 2**-17, f"prng: a dropout probability must lie in [0, 1 - 2^-17), got {p}."
    )
    return round(p * _DROP_RESOLUTION)


def _make_counters(key: Tensor, n: int) -> Tensor:
    """Return 0, ..., n - 1 on the device of the one key of a draw.

    Counters are only ever added to: in compiled code, their product with a large constant would
    overflow the index of a loop.
    """
    require(
        key.ndim == 0,
        f"prng: a draw takes one key, got keys of shape {tuple(key.shape)}; vmap over them.",
    )
    # Not `require`: a message that contains n would have code compiled anew for every n.
    if n < 0:
        raise InputError(f"prng: a draw cannot have a negative size, got {n}.")
    return torch.arange(n, dtype=torch.int32, device=key.device)


def _name_to_int(name: int | str) -> int:
    """Return the 64 bits, signed or not, that stand for a name."""
    if isinstance(name, str):
        return int(_hash_string(name))
    if not isinstance(name, int) or not -(2**63) <= name < 2**64:
        raise InputError(
            "prng: a name must be a string, an integer of 64 bits or a tensor of them, "
            f"got {name!r}."
        )
    # A member of an enumeration becomes a plain integer, which compilers take as a constant.
    return int(name)


@mark_constant
def _hash_string(name: str) -> int:
    """Hash a string to 64 bits, the same in every process."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")
