# mypy: disable-error-code="no-untyped-def,untyped-decorator"
"""Triton kernels: convolutions of a whole stack of clients, each with its own weights.

Images are [clients, batch, height, width, channels] and weights [clients, outputs, height, width, inputs], contiguous.
They are products of matrices whose left one is never made: its rows are pixels of images, its columns taps of the
window times channels, and its entries are read where they lie. Sums are kept in float32. Weights lie as matrix units
want them for tf32, what is summed over last: else a product would turn them first, and take twice as long. Windows are
(stride, pad).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

NUM_PROGRAMS = 528
"""Programs that keep a large GPU busy: four for each of its multiprocessors."""


_MIN_K_PER_SPLIT = 128
"""Places that a program sums over at least, where several share them."""


_MAX_TEMP_NUMEL = 1 << 26
"""Numbers that a product may leave behind for a moment."""


def triton_conv2d(x: Tensor, w: Tensor, size: tuple[int, int], geometry: tuple[int, int]) -> Tensor:
    """y[h, w] = sum over taps of x[h stride + tap - pad] w[tap], where that is a place of x."""
    return _launch_conv2d(x, w, size, geometry[0], 1, geometry[1])


def triton_conv2d_grad_input(
    g: Tensor, w: Tensor, size: tuple[int, int], geometry: tuple[int, int]
) -> Tensor:
    """x[h, w] = sum over taps of g[(h + pad - tap) / stride] w[tap]: the gradient of `convolve` by images.

    Where there are few inputs, each place of g is multiplied by all taps at once and the products are summed where they
    fall: less is read than by a convolution the other way round, which reads each place of g once for every tap.
    """
    (stride, pad), (outputs, side, _, inputs) = geometry, w.shape[1:]
    if 2 * inputs > outputs:
        return _launch_conv2d(
            g, w.flip(2, 3).transpose(1, 4).contiguous(), size, 1, stride, side - 1 - pad
        )
    clients, batch, height, width = g.shape[:4]
    x = g.new_empty(clients, batch, *size, inputs)
    rows, products = batch * size[0] * size[1], batch * height * width * w[0, 0].numel()
    if x.numel() == 0 or products == 0:
        return x.zero_()
    clients_per_chunk = max(1, _MAX_TEMP_NUMEL // products)
    for begin in range(0, clients, clients_per_chunk):
        g_chunk, w_chunk, x_chunk = (each[begin : begin + clients_per_chunk] for each in (g, w, x))
        columns = torch.bmm(g_chunk.flatten(1, 3), w_chunk.flatten(2))
        _col2im_kernel[(triton.cdiv(len(g_chunk) * rows, 32),)](
            columns, x_chunk, len(g_chunk) * rows, *size, height, width,
            inputs, side, side, stride, pad, 32, _round_up_to_block(inputs),
            num_warps=4,
        )  # fmt: skip
    return x


def _launch_conv2d(
    x: Tensor, w: Tensor, size: tuple[int, int], stride: int, dilate: int, pad: int
) -> Tensor:
    """y[h, w] = sum over taps of x[(h stride + tap - pad) / dilate] w[tap], where that is a place of x."""
    clients, batch, height, width, inputs = x.shape
    outputs = w.shape[1]
    y = x.new_empty(clients, batch, *size, outputs)
    rows = batch * size[0] * size[1]
    if y.numel() == 0:
        return y
    is_large = clients * triton.cdiv(rows, 64) * triton.cdiv(outputs, 128) >= NUM_PROGRAMS
    block_n = min(
        _round_up_to_block(outputs),
        128 if is_large and _choose_input_precision(x) == "tf32" else 64,
    )
    num_blocks_n, is_narrow = (
        triton.cdiv(outputs, block_n),
        block_n < 64 and x.dtype == torch.bfloat16,
    )
    block_m = (
        128
        if block_n == 64 and clients * num_blocks_n * triton.cdiv(rows, 128) >= NUM_PROGRAMS
        else 64
    )
    block_k = min(_round_up_to_block(w.shape[2] * w.shape[3] * inputs), 16 if is_narrow else 32)
    block_k = (
        min(block_k, _largest_pow2_divisor(inputs))
        if _largest_pow2_divisor(inputs) >= 16
        else block_k
    )
    grid = (triton.cdiv(rows, block_m) * num_blocks_n, clients)
    _conv2d_kernel[grid](
        x, w, y, rows, height, width, *size, inputs, outputs, *w.shape[2:4], stride, dilate, pad,
        block_m, block_n, block_k, inputs % block_k == 0, _choose_input_precision(x),
        num_warps=4, num_stages=3 if is_narrow or block_n == 128 else 4,
    )  # fmt: skip
    return y


def triton_conv2d_grad_weight(
    x: Tensor, g: Tensor, size: tuple[int, int], geometry: tuple[int, int]
) -> Tensor:
    """w[tap] = sum over places of x[h stride + tap - pad] g[h, w]: the gradient of `convolve` by weights.

    Here both factors lie the wrong way for tf32, so float32 is split into two bf16, whose products may lie as they do:
    in three products rather than one, less than half the time, and more exact.
    """
    dtype = x.dtype
    x_low, g_low = x, g
    if _should_split_bf16(x, size):
        x, x_low = _split_bf16(x)
        g, g_low = _split_bf16(g)
    clients, batch, height, width, inputs = x.shape
    outputs, taps = g.shape[4], size[0] * size[1]
    rows, use_split_bf16 = batch * g.shape[2] * g.shape[3], x_low is not x
    block_m = min(
        _round_up_to_block(taps * inputs), 64 if use_split_bf16 or x.dtype == torch.float32 else 128
    )
    block_n, block_k = min(_round_up_to_block(outputs), 64), 32
    num_tiles = triton.cdiv(taps * inputs, block_m) * triton.cdiv(outputs, 64)
    num_splits = _choose_num_splits(clients * num_tiles, rows)
    k_per_split = triton.cdiv(triton.cdiv(rows, num_splits), block_k) * block_k
    allocate = torch.zeros if rows == 0 else torch.empty
    partial_sums = allocate(
        (clients, num_splits, outputs, *size, inputs), dtype=torch.float32, device=x.device
    )
    if partial_sums.numel() and rows:
        _conv2d_grad_weight_kernel[(num_tiles, num_splits, clients)](
            x, x_low, g, g_low, partial_sums, rows, k_per_split, height, width, *g.shape[2:4],
            inputs, outputs, *size, *geometry,
            block_m, block_n, block_k, use_split_bf16, _choose_input_precision(x), num_warps=4, num_stages=3,
        )  # fmt: skip
    return partial_sums.sum(1).to(dtype)


def _should_split_bf16(x: Tensor, size: tuple[int, int]) -> bool:
    """Return whether float32 is split: where it may be rounded to tf32, unless the weights are few."""
    may_round = x.dtype == torch.float32 and torch.backends.cuda.matmul.allow_tf32
    return may_round and size[0] * size[1] * x.shape[4] > 64


def _choose_num_splits(num_tiles: int, depth: int) -> int:
    """Return in how many sums products with this many tiles, which sum over `depth`, keep a GPU busy (split-K)."""
    return (
        max(1, min(triton.cdiv(NUM_PROGRAMS, num_tiles), triton.cdiv(depth, _MIN_K_PER_SPLIT)))
        if num_tiles
        else 1
    )


def _split_bf16(x: Tensor) -> tuple[Tensor, Tensor]:
    """What bf16 keeps of float32, and what it keeps of the rest."""
    high, low = (torch.empty_like(x, dtype=torch.bfloat16) for _ in range(2))
    _split_bf16_kernel[(triton.cdiv(x.numel(), 2048),)](x, high, low, x.numel(), 2048, num_warps=8)
    return high, low


def _round_up_to_block(n: int) -> int:
    """The least power of two that is no smaller, and at least 16, as products of matrices want it."""
    return max(16, 1 << (n - 1).bit_length())


def _largest_pow2_divisor(n: int) -> int:
    """The largest power of two that divides."""
    return n & -n


def _choose_input_precision(x: Tensor) -> str:
    return "tf32" if x.dtype == torch.bfloat16 or torch.backends.cuda.matmul.allow_tf32 else "ieee"


@triton.jit
def _tap_offsets(
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
def _conv2d_kernel(
    x, w, y, rows, height, width, out_height, out_width,
    inputs: tl.constexpr, outputs: tl.constexpr, tap_rows: tl.constexpr, tap_columns: tl.constexpr,
    stride: tl.constexpr, dilate: tl.constexpr, pad: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, ONE_TAP: tl.constexpr,
    INPUT_PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute a tile of BLOCK_M pixels and BLOCK_N outputs; with ONE_TAP, BLOCK_K columns are of one tap."""
    num_blocks_n = tl.cdiv(outputs, BLOCK_N)
    client = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0) // num_blocks_n * BLOCK_M + tl.arange(0, BLOCK_M)
    out = tl.program_id(0) % num_blocks_n * BLOCK_N + tl.arange(0, BLOCK_N)
    image, pixel = row // (out_height * out_width), row % (out_height * out_width)
    top, left = pixel // out_width * stride - pad, pixel % out_width * stride - pad
    whole, columns = height * width * inputs, tap_rows * tap_columns * inputs
    x += client * (rows // (out_height * out_width)) * whole
    w += client * columns * outputs
    there = row < rows
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for begin in range(0, columns, BLOCK_K):
        column = begin + tl.arange(0, BLOCK_K)
        if ONE_TAP:
            tap = begin // inputs
            at, inside = _tap_offsets(
                top + tap // tap_columns,
                left + tap % tap_columns,
                there,
                height,
                width,
                dilate,
                pad,
            )
            channel = begin % inputs + tl.arange(0, BLOCK_K)
            a = tl.load(
                x + (image * whole + at * inputs)[:, None] + channel[None, :], inside[:, None], 0.0
            )
        else:
            tap, channel = column // inputs, column % inputs
            seen = there[:, None] & (column < columns)[None, :]
            down, right = (
                top[:, None] + (tap // tap_columns)[None, :],
                left[:, None] + (tap % tap_columns)[None, :],
            )
            at, inside = _tap_offsets(down, right, seen, height, width, dilate, pad)
            a = tl.load(x + image[:, None] * whole + at * inputs + channel[None, :], inside, 0.0)
        known = (out < outputs)[:, None] & (column < columns)[None, :]
        b = tl.load(w + out[:, None] * columns + column[None, :], known, 0.0)
        acc = tl.dot(a, tl.trans(b), acc, input_precision=INPUT_PRECISION)
    y += client * rows * outputs
    to = y + row[:, None] * outputs + out[None, :]
    tl.store(to, acc.to(y.dtype.element_ty), there[:, None] & (out < outputs)[None, :])


@triton.jit
def _conv2d_grad_weight_kernel(
    x, x_low, g, g_low, partial_sums, rows, K_PER_SPLIT: tl.constexpr, height, width, out_height, out_width,
    inputs: tl.constexpr, outputs: tl.constexpr, tap_rows: tl.constexpr, tap_columns: tl.constexpr,
    stride: tl.constexpr, pad: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, USE_SPLIT_BF16: tl.constexpr,
    INPUT_PRECISION: tl.constexpr,
):  # fmt: skip
    """A tile of `tall` taps times channels and `wide` outputs, summed over one share of the places."""
    num_blocks_n, columns = tl.cdiv(outputs, BLOCK_N), tap_rows * tap_columns * inputs
    client, split = tl.program_id(2).to(tl.int64), tl.program_id(1)
    column = tl.program_id(0) // num_blocks_n * BLOCK_M + tl.arange(0, BLOCK_M)
    out = tl.program_id(0) % num_blocks_n * BLOCK_N + tl.arange(0, BLOCK_N)
    tap, channel, whole = column // inputs, column % inputs, height * width * inputs
    down, right = tap // tap_columns - pad, tap % tap_columns - pad
    before, before_g = client * (rows // (out_height * out_width)) * whole, client * rows * outputs
    x, x_low, g, g_low = x + before, x_low + before, g + before_g, g_low + before_g
    shift = (down * width + right) * inputs + channel
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for begin in range(0, K_PER_SPLIT, BLOCK_K):
        row = split * K_PER_SPLIT + begin + tl.arange(0, BLOCK_K)
        image, pixel = row // (out_height * out_width), row % (out_height * out_width)
        top, left = pixel // out_width * stride, pixel % out_width * stride
        seen = (row < rows)[:, None] & (column < columns)[None, :]
        if pad != 0:
            h, w = top[:, None] + down[None, :], left[:, None] + right[None, :]
            seen = seen & (h >= 0) & (w >= 0) & (h < height) & (w < width)
        met = (image * whole + (top * width + left) * inputs)[:, None] + shift[None, :]
        a = tl.load(x + met, seen, 0.0)
        known, at_g = (
            (row < rows)[:, None] & (out < outputs)[None, :],
            row[:, None] * outputs + out[None, :],
        )
        b = tl.load(g + at_g, known, 0.0)
        if USE_SPLIT_BF16:
            a_low, b_low = tl.load(x_low + met, seen, 0.0), tl.load(g_low + at_g, known, 0.0)
            acc = tl.dot(tl.trans(a), b, acc)
            acc = tl.dot(tl.trans(a_low), b, acc)
            acc = tl.dot(tl.trans(a), b_low, acc)
        else:
            acc = tl.dot(tl.trans(a), b, acc, input_precision=INPUT_PRECISION)
    partial_sums += (client * tl.num_programs(1) + split) * columns * outputs
    to = partial_sums + out[:, None] * columns + column[None, :]
    tl.store(to, tl.trans(acc), (out < outputs)[:, None] & (column < columns)[None, :])


@triton.jit
def _col2im_kernel(
    columns, x, rows, height, width, out_height, out_width,
    inputs: tl.constexpr, tap_rows: tl.constexpr, tap_columns: tl.constexpr, stride: tl.constexpr, pad: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """`tall` places of images, each the sum of its shares in the products of places with taps."""
    row = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    image, pixel = row // (height * width), row % (height * width)
    h, w, channel = pixel // width + pad, pixel % width + pad, tl.arange(0, BLOCK_N)
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for tap in tl.static_range(tap_rows * tap_columns):
        down, right = h - tap // tap_columns, w - tap % tap_columns
        inside = (row < rows) & (down >= 0) & (right >= 0)
        if stride > 1:
            inside = inside & (down % stride == 0) & (right % stride == 0)
            down, right = down // stride, right // stride
        inside = inside & (down < out_height) & (right < out_width)
        at = ((image * out_height + down) * out_width + right) * (
            tap_rows * tap_columns * inputs
        ) + tap * inputs
        known = inside[:, None] & (channel < inputs)[None, :]
        acc += tl.load(columns + at[:, None] + channel[None, :], known, 0.0).to(tl.float32)
    to = x + row[:, None] * inputs + channel[None, :]
    tl.store(to, acc.to(x.dtype.element_ty), (row < rows)[:, None] & (channel < inputs)[None, :])


@triton.jit
def _split_bf16_kernel(x, high, low, size, BLOCK_SIZE: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    value = tl.load(x + at, at < size, 0.0)
    rounded = value.to(tl.bfloat16)
    tl.store(high + at, rounded, at < size)
    tl.store(low + at, (value - rounded.to(tl.float32)).to(tl.bfloat16), at < size)
