"""Whole steps by a GPU's operations, interpreted: torch's own on a CPU in double precision are the
oracle.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from code_under_test import (
    INTERPRETED,
    conv2d,
    interpreting,
    list_for_compiler,
    lstm_layer,
    pretend_gpu,
    prng,
    threefry,
)
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp, vmap
from torch.nn import functional as nnf

pytest_plugins = ["gpu_fixtures"]
if not INTERPRETED:
    pytest.skip("needs TRITON_INTERPRET=1", allow_module_level=True)

CLIENTS = 2
Tree = dict[str, Tensor]


def network() -> nn.Sequential:
    """Convolutions of one channel and of many, with and without a stride, and a long product."""
    seen = (
        nn.Conv2d(1, 16, 3, padding=1),
        nn.Tanh(),
        nn.Conv2d(16, 20, 3, stride=2, padding=1),
        nn.Tanh(),
    )
    more = (nn.Conv2d(20, 18, 2, bias=False), nn.Tanh(), nn.Flatten(), nn.Linear(18 * 4 * 4, 5))
    return nn.Sequential(*seen, *more)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def weights(scale: float, seed: int) -> Tree:
    """Weights for every client, as large as those of a fresh network."""
    shapes = {name: each.shape for name, each in network().named_parameters()}
    return {
        name: scale * shape[1:].numel() ** -0.5 * drawn(CLIENTS, *shape, seed=seed)
        for name, shape in shapes.items()
    }


def loss(model: nn.Module, own: Tree, x: Tensor, y: Tensor) -> Tensor:
    return nnf.cross_entropy(functional_call(model, own, (x,)).float(), y)


def descended(model: nn.Module, own: Tree, direction: Tree, x: Tensor, y: Tensor) -> Tree:
    """What a step of gradient descent adds."""
    return {name: -each for name, each in grad(partial(loss, model))(own, x, y).items()}


def bent(model: nn.Module, own: Tree, direction: Tree, x: Tensor, y: Tensor) -> Tree:
    """The Hessian times a direction."""
    found: Tree = jvp(lambda point: grad(partial(loss, model))(point, x, y), (own,), (direction,))[
        1
    ]
    return found


def given() -> tuple[Tree, Tree, Tensor, Tensor]:
    labels = torch.arange(CLIENTS * 3).view(CLIENTS, 3) % 5
    return weights(1.0, 0), weights(0.1, 1), drawn(CLIENTS, 3, 1, 10, 10), labels


@pytest.mark.parametrize("step", [descended, bent])
@pytest.mark.parametrize(("precision", "most"), [("tf32", 1.5e-3), ("bf16", 1.5e-2)])
def test_a_step_is_that_of_double_precision(
    step: Callable[..., Tree],
    precision: str,
    most: float,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own, direction, x, y = given()
    wide = [{name: each.double() for name, each in tree.items()} for tree in (own, direction)]
    exact = vmap(partial(step, network().double()))(*wide, x.double(), y)

    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    short = [{name: each.to(dtype) for name, each in tree.items()} for tree in (own, direction)]
    room = {name: torch.empty_like(each) for name, each in short[0].items()}
    pretend_gpu(monkeypatch)
    if precision == "tf32":
        request.getfixturevalue("tf32")
    model = conv2d.with_stacked_convolutions(network().to(dtype))

    def write(own: Tree, direction: Tree, x: Tensor, y: Tensor, room: Tree) -> None:
        for name, value in vmap(partial(step, model))(own, direction, x, y).items():
            room[name].copy_(value)

    go_on, operations = list_for_compiler(write, (*short, x.to(dtype), y, room))
    assert not any("aten.convolution" in each for each in operations)
    interpreting.LAUNCHES.clear()
    go_on()
    own_operations = sum(each.startswith("fedtailor.") for each in operations)
    assert len(interpreting.LAUNCHES) >= own_operations > 5
    for name, value in room.items():
        gap = (value.double() - exact[name]).norm() / exact[name].norm()
        assert gap < most, name


@pytest.mark.parametrize(("stride", "pad", "side"), [(1, 0, 3), (2, 1, 3), (2, 2, 5), (1, 0, 1)])
@pytest.mark.usefixtures("on_gpu")
def test_operations_take_what_does_not_lie_in_order(stride: int, pad: int, side: int) -> None:
    x, w = drawn(2, 3, 4, 9, 8), drawn(2, 5, 4, side, side)
    results = []
    for images, filters in zip(x.double(), w.double(), strict=True):
        leaves = images.requires_grad_(), filters.requires_grad_()
        found = nnf.conv2d(*leaves, None, stride, pad)
        results.append([found, *torch.autograd.grad(found.square().sum(), leaves)])
    exact = [torch.stack(each).movedim(2, 4) for each in zip(*results, strict=True)]

    window = conv2d.ConvGeometry(stride, pad)
    size = exact[0].shape[2], exact[0].shape[3]
    images, filters = (each.movedim(2, 4).requires_grad_() for each in (x, w))
    found = conv2d.conv2d(images, filters, size, window)
    gradients = torch.autograd.grad(found.square().sum(), (images, filters))
    for own, other in zip((found, *gradients), exact, strict=True):
        torch.testing.assert_close(own, other.float(), rtol=1e-4, atol=1e-4)


def test_draws_are_those_of_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = prng.fold(prng.key(3, "some"), torch.arange(4))

    def draw(key: Tensor) -> tuple[Tensor, ...]:
        below = prng.fold(key, "below")
        return below, prng.normal(key, (3, 7)), prng.dropout_mask(below, (11,), 0.3)

    expected = vmap(draw)(keys)
    pretend_gpu(monkeypatch)
    monkeypatch.setitem(
        threefry.threefry_op._backend_fns, "cpu", threefry.threefry_op._backend_fns["cuda"]
    )
    interpreting.LAUNCHES.clear()
    for found, exact in zip(vmap(draw)(keys), expected, strict=True):
        assert torch.equal(found, exact)
    assert interpreting.LAUNCHES


def test_kernels_are_for_cards_with_matrix_units_for_short_floats(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for capability, there in (((7, 5), False), ((8, 0), True), ((9, 0), True)):
        monkeypatch.setattr(
            torch.cuda, "get_device_capability", lambda _, having=capability: having
        )
        assert conv2d.has_kernels_for(torch.device("cuda")) == there
    assert not conv2d.has_kernels_for(torch.device("cpu"))


def fused_cell(inputs: Tensor, hidden: Tensor, cell: Tensor, *biases: Any) -> tuple[Tensor, ...]:
    """An LSTM's cell, as torch has it on a GPU."""
    enter, keep, new, show = (inputs + hidden).chunk(4, 1)
    opened = enter.sigmoid(), keep.sigmoid(), new.tanh(), show.sigmoid()
    after = opened[1] * cell + opened[0] * opened[2]
    return opened[3] * after.tanh(), after, torch.cat(opened, 1)


def fused_cell_back(
    by_hidden: Tensor, by_cell: Tensor, before: Tensor, after: Tensor, gates: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Its gradients by the sums that enter the gates, and by the cell before."""
    assert not has_bias
    enter, keep, new, show = gates.chunk(4, 1)
    shown = after.tanh()
    by_cell = by_cell + by_hidden * show * (1 - shown**2)
    by_enter = by_cell * new * enter * (1 - enter)
    by_keep = by_cell * before * keep * (1 - keep)
    by_new = by_cell * enter * (1 - new**2)
    by_show = by_hidden * shown * show * (1 - show)
    return torch.cat([by_enter, by_keep, by_new, by_show], 1), by_cell * keep, torch.empty(0)


@pytest.fixture
def with_fused_cells() -> Iterator[None]:
    library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    library.impl("_thnn_fused_lstm_cell", fused_cell, "CPU")
    library.impl("_thnn_fused_lstm_cell_backward_impl", fused_cell_back, "CPU")
    yield
    library._destroy()


@pytest.mark.usefixtures("with_fused_cells", "on_gpu")
def test_fused_cells_make_an_lstm() -> None:
    layers = [nn.LSTM(4, 6).double() for _ in range(CLIENTS)]
    x = drawn(CLIENTS, 5, 3, 4).double()
    expected = []
    for layer, own in zip(layers, x, strict=True):
        states = layer(own)[0]
        by = torch.autograd.grad(states.square().sum(), list(layer.parameters()))
        expected.append((states.detach(), *by))

    def squares(own: Tree, x: Tensor) -> tuple[Tensor, Tensor]:
        states = lstm_layer(x, own["weight_ih_l0"], own["bias_ih_l0"], own["weight_hh_l0"])
        return states.square().sum(), states

    stacked = {
        name: torch.stack([each.state_dict()[name] for each in layers])
        for name in layers[0].state_dict()
    }
    stacked["bias_ih_l0"] = stacked["bias_ih_l0"] + stacked["bias_hh_l0"]
    by, states = vmap(grad(squares, has_aux=True))(stacked, x)
    names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0")
    for number, exact in enumerate(expected):
        found = (states[number], *(by[name][number] for name in names))
        for own, other in zip(found, exact, strict=False):
            torch.testing.assert_close(own, other, rtol=1e-8, atol=1e-10)
