# mypy: disable-error-code="no-untyped-def,untyped-decorator"
"""Threefry-2x32 with 20 rounds as one Triton kernel."""

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK_SIZE = 256
"""Counters per program."""


def triton_threefry(key: Tensor, counters: Tensor, domain: int) -> Tensor:
    """Return 64 random bits for each counter as int64; keys and counters broadcast.

    Args:
        key: Keys, int64 or smaller.
        counters: Counters, int64 or smaller.
        domain: 32 bits by which keys differ between uses.
    """
    shape = torch.broadcast_tensors(key, counters)[0].shape  # type: ignore[no-untyped-call]
    out = torch.empty(shape, dtype=torch.int64, device=key.device)
    numel = out.numel()
    if numel == 0:
        return out
    operands = []
    for operand in (key, counters):
        if operand.numel() > 1:
            operand = operand.expand(shape).contiguous()
        operands.append(operand)
    # A single number is read by all programs, with a step of 0.
    key_step, counter_step = (int(operand.numel() > 1) for operand in operands)
    _threefry_kernel[(triton.cdiv(numel, _BLOCK_SIZE),)](
        *operands, out, numel, key_step, counter_step, domain, _BLOCK_SIZE, num_warps=4
    )
    return out


@triton.jit
def _round(x0, x1, r: tl.constexpr):
    x0 = x0 + x1
    return x0, ((x1 << r) | (x1 >> (32 - r))) ^ x0


@triton.jit
def _four_rounds(x0, x1, a: tl.constexpr, b: tl.constexpr, c: tl.constexpr, d: tl.constexpr):
    x0, x1 = _round(x0, x1, a)
    x0, x1 = _round(x0, x1, b)
    x0, x1 = _round(x0, x1, c)
    return _round(x0, x1, d)


@triton.jit
def _threefry_kernel(
    key, counters, out, size, key_step: tl.constexpr, counter_step: tl.constexpr,
    DOMAIN: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """Compute 20 rounds, with words of the key added after every four of them."""
    at = tl.program_id(0).to(tl.int64) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    inside = at < size
    k = tl.load(key + at * key_step, inside, 0).to(tl.int64)
    counter = tl.load(counters + at * counter_step, inside, 0).to(tl.int64)
    k0 = k.to(tl.uint32) ^ DOMAIN
    k1 = (k >> 32).to(tl.uint32)
    k2 = k0 ^ k1 ^ 0x1BD11BDA
    x0 = k0 + counter.to(tl.uint32)
    x1 = k1 + (counter >> 32).to(tl.uint32)
    x0, x1 = _four_rounds(x0, x1, 13, 15, 26, 6)
    x0, x1 = _four_rounds(x0 + k1, x1 + k2 + 1, 17, 29, 16, 24)
    x0, x1 = _four_rounds(x0 + k2, x1 + k0 + 2, 13, 15, 26, 6)
    x0, x1 = _four_rounds(x0 + k0, x1 + k1 + 3, 17, 29, 16, 24)
    x0, x1 = _four_rounds(x0 + k1, x1 + k2 + 4, 13, 15, 26, 6)
    x0 = x0 + k2
    x1 = x1 + k0 + 5
    tl.store(out + at, (x1.to(tl.int64) << 32) | x0.to(tl.int64), inside)
