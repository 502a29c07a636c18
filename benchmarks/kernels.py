"""The kernels for stacked convolutions, alone on a GPU: microseconds and TFLOP/s, beside cuDNN's grouped ones.

    python benchmarks/kernels.py [CLIENTS]

The layer is the second one of FedSIM's network for FEMNIST: batches of 20 images of 26 x 26 with 32 channels, 64
outputs, windows of 3 x 3. Forward, back by images and back by weights, in tf32 and bf16. Each is recorded 20 times in a
CUDA graph, so that the host does not count; the median of 9 turns, in which all take part one after another. "Two" is
the sum of two, as derivatives along a direction have it, and its TFLOP/s count both.
"""

import statistics
import sys
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as nnf

from fedtailor import kernels
from fedtailor.convolution import Window
from fedtailor.engines.base import calculate_in_tf32

BATCH, SIDE, INPUTS, OUTPUTS, TAPS, TURNS, TIMES = 20, 26, 32, 64, 3, 9, 20
Way = Callable[[], object]


def ways(clients: int, dtype: torch.dtype) -> dict[str, Way]:
    """What is timed."""
    size, window, plain = (SIDE - TAPS + 1,) * 2, Window(), (TAPS, TAPS)
    shapes = (
        (clients, BATCH, SIDE, SIDE, INPUTS),
        (clients, OUTPUTS, TAPS, TAPS, INPUTS),
        (clients, BATCH, *size, OUTPUTS),
    )
    x, w, g, _, v, h = (torch.randn(shape, device="cuda", dtype=dtype) for shape in shapes * 2)
    grouped_x, grouped_g = (each.permute(1, 0, 4, 2, 3).flatten(1, 2).contiguous() for each in (x, g))
    grouped_w = w.permute(0, 1, 4, 2, 3).flatten(0, 1).contiguous()

    def gradient(by: list[bool]) -> Way:
        options = None, [1, 1], [0, 0], [1, 1], False, [0, 0], clients, by
        return lambda: torch.ops.aten.convolution_backward(grouped_g, grouped_x, grouped_w, *options)

    def forward() -> Tensor:
        return nnf.conv2d(grouped_x, grouped_w, groups=clients)

    return {
        "forward": lambda: kernels.convolve(x, w, size, window),
        "forward, cuDNN": forward,
        "back by images": lambda: kernels.convolve_back(g, w, (SIDE, SIDE), window),
        "back by images, two": lambda: kernels.convolve_back(
            torch.cat([g, h], -1), torch.cat([w, v], 1), (SIDE, SIDE), window
        ),
        "back by images, cuDNN": gradient([True, False, False]),
        "back by weights": lambda: kernels.correlate(x, g, plain, window),
        "back by weights, cuDNN": gradient([False, True, False]),
    }


def recorded(way: Way) -> torch.cuda.CUDAGraph:
    """Many times the same in a CUDA graph."""
    aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(aside):
        for _ in range(3):
            way()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(TIMES):
            way()
    return graph


def microseconds(graph: torch.cuda.CUDAGraph) -> float:
    """What one of them takes."""
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    began.record()
    graph.replay()
    ended.record()
    torch.cuda.synchronize()
    return 1000 * float(began.elapsed_time(ended)) / TIMES


def main(clients: int) -> None:
    """Measures and prints."""
    calculate_in_tf32(True)
    operations = 2 * clients * BATCH * (SIDE - TAPS + 1) ** 2 * TAPS**2 * INPUTS * OUTPUTS
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {clients} clients")
    for name, dtype in {"tf32": torch.float32, "bf16": torch.bfloat16}.items():
        graphs = {what: recorded(way) for what, way in ways(clients, dtype).items()}
        times = [[microseconds(graph) for graph in graphs.values()] for _ in range(TURNS)]
        for what, each in zip(graphs, zip(*times, strict=True), strict=True):
            spent = statistics.median(each)
            done = operations * (2 if what.endswith("two") else 1)
            told = f"{spent:7.1f} us ({min(each):.1f}-{max(each):.1f}), {done / spent / 1e6:.0f} TFLOP/s"
            print(f"{name} {what:24} {told}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10)
