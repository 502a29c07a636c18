"""The recurrence in compiled code: what the formula finds in double precision, for any sizes, and only where it can."""

from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap

from fedtailor import native
from fedtailor.engines.tracing import compiled
from fedtailor.models import recurrence as module
from fedtailor.models.recurrence import recurrence

pytestmark = pytest.mark.skipif(module._native() is None, reason="needs a C++ compiler")
SIZES = [(1, 1, 1, 1), (3, 5, 3, 7), (2, 4, 9, 16), (5, 6, 4, 33), (2, 3, 5, 670)]  # clients, places, rows, hidden


def drawn(clients: int, places: int, rows: int, hidden: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Projected inputs, weights, and what is asked of states and cells, all in single precision."""
    draws = torch.Generator().manual_seed(hidden)
    shapes = (places, clients, rows, 4 * hidden), (clients, 4 * hidden, hidden), *[(places, clients, rows, hidden)] * 2
    projected, weight, by_state, by_cell = (torch.randn(shape, generator=draws) for shape in shapes)
    return 3 * projected, weight / hidden**0.5, by_state, by_cell


def both_ways(given: tuple[Tensor, Tensor, Tensor, Tensor]) -> list[Tensor]:
    """States, cells, gates, and the gradient by projected inputs and weights."""
    projected, weight, by_state, by_cell = given
    found = module._Forward.forward(projected, weight)
    return [*found, *module._Backward.forward(projected, weight, *found, by_state, by_cell)]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_compiled_code_finds_what_the_formula_does(sizes: tuple[int, int, int, int]) -> None:
    given = drawn(*sizes)
    assert module._is_for_native(given[0])
    exact = tuple(each.double() for each in given)
    assert not module._is_for_native(exact[0])
    for found, wanted in zip(both_ways(given), both_ways(exact), strict=True):  # type: ignore[arg-type]
        torch.testing.assert_close(found.double(), wanted, rtol=2e-5, atol=2e-6)


def test_large_numbers_saturate_and_what_is_no_number_stays_none() -> None:
    projected, weight, by_state, by_cell = drawn(2, 4, 3, 8)
    for large in (200.0, -200.0):
        found = both_ways((torch.full_like(projected, large), weight, by_state, by_cell))
        wanted = both_ways((torch.full_like(projected, large).double(), weight.double(), by_state, by_cell))
        for each, exact in zip(found, wanted, strict=True):
            torch.testing.assert_close(each.double(), exact.double(), rtol=1e-5, atol=1e-6)
    projected[1, 0, 2, 3] = torch.nan
    states = module._Forward.forward(projected, weight)[0]
    assert states[:, 1].isfinite().all()
    assert states[1, 0, 2, 3].isnan()
    assert states[2:, 0, 2].isnan().all()


def test_any_number_of_threads_finds_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for threads in (1, 2, 3, 8):
        monkeypatch.setattr(torch, "get_num_threads", lambda count=threads: count)
        found.append(both_ways(drawn(5, 4, 3, 20)))
    assert all(torch.equal(one, other) for each in found[1:] for one, other in zip(found[0], each, strict=True))


def gradient(projected: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    return grad(lambda *given: (recurrence(*given) ** 2).sum(), argnums=(0, 1))(projected, weight)  # type: ignore[no-any-return]


def test_a_stack_is_each_of_its_clients_and_the_same_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    projected, weight, *_ = drawn(4, 5, 3, 12)
    stacked = vmap(gradient, in_dims=(1, 0))(projected, weight)
    for client in range(4):
        alone = gradient(projected[:, client], weight[client])
        assert all(torch.equal(both[client], one) for both, one in zip(stacked, alone, strict=True))
    monkeypatch.setattr(module, "_native", lambda: None)
    for plain, ours in zip(vmap(gradient, in_dims=(1, 0))(projected, weight), stacked, strict=True):
        assert not torch.equal(plain, ours)
        torch.testing.assert_close(plain, ours, rtol=2e-5, atol=2e-6)


def _step(room: Tensor, projected: Tensor, weight: Tensor) -> None:
    room.copy_(vmap(gradient, in_dims=(1, 0))(projected, weight)[1])


def test_compiled_steps_call_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(native.PLACE, str(tmp_path))
    projected, weight, *_ = drawn(3, 4, 2, 8)
    wanted = torch.zeros_like(weight)
    _step(wanted, projected, weight)
    for _ in range(2):  # made, and loaded
        room = torch.zeros_like(weight)
        compiled(partial(_step), (room, projected, weight))()
        assert torch.equal(room, wanted)
    assert len(list(tmp_path.glob("steps/*/step.so"))) == (not torch.cuda.is_available())
