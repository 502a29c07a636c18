# mypy: disable-error-code="no-untyped-def,untyped-decorator"
"""Triton kernels: convolutions of a whole stack of clients, each with weights of its own, and random bits.

Images are [clients, batch, height, width, channels] and weights [clients, outputs, height, width, inputs], contiguous.
Both of their kernels are products of matrices whose left one is never made: its rows are places of images, its columns
taps of the window times channels, and its entries are read where they lie. Sums are kept in float32. Weights lie as
matrix units want them for tf32, what is summed over last: else a product would turn them first, and take twice as long.
Random bits are those of `keyed`.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

_PROGRAMS = 528
"""Programs that keep a large GPU busy: four for each of its multiprocessors."""


def convolve(x: Tensor, w: Tensor, size: tuple[int, int], window: tuple[int, int, int]) -> Tensor:
    """y[h, w] = sum over taps of x[(h stride + tap - pad) / dilate] w[tap], where that is a place of x."""
    clients, batch, height, width, inputs = x.shape
    outputs = w.shape[1]
    y = x.new_empty(clients, batch, *size, outputs)
    rows = batch * size[0] * size[1]
    if y.numel() == 0:
        return y
    tall, wide = 64, min(_above(outputs), 64)
    deep = min(_above(w.shape[2] * w.shape[3] * inputs), 16 if wide < 64 and x.dtype == torch.bfloat16 else 32)
    deep = min(deep, _whole(inputs)) if _whole(inputs) >= 16 else deep
    grid = (triton.cdiv(rows, tall) * triton.cdiv(outputs, wide), clients)
    _convolve[grid](
        x, w, y, rows, height, width, *size, inputs, outputs, *w.shape[2:4], *window,
        tall, wide, deep, inputs % deep == 0, _precision(x), num_warps=4, num_stages=3,
    )  # fmt: skip
    return y


def correlate(x: Tensor, g: Tensor, size: tuple[int, int], window: tuple[int, int, int]) -> Tensor:
    """w[tap] = sum over places of x[(h stride + tap - pad) / dilate] g[h, w]: the gradient of `convolve` by weights."""
    clients, batch, height, width, inputs = x.shape
    outputs, taps = g.shape[4], size[0] * size[1]
    rows = batch * g.shape[2] * g.shape[3]
    tall, wide, deep = (
        min(_above(taps * inputs), 128 if x.dtype == torch.bfloat16 else 64),
        min(_above(outputs), 64),
        32,
    )
    tiles = triton.cdiv(taps * inputs, tall) * triton.cdiv(outputs, wide)
    parts = max(1, min(triton.cdiv(_PROGRAMS, tiles * clients), triton.cdiv(rows, 4 * deep)))
    share = triton.cdiv(triton.cdiv(rows, parts), deep) * deep
    sums = torch.zeros if rows == 0 else torch.empty
    found = sums((clients, parts, outputs, *size, inputs), dtype=torch.float32, device=x.device)
    if found.numel() and rows:
        _correlate[(tiles, parts, clients)](
            x, g, found, rows, share, height, width, *g.shape[2:4], inputs, outputs, *size, *window,
            tall, wide, deep, _precision(x), num_warps=4, num_stages=3,
        )  # fmt: skip
    return found.sum(1).to(x.dtype)


def mix(key: Tensor, counters: Tensor, folding: int) -> Tensor:
    """Threefry's 64 bits for each counter under a key; they broadcast."""
    shape = torch.broadcast_tensors(key, counters)[0].shape  # type: ignore[no-untyped-call]
    found = torch.empty(shape, dtype=torch.int64, device=key.device)
    given = [each if each.numel() == 1 else each.expand(shape).contiguous() for each in (key, counters)]
    if found.numel():
        steps = (int(each.numel() > 1) for each in given)
        _mix[(triton.cdiv(found.numel(), 256),)](*given, found, found.numel(), *steps, folding, 256, num_warps=4)
    return found


def _above(number: int) -> int:
    """The least power of two that is no smaller, and at least 16, as products of matrices want it."""
    return max(16, 1 << (number - 1).bit_length())


def _whole(number: int) -> int:
    """The largest power of two that divides."""
    return number & -number


def _precision(x: Tensor) -> str:
    return "tf32" if x.dtype == torch.bfloat16 or torch.backends.cuda.matmul.allow_tf32 else "ieee"


@triton.jit
def _places(
    h,
    w,
    inside,
    height,
    width,
    dilate: tl.constexpr,
    pad: tl.constexpr,
):
    """Where in x a tap falls, and whether it does."""
    if dilate > 1:
        inside = inside & (h % dilate == 0) & (w % dilate == 0)
    if (pad != 0) or (dilate > 1):
        inside = inside & (h >= 0) & (w >= 0)
        h, w = h // dilate, w // dilate
        inside = inside & (h < height) & (w < width)
    return h * width + w, inside


@triton.jit
def _convolve(
    x, w, y, rows, height, width, out_height, out_width,
    inputs: tl.constexpr, outputs: tl.constexpr, tap_rows: tl.constexpr, tap_columns: tl.constexpr,
    stride: tl.constexpr, dilate: tl.constexpr, pad: tl.constexpr,
    tall: tl.constexpr, wide: tl.constexpr, deep: tl.constexpr, one_tap: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    """A tile of `tall` places and `wide` outputs; with `one_tap`, `deep` columns are channels of the same tap."""
    across = tl.cdiv(outputs, wide)
    client = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0) // across * tall + tl.arange(0, tall)
    out = tl.program_id(0) % across * wide + tl.arange(0, wide)
    image, place = row // (out_height * out_width), row % (out_height * out_width)
    top, left = place // out_width * stride - pad, place % out_width * stride - pad
    whole, columns = height * width * inputs, tap_rows * tap_columns * inputs
    x += client * (rows // (out_height * out_width)) * whole
    w += client * columns * outputs
    there = row < rows
    total = tl.zeros((tall, wide), tl.float32)
    for begin in range(0, columns, deep):
        column = begin + tl.arange(0, deep)
        if one_tap:
            tap = begin // inputs
            at, inside = _places(top + tap // tap_columns, left + tap % tap_columns, there, height, width, dilate, pad)
            channel = begin % inputs + tl.arange(0, deep)
            a = tl.load(x + (image * whole + at * inputs)[:, None] + channel[None, :], inside[:, None], 0.0)
        else:
            tap, channel = column // inputs, column % inputs
            seen = there[:, None] & (column < columns)[None, :]
            down, right = top[:, None] + (tap // tap_columns)[None, :], left[:, None] + (tap % tap_columns)[None, :]
            at, inside = _places(down, right, seen, height, width, dilate, pad)
            a = tl.load(x + image[:, None] * whole + at * inputs + channel[None, :], inside, 0.0)
        known = (out < outputs)[:, None] & (column < columns)[None, :]
        b = tl.load(w + out[:, None] * columns + column[None, :], known, 0.0)
        total = tl.dot(a, tl.trans(b), total, input_precision=precision)
    y += client * rows * outputs
    to = y + row[:, None] * outputs + out[None, :]
    tl.store(to, total.to(y.dtype.element_ty), there[:, None] & (out < outputs)[None, :])


@triton.jit
def _correlate(
    x, g, found, rows, share: tl.constexpr, height, width, out_height, out_width,
    inputs: tl.constexpr, outputs: tl.constexpr, tap_rows: tl.constexpr, tap_columns: tl.constexpr,
    stride: tl.constexpr, dilate: tl.constexpr, pad: tl.constexpr,
    tall: tl.constexpr, wide: tl.constexpr, deep: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    """A tile of `tall` taps times channels and `wide` outputs, summed over one share of the places."""
    across, columns = tl.cdiv(outputs, wide), tap_rows * tap_columns * inputs
    client, part = tl.program_id(2).to(tl.int64), tl.program_id(1)
    column = tl.program_id(0) // across * tall + tl.arange(0, tall)
    out = tl.program_id(0) % across * wide + tl.arange(0, wide)
    tap, channel, whole = column // inputs, column % inputs, height * width * inputs
    down, right = tap // tap_columns - pad, tap % tap_columns - pad
    x += client * (rows // (out_height * out_width)) * whole
    g += client * rows * outputs
    shift = (down * width + right) * inputs + channel
    total = tl.zeros((tall, wide), tl.float32)
    for begin in range(0, share, deep):
        row = part * share + begin + tl.arange(0, deep)
        image, place = row // (out_height * out_width), row % (out_height * out_width)
        top, left = place // out_width * stride, place % out_width * stride
        seen = (row < rows)[:, None] & (column < columns)[None, :]
        if dilate > 1:
            at, seen = _places(
                top[:, None] + down[None, :], left[:, None] + right[None, :], seen, height, width, dilate, pad
            )
            met = image[:, None] * whole + at * inputs + channel[None, :]
        else:
            if pad != 0:
                h, w = top[:, None] + down[None, :], left[:, None] + right[None, :]
                seen = seen & (h >= 0) & (w >= 0) & (h < height) & (w < width)
            met = (image * whole + (top * width + left) * inputs)[:, None] + shift[None, :]
        a = tl.load(x + met, seen, 0.0)
        b = tl.load(g + row[:, None] * outputs + out[None, :], (row < rows)[:, None] & (out < outputs)[None, :], 0.0)
        total = tl.dot(tl.trans(a), b, total, input_precision=precision)
    found += (client * tl.num_programs(1) + part) * columns * outputs
    to = found + out[:, None] * columns + column[None, :]
    tl.store(to, tl.trans(total), (out < outputs)[:, None] & (column < columns)[None, :])


@triton.jit
def _turn(x0, x1, r: tl.constexpr):
    x0 = x0 + x1
    return x0, ((x1 << r) | (x1 >> (32 - r))) ^ x0


@triton.jit
def _four(x0, x1, a: tl.constexpr, b: tl.constexpr, c: tl.constexpr, d: tl.constexpr):
    x0, x1 = _turn(x0, x1, a)
    x0, x1 = _turn(x0, x1, b)
    x0, x1 = _turn(x0, x1, c)
    return _turn(x0, x1, d)


@triton.jit
def _mix(
    key, counters, found, size, key_step: tl.constexpr, counter_step: tl.constexpr, folding: tl.constexpr,
    many: tl.constexpr,
):  # fmt: skip
    """Twenty rounds, and after every four of them a key's words added."""
    at = tl.program_id(0).to(tl.int64) * many + tl.arange(0, many)
    inside = at < size
    k = tl.load(key + at * key_step, inside, 0).to(tl.int64)
    counter = tl.load(counters + at * counter_step, inside, 0).to(tl.int64)
    k0, k1 = k.to(tl.uint32) ^ folding, (k >> 32).to(tl.uint32)
    k2 = k0 ^ k1 ^ 0x1BD11BDA
    x0, x1 = k0 + counter.to(tl.uint32), k1 + (counter >> 32).to(tl.uint32)
    x0, x1 = _four(x0, x1, 13, 15, 26, 6)
    x0, x1 = _four(x0 + k1, x1 + k2 + 1, 17, 29, 16, 24)
    x0, x1 = _four(x0 + k2, x1 + k0 + 2, 13, 15, 26, 6)
    x0, x1 = _four(x0 + k0, x1 + k1 + 3, 17, 29, 16, 24)
    x0, x1 = _four(x0 + k1, x1 + k2 + 4, 13, 15, 26, 6)
    x0, x1 = x0 + k2, x1 + k0 + 5
    tl.store(found + at, (x1.to(tl.int64) << 32) | x0.to(tl.int64), inside)
