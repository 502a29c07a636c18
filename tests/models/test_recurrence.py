"""The recurrence in compiled code: what the formula finds in double precision, for any sizes, and only where it can."""

from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.utils.flop_counter import FlopCounterMode

from fedtailor import native
from fedtailor.engines import kept
from fedtailor.engines.tracing import compiled
from fedtailor.models import recurrence as module
from fedtailor.models.recurrence import recurrence

pytestmark = pytest.mark.skipif(module._native() is None, reason="needs a C++ compiler")
SIZES = [(1, 1, 1, 1, 1), (3, 5, 3, 7, 2), (2, 4, 9, 16, 65), (5, 6, 4, 33, 8), (2, 3, 5, 160, 20), (2, 3, 5, 670, 96)]
"""Clients, places, rows, hidden and width of inputs."""


def drawn(clients: int, places: int, rows: int, hidden: int, width: int) -> tuple[Tensor, ...]:
    """Inputs, their weights, biases, recurrent weights, and what is asked of states and cells, in single precision."""
    draws, of_states = torch.Generator().manual_seed(hidden), (places, clients, rows, hidden)
    of_weights = [(clients, 4 * hidden, width), (clients, 4 * hidden), (clients, 4 * hidden, hidden)]
    shapes = (places, clients, rows, width), *of_weights, of_states, of_states
    inputs, into, bias, weight, *asked = (torch.randn(shape, generator=draws) for shape in shapes)
    return inputs, 2 * into / width**0.5, bias, weight / hidden**0.5, *asked


def both_ways(given: tuple[Tensor, ...]) -> list[Tensor]:
    """States, cells, gates, and the gradient by inputs, weights and biases."""
    inputs, into, bias, weight, by_state, by_cell = given
    found = module._Forward.forward(inputs, into, bias, weight)
    return [*found, *module._Backward.forward(inputs, into, bias, weight, *found, by_state, by_cell)]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_compiled_code_finds_what_the_formula_does(sizes: tuple[int, int, int, int, int]) -> None:
    given = drawn(*sizes)
    assert module._is_for_native(given[0])
    exact = tuple(each.double() for each in given)
    assert not module._is_for_native(exact[0])
    for at, (found, wanted) in enumerate(zip(both_ways(given), both_ways(exact), strict=True)):
        loose = at >= 3 and wanted.ndim != 2  # gradients by inputs and weights, which are sums over all gates or places
        torch.testing.assert_close(found.double(), wanted, rtol=2e-5, atol=5e-6 if loose else 2e-6)


def test_large_numbers_saturate_and_what_is_no_number_stays_none() -> None:
    inputs, into, bias, *others = drawn(2, 4, 3, 8, 5)
    for large in (200.0, -200.0):
        given = inputs, into, torch.full_like(bias, large), *others
        found, wanted = both_ways(given), both_ways(tuple(each.double() for each in given))
        for each, exact in zip(found, wanted, strict=True):
            torch.testing.assert_close(each.double(), exact, rtol=1e-5, atol=1e-6)
    inputs[1, 0, 2, 3] = torch.nan
    states = module._Forward.forward(inputs, into, bias, others[0])[0]
    assert states[:, 1].isfinite().all()
    assert states[:, 0, :2].isfinite().all()
    assert states[1:, 0, 2].isnan().all()


def test_any_number_of_threads_finds_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for threads in (1, 2, 3, 8):
        monkeypatch.setattr(torch, "get_num_threads", lambda count=threads: count)
        found.append(both_ways(drawn(5, 4, 3, 20, 6)))
    assert all(torch.equal(one, other) for each in found[1:] for one, other in zip(found[0], each, strict=True))


STACKED = (1, 0, 0, 0)


def test_compiled_code_counts_as_many_operations_as_the_formula() -> None:
    given, counts = drawn(3, 5, 2, 8, 7), []
    for kind in (torch.float32, torch.float64):
        with FlopCounterMode(display=False) as counter:
            both_ways(tuple(each.to(kind) for each in given))
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] == 3 * 2 * (3 * 5 * 2) * 4 * 8 * (7 + 8)


def gradient(*given: Tensor) -> tuple[Tensor, ...]:
    return grad(lambda *each: (recurrence(*each) ** 2).sum(), argnums=(0, 1, 2, 3))(*given)  # type: ignore[no-any-return]


def test_a_stack_is_each_of_its_clients_and_the_same_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    given = drawn(4, 5, 3, 12, 7)[:4]
    stacked = vmap(gradient, in_dims=STACKED)(*given)
    for client in range(4):
        alone = gradient(*(each.select(dim, client) for each, dim in zip(given, STACKED, strict=True)))
        assert all(torch.equal(both[client], one) for both, one in zip(stacked, alone, strict=True))
    monkeypatch.setattr(module, "_native", lambda: None)
    for plain, ours in zip(vmap(gradient, in_dims=STACKED)(*given), stacked, strict=True):
        assert not torch.equal(plain, ours)
        torch.testing.assert_close(plain, ours, rtol=2e-5, atol=2e-6)


def _step(room: Tensor, *given: Tensor) -> None:
    room.copy_(vmap(gradient, in_dims=STACKED)(*given)[3])


def test_compiled_steps_call_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(native.PLACE, str(tmp_path))
    given = drawn(3, 4, 2, 8, 5)[:4]
    wanted = torch.zeros_like(given[3])
    _step(wanted, *given)
    for _ in range(2):  # made, and loaded
        room = torch.zeros_like(wanted)
        compiled(partial(_step), (room, *given))()
        assert torch.equal(room, wanted)
    assert len(list(tmp_path.glob("steps/*/step.so"))) == (kept._verdict().read_text() == kept._LOADS)
