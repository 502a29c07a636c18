# mypy: disable-error-code="no-untyped-def,untyped-decorator"
"""Triton kernels for convolutions of a whole stack of clients, each with its own weights.

Images are [clients, batch, height, width, channels] and weights [clients, outputs, height, width,
inputs], both contiguous; a geometry is (stride, pad).

Convolutions are matrix products with an implicit im2col: the rows of the left matrix are pixels,
its columns are taps of the kernel times channels, and its entries are read from the images without
building the matrix. Sums are accumulated in float32. Weights have the dimension that is summed over
last, as matrix units want it for tf32: otherwise a product would transpose them first and take
twice as long.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

NUM_PROGRAMS = 528
"""Programs that keep a large GPU busy: four for each of its multiprocessors."""

_MIN_K_PER_SPLIT = 128
"""Minimum number of pixels that a program sums over where several share a sum (split-K)."""

_MAX_TEMP_NUMEL = 1 << 26
"""Maximum number of elements of a temporary matrix."""


def triton_conv2d(x: Tensor, w: Tensor, size: tuple[int, int], geometry: tuple[int, int]) -> Tensor:
    """Compute y[h, w] = sum over taps of x[h * stride + tap - pad] @ w[tap].

    Taps outside of the images count as zero.

    Args:
        x: Images, [clients, batch, height, width, inputs].
        w: Weights, [clients, outputs, kernel height, kernel width, inputs].
        size: Height and width of the result.
        geometry: Stride and padding.
    """
    stride, pad = geometry
    return _launch_conv2d(x, w, size, stride, 1, pad)


def triton_conv2d_grad_input(
    g: Tensor, w: Tensor, size: tuple[int, int], geometry: tuple[int, int]
) -> Tensor:
    """Compute x[h, w] = sum over taps of g[(h + pad - tap) / stride] @ w[tap].

    This is the gradient of `triton_conv2d` w.r.t. its images.

    With few input channels, each pixel of g is multiplied by all taps at once, and the products are
    added where they fall (col2im): that reads less than a transposed convolution, which reads each
    pixel of g once per tap.

    Args:
        g: Gradient w.r.t. the result of `triton_conv2d`, [clients, batch, height, width, outputs].
        w: Weights of `triton_conv2d`.
        size: Height and width of the images.
        geometry: Stride and padding of `triton_conv2d`.
    """
    stride, pad = geometry
    outputs, side, _, inputs = w.shape[1:]
    if 2 * inputs > outputs:
        flipped = w.flip(2, 3).transpose(1, 4).contiguous()
        return _launch_conv2d(g, flipped, size, 1, stride, side - 1 - pad)
    clients, batch, height, width = g.shape[:4]
    x = g.new_empty(clients, batch, *size, inputs)
    rows = batch * size[0] * size[1]
    products_per_client = batch * height * width * w[0, 0].numel()
    if x.numel() == 0 or products_per_client == 0:
        return x.zero_()
    clients_per_chunk = max(1, _MAX_TEMP_NUMEL // products_per_client)
    for begin in range(0, clients, clients_per_chunk):
        chunk = slice(begin, begin + clients_per_chunk)
        x_chunk = x[chunk]
        columns = torch.bmm(g[chunk].flatten(1, 3), w[chunk].flatten(2))
        chunk_rows = len(x_chunk) * rows
        _col2im_kernel[(triton.cdiv(chunk_rows, 32),)](
            columns, x_chunk, chunk_rows, *size, height, width,
            inputs, side, side, stride, pad, 32, _round_up_to_block(inputs),
            num_warps=4,
        )  # fmt: skip
    return x


def _launch_conv2d(
    x: Tensor, w: Tensor, size: tuple[int, int], stride: int, dilate: int, pad: int
) -> Tensor:
    """Compute y[h, w] = sum over taps of x[(h * stride + tap - pad) / dilate] @ w[tap].

    Taps that fall outside of the images or between their pixels count as zero.
    """
    clients, batch, height, width, inputs = x.shape
    outputs = w.shape[1]
    kernel_height, kernel_width = w.shape[2:4]
    y = x.new_empty(clients, batch, *size, outputs)
    rows = batch * size[0] * size[1]
    if y.numel() == 0:
        return y
    precision = _choose_input_precision(x)

    # Tiles are large only if enough of them are left to keep the GPU busy.
    max_block_n = 64
    num_large_tiles = clients * triton.cdiv(rows, 64) * triton.cdiv(outputs, 128)
    if num_large_tiles >= NUM_PROGRAMS and precision == "tf32":
        max_block_n = 128
    block_n = min(_round_up_to_block(outputs), max_block_n)
    num_blocks_n = triton.cdiv(outputs, block_n)
    block_m = 64
    if block_n == 64 and clients * num_blocks_n * triton.cdiv(rows, 128) >= NUM_PROGRAMS:
        block_m = 128

    is_narrow = block_n < 64 and x.dtype == torch.bfloat16
    max_block_k = 16 if is_narrow else 32
    block_k = min(_round_up_to_block(kernel_height * kernel_width * inputs), max_block_k)
    # If possible, all columns of a block are of one tap, whose position is then computed once.
    if _largest_pow2_divisor(inputs) >= 16:
        block_k = min(block_k, _largest_pow2_divisor(inputs))
    is_one_tap = inputs % block_k == 0

    num_stages = 3 if is_narrow or block_n == 128 else 4
    grid = (triton.cdiv(rows, block_m) * num_blocks_n, clients)
    _conv2d_kernel[grid](
        x, w, y, rows, height, width, *size,
        inputs, outputs, kernel_height, kernel_width, stride, dilate, pad,
        block_m, block_n, block_k, is_one_tap, precision,
        num_warps=4, num_stages=num_stages,
    )  # fmt: skip
    return y


def triton_conv2d_grad_weight(
    x: Tensor, g: Tensor, size: tuple[int, int], geometry: tuple[int, int]
) -> Tensor:
    """Compute w[tap] = sum over pixels of x[h * stride + tap - pad] g[h, w].

    This is the gradient of `triton_conv2d` w.r.t. its weights.

    Here both factors have the dimension that is summed over first, the wrong order for tf32. So
    float32 is split into two bf16, which products take in any order: three products instead of one,
    in less than half the time, and more exact.

    Args:
        x: Images of `triton_conv2d`.
        g: Gradient w.r.t. the result of `triton_conv2d`, [clients, batch, height, width, outputs].
        size: Height and width of the kernel.
        geometry: Stride and padding of `triton_conv2d`.
    """
    dtype = x.dtype
    use_split_bf16 = _should_split_bf16(x, size)
    x_low = x
    g_low = g
    if use_split_bf16:
        x, x_low = _split_bf16(x)
        g, g_low = _split_bf16(g)
    clients, batch, height, width, inputs = x.shape
    outputs = g.shape[4]
    columns = size[0] * size[1] * inputs
    rows = batch * g.shape[2] * g.shape[3]

    max_block_m = 64 if use_split_bf16 or x.dtype == torch.float32 else 128
    block_m = min(_round_up_to_block(columns), max_block_m)
    block_n = min(_round_up_to_block(outputs), 64)
    block_k = 32
    num_tiles = triton.cdiv(columns, block_m) * triton.cdiv(outputs, 64)
    num_splits = _choose_num_splits(clients * num_tiles, rows)
    k_per_split = triton.cdiv(triton.cdiv(rows, num_splits), block_k) * block_k
    # Without pixels no kernel runs, and the sums are zero.
    allocate = torch.zeros if rows == 0 else torch.empty
    partial_sums = allocate(
        (clients, num_splits, outputs, *size, inputs), dtype=torch.float32, device=x.device
    )
    if partial_sums.numel() and rows:
        _conv2d_grad_weight_kernel[(num_tiles, num_splits, clients)](
            x, x_low, g, g_low, partial_sums,
            rows, k_per_split, height, width, *g.shape[2:4],
            inputs, outputs, *size, *geometry,
            block_m, block_n, block_k, use_split_bf16, _choose_input_precision(x),
            num_warps=4, num_stages=3,
        )  # fmt: skip
    return partial_sums.sum(1).to(dtype)


def _should_split_bf16(x: Tensor, size: tuple[int, int]) -> bool:
    """Return whether float32 is split: where tf32 is allowed, unless there are few weights."""
    is_tf32 = x.dtype == torch.float32 and torch.backends.cuda.matmul.allow_tf32
    return is_tf32 and size[0] * size[1] * x.shape[4] > 64


def _choose_num_splits(num_tiles: int, depth: int) -> int:
    """Return how many programs share the sum of a tile over `depth` pixels (split-K).

    There are as many as keep a GPU busy, but none sums over fewer than `_MIN_K_PER_SPLIT`.
    """
    if num_tiles == 0:
        return 1
    num_useful = triton.cdiv(NUM_PROGRAMS, num_tiles)
    return int(max(1, min(num_useful, triton.cdiv(depth, _MIN_K_PER_SPLIT))))


def _split_bf16(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return float32 rounded to bf16, and the rounded rest."""
    high = torch.empty_like(x, dtype=torch.bfloat16)
    low = torch.empty_like(x, dtype=torch.bfloat16)
    _split_bf16_kernel[(triton.cdiv(x.numel(), 2048),)](x, high, low, x.numel(), 2048, num_warps=8)
    return high, low


def _round_up_to_block(n: int) -> int:
    """Return the next power of two, at least 16, the smallest side of Triton's matrix products."""
    return max(16, 1 << (n - 1).bit_length())


def _largest_pow2_divisor(n: int) -> int:
    return n & -n


def _choose_input_precision(x: Tensor) -> str:
    """Return how products of float32 round their factors; for bf16 it makes no difference."""
    if x.dtype == torch.bfloat16 or torch.backends.cuda.matmul.allow_tf32:
        return "tf32"
    return "ieee"


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
    """Return the index of the pixel of an image that a tap falls on, and whether there is one."""
    if dilate > 1:
        inside = inside & (h % dilate == 0) & (w % dilate == 0)
    if (pad != 0) or (dilate > 1):
        inside = inside & (h >= 0) & (w >= 0)
        h = h // dilate
        w = w // dilate
        inside = inside & (h < height) & (w < width)
    return h * width + w, inside


@triton.jit
def _conv2d_kernel(
    x, w, y, rows, height, width, out_height, out_width,
    inputs: tl.constexpr, outputs: tl.constexpr,
    tap_rows: tl.constexpr, tap_columns: tl.constexpr,
    stride: tl.constexpr, dilate: tl.constexpr, pad: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    ONE_TAP: tl.constexpr, INPUT_PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute a tile of BLOCK_M pixels and BLOCK_N outputs of one client.

    With ONE_TAP, every block of BLOCK_K columns is of one tap of the kernel.
    """
    num_blocks_n = tl.cdiv(outputs, BLOCK_N)
    client = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0) // num_blocks_n * BLOCK_M + tl.arange(0, BLOCK_M)
    out = tl.program_id(0) % num_blocks_n * BLOCK_N + tl.arange(0, BLOCK_N)
    image = row // (out_height * out_width)
    pixel = row % (out_height * out_width)
    top = pixel // out_width * stride - pad
    left = pixel % out_width * stride - pad
    image_numel = height * width * inputs
    columns = tap_rows * tap_columns * inputs
    x += client * (rows // (out_height * out_width)) * image_numel
    w += client * columns * outputs
    row_mask = row < rows
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for begin in range(0, columns, BLOCK_K):
        column = begin + tl.arange(0, BLOCK_K)
        if ONE_TAP:
            tap = begin // inputs
            at, inside = _tap_offsets(
                top + tap // tap_columns,
                left + tap % tap_columns,
                row_mask,
                height,
                width,
                dilate,
                pad,
            )
            channel = begin % inputs + tl.arange(0, BLOCK_K)
            pixels = x + (image * image_numel + at * inputs)[:, None]
            a = tl.load(pixels + channel[None, :], inside[:, None], 0.0)
        else:
            tap = column // inputs
            channel = column % inputs
            x_mask = row_mask[:, None] & (column < columns)[None, :]
            down = top[:, None] + (tap // tap_columns)[None, :]
            right = left[:, None] + (tap % tap_columns)[None, :]
            at, inside = _tap_offsets(down, right, x_mask, height, width, dilate, pad)
            a = tl.load(
                x + image[:, None] * image_numel + at * inputs + channel[None, :], inside, 0.0
            )
        w_mask = (out < outputs)[:, None] & (column < columns)[None, :]
        b = tl.load(w + out[:, None] * columns + column[None, :], w_mask, 0.0)
        acc = tl.dot(a, tl.trans(b), acc, input_precision=INPUT_PRECISION)
    y += client * rows * outputs
    to = y + row[:, None] * outputs + out[None, :]
    tl.store(to, acc.to(y.dtype.element_ty), row_mask[:, None] & (out < outputs)[None, :])


@triton.jit
def _conv2d_grad_weight_kernel(
    x, x_low, g, g_low, partial_sums,
    rows, K_PER_SPLIT: tl.constexpr, height, width, out_height, out_width,
    inputs: tl.constexpr, outputs: tl.constexpr,
    tap_rows: tl.constexpr, tap_columns: tl.constexpr, stride: tl.constexpr, pad: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    USE_SPLIT_BF16: tl.constexpr, INPUT_PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute a tile of BLOCK_M taps times channels and BLOCK_N outputs, over one split of pixels.

    With USE_SPLIT_BF16, x and g are the high parts of float32, and x_low and g_low the low parts.
    """
    num_blocks_n = tl.cdiv(outputs, BLOCK_N)
    columns = tap_rows * tap_columns * inputs
    client = tl.program_id(2).to(tl.int64)
    split = tl.program_id(1)
    column = tl.program_id(0) // num_blocks_n * BLOCK_M + tl.arange(0, BLOCK_M)
    out = tl.program_id(0) % num_blocks_n * BLOCK_N + tl.arange(0, BLOCK_N)
    tap = column // inputs
    channel = column % inputs
    image_numel = height * width * inputs
    down = tap // tap_columns - pad
    right = tap % tap_columns - pad
    x_begin = client * (rows // (out_height * out_width)) * image_numel
    g_begin = client * rows * outputs
    x += x_begin
    x_low += x_begin
    g += g_begin
    g_low += g_begin
    shift = (down * width + right) * inputs + channel
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for begin in range(0, K_PER_SPLIT, BLOCK_K):
        row = split * K_PER_SPLIT + begin + tl.arange(0, BLOCK_K)
        image = row // (out_height * out_width)
        pixel = row % (out_height * out_width)
        top = pixel // out_width * stride
        left = pixel % out_width * stride
        x_mask = (row < rows)[:, None] & (column < columns)[None, :]
        if pad != 0:
            h = top[:, None] + down[None, :]
            w = left[:, None] + right[None, :]
            x_mask = x_mask & (h >= 0) & (w >= 0) & (h < height) & (w < width)
        x_offset = (image * image_numel + (top * width + left) * inputs)[:, None] + shift[None, :]
        a = tl.load(x + x_offset, x_mask, 0.0)
        g_mask = (row < rows)[:, None] & (out < outputs)[None, :]
        g_offset = row[:, None] * outputs + out[None, :]
        b = tl.load(g + g_offset, g_mask, 0.0)
        if USE_SPLIT_BF16:
            a_low = tl.load(x_low + x_offset, x_mask, 0.0)
            b_low = tl.load(g_low + g_offset, g_mask, 0.0)
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
    inputs: tl.constexpr, tap_rows: tl.constexpr, tap_columns: tl.constexpr,
    stride: tl.constexpr, pad: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Compute BLOCK_M pixels of images, each the sum of its products of pixels of g with taps."""
    row = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    image = row // (height * width)
    pixel = row % (height * width)
    h = pixel // width + pad
    w = pixel % width + pad
    channel = tl.arange(0, BLOCK_N)
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for tap in tl.static_range(tap_rows * tap_columns):
        down = h - tap // tap_columns
        right = w - tap % tap_columns
        inside = (row < rows) & (down >= 0) & (right >= 0)
        if stride > 1:
            inside = inside & (down % stride == 0) & (right % stride == 0)
            down = down // stride
            right = right // stride
        inside = inside & (down < out_height) & (right < out_width)
        g_pixel = (image * out_height + down) * out_width + right
        at = g_pixel * (tap_rows * tap_columns * inputs) + tap * inputs
        mask = inside[:, None] & (channel < inputs)[None, :]
        acc += tl.load(columns + at[:, None] + channel[None, :], mask, 0.0).to(tl.float32)
    to = x + row[:, None] * inputs + channel[None, :]
    tl.store(to, acc.to(x.dtype.element_ty), (row < rows)[:, None] & (channel < inputs)[None, :])


@triton.jit
def _split_bf16_kernel(x, high, low, size, BLOCK_SIZE: tl.constexpr):
    """Split BLOCK_SIZE float32 into bf16 and the rest in bf16."""
    at = tl.program_id(0).to(tl.int64) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    value = tl.load(x + at, at < size, 0.0)
    rounded = value.to(tl.bfloat16)
    tl.store(high + at, rounded, at < size)
    tl.store(low + at, (value - rounded.to(tl.float32)).to(tl.bfloat16), at < size)
