"""What bf16 gains on a CPU, product by product: python benchmarks/short_floats.py.

A client's step of FedSIM's FEMNIST network, 20 images: its second convolution, both ways, the first one as a product,
and the large dense layer, by torch, channels last, on two threads; and a product of two matrices of 2048 x 2048. The
median of 30, in milliseconds and, for what is large, GFLOP/s. Whole rounds: `ours-bf16` in compare.py, with AMX.
"""

import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as nnf

from results import in_words, machine

THREADS, TURNS, LARGE = 2, 30, 2048
CONVOLUTION = 2 * 20 * 24 * 24 * 64 * 32 * 9 / 1e9
"""Billions of operations, one way."""


def milliseconds(function: Callable[[], object]) -> float:
    """The median, once warm."""
    times = []
    for _ in range(5 + TURNS):
        began = time.perf_counter()
        function()
        times.append(1000 * (time.perf_counter() - began))
    return statistics.median(times[5:])


def convolution_back(g: Tensor, x: Tensor, w: Tensor, by_images: bool, by_weights: bool) -> object:
    """The gradient of a plain convolution by what is asked for."""
    asked = [by_images, by_weights, False]
    return torch.ops.aten.convolution_backward(g, x, w, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, asked)


def parts(dtype: torch.dtype) -> dict[str, tuple[Callable[[], object], float]]:
    """What is timed, and its billions of operations, if they are worth telling."""

    def drawn(*shape: int) -> Tensor:
        made = torch.randn(shape).to(dtype)
        return made.contiguous(memory_format=torch.channels_last) if len(shape) == 4 else made

    x, w, g = drawn(20, 32, 26, 26), drawn(64, 32, 3, 3), drawn(20, 64, 24, 24)
    met, taps, back = drawn(9, 20 * 676), drawn(32, 9), drawn(20 * 676, 32)
    seen, dense, out, large = drawn(20, 9216), drawn(128, 9216), drawn(20, 128), drawn(LARGE, LARGE)
    return {
        "large product": (lambda: large @ large, 2 * LARGE**3 / 1e9),
        "second convolution": (lambda: nnf.conv2d(x, w), CONVOLUTION),
        "back by images": (lambda: convolution_back(g, x, w, True, False), CONVOLUTION),
        "back by weights": (lambda: convolution_back(g, x, w, False, True), CONVOLUTION),
        "first convolution": (lambda: met.t() @ taps.t(), 0),
        "back by its weights": (lambda: met @ back, 0),
        "dense layer": (lambda: seen @ dense.t(), 0),
        "back by its inputs": (lambda: out @ dense, 0),
        "back by its weights, dense": (lambda: out.t() @ seen, 0),
    }


def main() -> None:
    """Measures and prints."""
    torch.set_num_threads(THREADS)
    print(in_words(machine()))
    for dtype in (torch.float32, torch.bfloat16):
        for name, (function, gflop) in parts(dtype).items():
            ms = milliseconds(function)
            print(f"{dtype}: {name}: {ms:.2f} ms" + (f", {1000 * gflop / ms:.0f} GFLOP/s" if gflop else ""), flush=True)


if __name__ == "__main__":
    main()
