"""Kernels in Triton's interpreter: torch's own operations in double precision are the oracle."""

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from code_under_test import (
    INTERPRETED,
    conv2d_triton,
    interpreting,
    put_everywhere,
    threefry_triton,
)
from torch import Tensor
from torch.nn import functional as nnf

pytest_plugins = ["gpu_fixtures"]
if not INTERPRETED:
    pytest.skip("needs TRITON_INTERPRET=1", allow_module_level=True)


class Shape(NamedTuple):
    """A stack of convolutions."""

    clients: int
    batch: int
    height: int
    width: int
    inputs: int
    outputs: int
    side: int
    stride: int
    pad: int

    @property
    def window(self) -> tuple[int, int]:
        return self.stride, self.pad

    @property
    def size(self) -> tuple[int, int]:
        """An image's height and width after the convolution."""
        reach = 2 * self.pad - self.side
        return (self.height + reach) // self.stride + 1, (self.width + reach) // self.stride + 1

    @property
    def products_are_rounded(self) -> bool:
        """Whether the way back sums up products that are rounded, as it does for few inputs."""
        return 2 * self.inputs <= self.outputs


SHAPES = [
    Shape(2, 3, 10, 9, 1, 32, 3, 1, 0),  # one channel
    Shape(2, 2, 9, 8, 16, 20, 3, 2, 1),  # a stride, and padding on all sides
    Shape(2, 2, 8, 8, 3, 24, 5, 2, 2),  # wide windows, few inputs
    Shape(1, 2, 7, 7, 48, 16, 1, 2, 0),  # windows of one place that leave places out
    Shape(2, 5, 8, 8, 6, 16, 5, 1, 0),
    Shape(2, 3, 9, 9, 32, 70, 3, 1, 1),  # outputs in two tiles, and whole tiles of one tap
    Shape(2, 5, 8, 7, 32, 40, 3, 1, 1),  # tiles 128 tall, where there are few programs
    Shape(1, 3, 7, 9, 32, 130, 3, 2, 1),  # tiles 128 wide, where there are few programs
    Shape(2, 2, 5, 6, 72, 72, 2, 1, 1),
]
FEW, MANY = 1, 528
"""Programs that keep a GPU busy: tiles are large where there are few."""
TF32, FLOAT32 = 5e-7, 5e-7
"""How far sums in float32 may be off, if their factors are exact or rounded alike."""


def drawn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape))).to(dtype)


def factors(shape: Shape, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    """Images, weights and a gradient by the result."""
    clients, batch, height, width, inputs, outputs, side, *_ = shape
    return (
        drawn(clients, batch, height, width, inputs, dtype=dtype),
        drawn(clients, outputs, side, side, inputs, dtype=dtype, seed=1),
        drawn(clients, batch, *shape.size, outputs, dtype=dtype, seed=2),
    )


def expected(x: Tensor, w: Tensor, g: Tensor, shape: Shape) -> tuple[Tensor, Tensor, Tensor]:
    """The result and its gradients by images and weights, client by client in double precision."""
    found = []
    for images, weights, by in zip(x.double(), w.double(), g.double(), strict=True):
        given = [
            each.permute(0, 3, 1, 2).contiguous().requires_grad_() for each in (images, weights)
        ]
        result = nnf.conv2d(given[0], given[1], None, shape.stride, shape.pad)
        gradients = torch.autograd.grad(result, given, by.permute(0, 3, 1, 2))
        found.append([each.detach().permute(0, 2, 3, 1) for each in (result, *gradients)])
    result, by_x, by_w = (torch.stack(each) for each in zip(*found, strict=True))
    return result, by_x, by_w


def in_tf32(x: Tensor) -> Tensor:
    return torch.from_numpy(interpreting.rounded_to_tf32(x.numpy()))


def gap(found: Tensor, exact: Tensor) -> float:
    assert found.shape == exact.shape
    assert torch.isfinite(found).all()
    return float((found.double() - exact).norm() / exact.norm())


def share_rounded_right(found: Tensor, exact: Tensor) -> float:
    """The share of numbers in bf16 that are those nearest to the exact ones."""
    assert found.shape == exact.shape
    assert found.dtype == torch.bfloat16
    return float((found == exact.bfloat16()).double().mean())


@pytest.fixture(params=[FEW, MANY])
def programs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    put_everywhere(monkeypatch, "NUM_PROGRAMS", request.param)
    return int(request.param)


def convolved_all_ways(
    x: Tensor, w: Tensor, g: Tensor, shape: Shape
) -> tuple[Tensor, Tensor, Tensor]:
    images, side = (shape.height, shape.width), (shape.side, shape.side)
    return (
        conv2d_triton.triton_conv2d(x, w, shape.size, shape.window),
        conv2d_triton.triton_conv2d_grad_input(g, w, images, shape.window),
        conv2d_triton.triton_conv2d_grad_weight(x, g, side, shape.window),
    )


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_float32_is_exact(shape: Shape, programs: int) -> None:
    given = factors(shape)
    for found, exact in zip(
        convolved_all_ways(*given, shape), expected(*given, shape), strict=True
    ):
        assert found.dtype == torch.float32
        assert gap(found, exact) < FLOAT32


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.usefixtures("tf32")
def test_tf32_rounds_factors_and_nothing_else(shape: Shape, programs: int) -> None:
    x, w, g = factors(shape)
    found, back, _ = convolved_all_ways(x, w, g, shape)
    result, by_x, _ = expected(in_tf32(x), in_tf32(w), in_tf32(g), shape)
    assert gap(found, result) < TF32
    if not shape.products_are_rounded:
        assert gap(back, by_x) < TF32


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.usefixtures("tf32", "on_gpu")
def test_gradients_by_weights_are_nearer_than_tf32(shape: Shape) -> None:
    """Where there are many weights, factors are split into two bf16 each."""
    x, w, g = factors(shape)
    found = conv2d_triton.triton_conv2d_grad_weight(x, g, (shape.side, shape.side), shape.window)
    exact = expected(x, w, g, shape)[2]
    rounded = expected(in_tf32(x), w, in_tf32(g), shape)[2]
    many = shape.side**2 * shape.inputs > 64
    assert gap(found, exact) < 1e-5 if many else gap(found, rounded) < TF32


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_bf16_rounds_the_result_once(shape: Shape, programs: int) -> None:
    given = factors(shape, torch.bfloat16)
    found, exact = convolved_all_ways(*given, shape), expected(*given, shape)
    for name, one, other in zip(
        ("convolve", "convolve_back", "correlate"), found, exact, strict=True
    ):
        if name == "convolve_back" and shape.products_are_rounded:
            assert gap(one, other) < 4e-3
        else:
            assert share_rounded_right(one, other) > 0.97


def test_the_way_back_may_go_client_by_client(monkeypatch: pytest.MonkeyPatch) -> None:
    put_everywhere(monkeypatch, "_MAX_TEMP_NUMEL", 1)
    shape = Shape(3, 2, 8, 7, 3, 24, 3, 2, 1)
    x, w, g = factors(shape)
    back = conv2d_triton.triton_conv2d_grad_input(g, w, (shape.height, shape.width), shape.window)
    assert gap(back, expected(x, w, g, shape)[1]) < FLOAT32


def test_gradients_are_summed_in_shares_of_many_places() -> None:
    shape = Shape(2, 9, 12, 11, 5, 7, 3, 1, 1)
    x, w, g = factors(shape)
    assert (
        gap(
            conv2d_triton.triton_conv2d_grad_weight(x, g, (3, 3), shape.window),
            expected(x, w, g, shape)[2],
        )
        < FLOAT32
    )


@pytest.mark.parametrize("inputs", [3, 40])
def test_nothing_comes_of_no_examples(inputs: int) -> None:
    shape = Shape(2, 0, 6, 6, inputs, 20, 3, 1, 1)
    x, w, g = factors(shape)
    found, back, by_weights = convolved_all_ways(x, w, g, shape)
    assert found.shape == g.shape
    assert back.shape == x.shape
    assert torch.equal(by_weights, torch.zeros(w.shape))


def threefry(key: int, counter: int) -> int:
    """Threefry-2x32 with 20 rounds, as its authors wrote it down, in plain integers."""
    word = 2**32 - 1
    keys = [key & word, key >> 32 & word]
    keys.append(0x1BD11BDA ^ keys[0] ^ keys[1])
    one, two = (counter + keys[0]) & word, ((counter >> 32) + keys[1]) & word
    for turn in range(20):
        by = (13, 15, 26, 6, 17, 29, 16, 24)[turn % 8]
        one = (one + two) & word
        two = ((two << by | two >> (32 - by)) & word) ^ one
        if turn % 4 == 3:
            block = turn // 4 + 1
            one = (one + keys[block % 3]) & word
            two = (two + keys[(block + 1) % 3] + block) & word
    return two << 32 | one


def signed(number: int) -> int:
    return number - 2**64 if number >= 2**63 else number


def test_the_oracle_for_bits_gives_what_its_authors_published() -> None:
    assert threefry(0, 0) == 0x99BA4EFE_6B200159
    assert threefry(2**64 - 1, 2**64 - 1) == 0xBB002BE7_1CB996FC
    assert threefry(0x03707344_13198A2E, 0x85A308D3_243F6A88) == 0x483DF7A0_C4923A9C


PAIRS = [((), ()), ((5,), ()), ((7, 1), (33,)), ((), (1000,)), ((3, 1), (3, 300)), ((0,), ())]


@pytest.mark.parametrize("folding", [0, 0x464F4C44])
@pytest.mark.parametrize(("many", "more"), PAIRS)
def test_bits_are_those_of_the_generator(
    many: tuple[int, ...], more: tuple[int, ...], folding: int
) -> None:
    generator = torch.Generator().manual_seed(0)
    keys, counters = (
        torch.randint(-(2**63), 2**63 - 1, shape, generator=generator) for shape in (many, more)
    )
    found = threefry_triton.triton_threefry(keys, counters, folding)
    whole = keys + torch.zeros_like(counters), counters + torch.zeros_like(keys)
    assert found.shape == whole[0].shape
    pairs = zip(*(each.flatten().tolist() for each in whole), strict=True)
    exact = [signed(threefry(key % 2**64 ^ folding, counter)) for key, counter in pairs]
    assert found.flatten().tolist() == exact


def on_meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def convolve_far() -> None:
    x, w = on_meta(50_000, 4, 32, 32, 16), on_meta(50_000, 32, 3, 3, 16)
    conv2d_triton.triton_conv2d(x, w, (32, 32), (1, 1))


def convolve_back_far() -> None:
    g, w = on_meta(50_000, 4, 32, 32, 32), on_meta(50_000, 32, 3, 3, 20)
    conv2d_triton.triton_conv2d_grad_input(g, w, (32, 32), (1, 1))


def convolve_back_with_few_inputs() -> None:
    g, w = on_meta(1, 4000, 64, 64, 64), on_meta(1, 64, 3, 3, 16)
    conv2d_triton.triton_conv2d_grad_input(g, w, (66, 66), (1, 0))


def correlate_many_places() -> None:
    x, g = on_meta(50_000, 4, 32, 32, 16), on_meta(50_000, 4, 32, 32, 32)
    conv2d_triton.triton_conv2d_grad_weight(x, g, (3, 3), (1, 1))


def correlate_many_weights() -> None:
    x, g = on_meta(5000, 4, 8, 8, 256), on_meta(5000, 4, 8, 8, 256)
    conv2d_triton.triton_conv2d_grad_weight(x, g, (3, 3), (1, 1))


def correlate_float32() -> None:
    x, g = (on_meta(50_000, 4, 32, 32, width, dtype=torch.float32) for width in (16, 32))
    conv2d_triton.triton_conv2d_grad_weight(x, g, (3, 3), (1, 1))


def mix_far() -> None:
    keys, counters = (
        on_meta(70_000, 1, dtype=torch.int64),
        on_meta(70_000, 70_000, dtype=torch.int64),
    )
    threefry_triton.triton_threefry(keys, counters, 0)


FAR = [
    convolve_far,
    convolve_back_far,
    convolve_back_with_few_inputs,
    correlate_many_places,
    correlate_many_weights,
    correlate_float32,
    mix_far,
]


@pytest.mark.parametrize("far", FAR)
@pytest.mark.usefixtures("tf32", "on_gpu")
def test_offsets_go_beyond_31_bits(far: Callable[[], None]) -> None:
    """The last program reads the last place of what it is given, and writes that of its result."""
    interpreting.LAUNCHES.clear()
    far()
    rooms = [room for launch in interpreting.LAUNCHES for room in launch.rooms]
    assert max((room.end - room.begin) // room.itemsize for room in rooms) > 2**31
    assert all(room.reached == room.end for room in rooms)
