# mypy: disable-error-code="no-untyped-def,untyped-decorator"
"""Triton kernels: convolutions and long products of a whole stack of clients, each with its own weights; random bits.

Images are [clients, batch, height, width, channels] and weights [clients, outputs, height, width, inputs], contiguous.
They are products of matrices whose left one is never made: its rows are places of images, its columns taps of the
window times channels, and its entries are read where they lie. Sums are kept in float32. Weights lie as matrix units
want them for tf32, what is summed over last: else a product would turn them first, and take twice as long. Windows are
(stride, pad). Random bits are those of `keyed`.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

PROGRAMS = 528
"""Programs that keep a large GPU busy: four for each of its multiprocessors."""
_LEAST = 128
"""Places that a program sums over at least, where several share them."""
_MOST = 1 << 26
"""Numbers that a product may leave behind for a moment."""


def convolve(x: Tensor, w: Tensor, size: tuple[int, int], window: tuple[int, int]) -> Tensor:
    """y[h, w] = sum over taps of x[h stride + tap - pad] w[tap], where that is a place of x."""
    return _convolved(x, w, size, window[0], 1, window[1])


def convolve_back(g: Tensor, w: Tensor, size: tuple[int, int], window: tuple[int, int]) -> Tensor:
    """x[h, w] = sum over taps of g[(h + pad - tap) / stride] w[tap]: the gradient of `convolve` by images.

    Where there are few inputs, each place of g is multiplied by all taps at once and the products are summed where they
    fall: less is read than by a convolution the other way round, which reads each place of g once for every tap.
    """
    (stride, pad), (outputs, side, _, inputs) = window, w.shape[1:]
    if 2 * inputs > outputs:
        return _convolved(g, w.flip(2, 3).transpose(1, 4).contiguous(), size, 1, stride, side - 1 - pad)
    clients, batch, height, width = g.shape[:4]
    x = g.new_empty(clients, batch, *size, inputs)
    rows, products = batch * size[0] * size[1], batch * height * width * w[0, 0].numel()
    if x.numel() == 0 or products == 0:
        return x.zero_()
    most = max(1, _MOST // products)
    for begin in range(0, clients, most):
        of, by, to = (each[begin : begin + most] for each in (g, w, x))
        shares = torch.bmm(of.flatten(1, 3), by.flatten(2))
        _gather[(triton.cdiv(len(of) * rows, 32),)](
            shares, to, len(of) * rows, *size, height, width, inputs, side, side, stride, pad, 32, _above(inputs),
            num_warps=4,
        )  # fmt: skip
    return x


def _convolved(x: Tensor, w: Tensor, size: tuple[int, int], stride: int, dilate: int, pad: int) -> Tensor:
    """y[h, w] = sum over taps of x[(h stride + tap - pad) / dilate] w[tap], where that is a place of x."""
    clients, batch, height, width, inputs = x.shape
    outputs = w.shape[1]
    y = x.new_empty(clients, batch, *size, outputs)
    rows = batch * size[0] * size[1]
    if y.numel() == 0:
        return y
    many = clients * triton.cdiv(rows, 64) * triton.cdiv(outputs, 128) >= PROGRAMS
    wide = min(_above(outputs), 128 if many and _precision(x) == "tf32" else 64)
    across, small = triton.cdiv(outputs, wide), wide < 64 and x.dtype == torch.bfloat16
    tall = 128 if wide == 64 and clients * across * triton.cdiv(rows, 128) >= PROGRAMS else 64
    deep = min(_above(w.shape[2] * w.shape[3] * inputs), 16 if small else 32)
    deep = min(deep, _whole(inputs)) if _whole(inputs) >= 16 else deep
    grid = (triton.cdiv(rows, tall) * across, clients)
    _convolve[grid](
        x, w, y, rows, height, width, *size, inputs, outputs, *w.shape[2:4], stride, dilate, pad,
        tall, wide, deep, inputs % deep == 0, _precision(x), num_warps=4, num_stages=3 if small or wide == 128 else 4,
    )  # fmt: skip
    return y


def correlate(x: Tensor, g: Tensor, size: tuple[int, int], window: tuple[int, int]) -> Tensor:
    """w[tap] = sum over places of x[h stride + tap - pad] g[h, w]: the gradient of `convolve` by weights.

    Here both factors lie the wrong way for tf32, so float32 is split into two bf16, whose products may lie as they do:
    in three products rather than one, less than half the time, and more exact.
    """
    dtype = x.dtype
    x_low, g_low = x, g
    if _is_split(x, size):
        x, x_low = _halved(x)
        g, g_low = _halved(g)
    clients, batch, height, width, inputs = x.shape
    outputs, taps = g.shape[4], size[0] * size[1]
    rows, halves = batch * g.shape[2] * g.shape[3], x_low is not x
    tall = min(_above(taps * inputs), 64 if halves or x.dtype == torch.float32 else 128)
    wide, deep = min(_above(outputs), 64), 32
    each = triton.cdiv(taps * inputs, tall) * triton.cdiv(outputs, 64)
    parts = _shares(clients * each, rows)
    share = triton.cdiv(triton.cdiv(rows, parts), deep) * deep
    sums = torch.zeros if rows == 0 else torch.empty
    found = sums((clients, parts, outputs, *size, inputs), dtype=torch.float32, device=x.device)
    if found.numel() and rows:
        _correlate[(each, parts, clients)](
            x, x_low, g, g_low, found, rows, share, height, width, *g.shape[2:4], inputs, outputs, *size, *window,
            tall, wide, deep, halves, _precision(x), num_warps=4, num_stages=3,
        )  # fmt: skip
    return found.sum(1).to(dtype)


def _is_split(x: Tensor, size: tuple[int, int]) -> bool:
    """Return whether float32 is split: where it may be rounded to tf32, unless the weights are few."""
    may_round = x.dtype == torch.float32 and torch.backends.cuda.matmul.allow_tf32
    return may_round and size[0] * size[1] * x.shape[4] > 64


def _shares(count: int, depth: int) -> int:
    """Return in how many sums products with this many tiles, which sum over `depth`, keep a GPU busy (split-K)."""
    return max(1, min(triton.cdiv(PROGRAMS, count), triton.cdiv(depth, _LEAST))) if count else 1


def _halved(x: Tensor) -> tuple[Tensor, Tensor]:
    """What bf16 keeps of float32, and what it keeps of the rest."""
    high, low = (torch.empty_like(x, dtype=torch.bfloat16) for _ in range(2))
    _halve[(triton.cdiv(x.numel(), 2048),)](x, high, low, x.numel(), 2048, num_warps=8)
    return high, low


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
    x, x_low, g, g_low, found, rows, share: tl.constexpr, height, width, out_height, out_width,
    inputs: tl.constexpr, outputs: tl.constexpr, tap_rows: tl.constexpr, tap_columns: tl.constexpr,
    stride: tl.constexpr, pad: tl.constexpr,
    tall: tl.constexpr, wide: tl.constexpr, deep: tl.constexpr, halves: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    """A tile of `tall` taps times channels and `wide` outputs, summed over one share of the places."""
    across, columns = tl.cdiv(outputs, wide), tap_rows * tap_columns * inputs
    client, part = tl.program_id(2).to(tl.int64), tl.program_id(1)
    column = tl.program_id(0) // across * tall + tl.arange(0, tall)
    out = tl.program_id(0) % across * wide + tl.arange(0, wide)
    tap, channel, whole = column // inputs, column % inputs, height * width * inputs
    down, right = tap // tap_columns - pad, tap % tap_columns - pad
    before, before_g = client * (rows // (out_height * out_width)) * whole, client * rows * outputs
    x, x_low, g, g_low = x + before, x_low + before, g + before_g, g_low + before_g
    shift = (down * width + right) * inputs + channel
    total = tl.zeros((tall, wide), tl.float32)
    for begin in range(0, share, deep):
        row = part * share + begin + tl.arange(0, deep)
        image, place = row // (out_height * out_width), row % (out_height * out_width)
        top, left = place // out_width * stride, place % out_width * stride
        seen = (row < rows)[:, None] & (column < columns)[None, :]
        if pad != 0:
            h, w = top[:, None] + down[None, :], left[:, None] + right[None, :]
            seen = seen & (h >= 0) & (w >= 0) & (h < height) & (w < width)
        met = (image * whole + (top * width + left) * inputs)[:, None] + shift[None, :]
        a = tl.load(x + met, seen, 0.0)
        known, at_g = (row < rows)[:, None] & (out < outputs)[None, :], row[:, None] * outputs + out[None, :]
        b = tl.load(g + at_g, known, 0.0)
        if halves:
            a_low, b_low = tl.load(x_low + met, seen, 0.0), tl.load(g_low + at_g, known, 0.0)
            total = tl.dot(tl.trans(a), b, total)
            total = tl.dot(tl.trans(a_low), b, total)
            total = tl.dot(tl.trans(a), b_low, total)
        else:
            total = tl.dot(tl.trans(a), b, total, input_precision=precision)
    found += (client * tl.num_programs(1) + part) * columns * outputs
    to = found + out[:, None] * columns + column[None, :]
    tl.store(to, tl.trans(total), (out < outputs)[:, None] & (column < columns)[None, :])


@triton.jit
def _gather(
    shares, x, rows, height, width, out_height, out_width,
    inputs: tl.constexpr, tap_rows: tl.constexpr, tap_columns: tl.constexpr, stride: tl.constexpr, pad: tl.constexpr,
    tall: tl.constexpr, wide: tl.constexpr,
):  # fmt: skip
    """`tall` places of images, each the sum of its shares in the products of places with taps."""
    row = tl.program_id(0).to(tl.int64) * tall + tl.arange(0, tall)
    image, place = row // (height * width), row % (height * width)
    h, w, channel = place // width + pad, place % width + pad, tl.arange(0, wide)
    total = tl.zeros((tall, wide), tl.float32)
    for tap in tl.static_range(tap_rows * tap_columns):
        down, right = h - tap // tap_columns, w - tap % tap_columns
        inside = (row < rows) & (down >= 0) & (right >= 0)
        if stride > 1:
            inside = inside & (down % stride == 0) & (right % stride == 0)
            down, right = down // stride, right // stride
        inside = inside & (down < out_height) & (right < out_width)
        at = ((image * out_height + down) * out_width + right) * (tap_rows * tap_columns * inputs) + tap * inputs
        known = inside[:, None] & (channel < inputs)[None, :]
        total += tl.load(shares + at[:, None] + channel[None, :], known, 0.0).to(tl.float32)
    to = x + row[:, None] * inputs + channel[None, :]
    tl.store(to, total.to(x.dtype.element_ty), (row < rows)[:, None] & (channel < inputs)[None, :])


@triton.jit
def _halve(x, high, low, size, many: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * many + tl.arange(0, many)
    whole = tl.load(x + at, at < size, 0.0)
    rounded = whole.to(tl.bfloat16)
    tl.store(high + at, rounded, at < size)
    tl.store(low + at, (whole - rounded.to(tl.float32)).to(tl.bfloat16), at < size)


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
