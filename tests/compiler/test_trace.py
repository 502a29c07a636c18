"""Functions followed once: they give what they gave, for every kind of trees, and are not gone
through again.
"""

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from fedtailor.compat.torch_internals import compile_graph
from fedtailor.compiler.inductor import bind_compiled
from fedtailor.compiler.trace import TracedFunction, trace
from fedtailor.core import trees


class Pair(NamedTuple):
    first: dict[str, Tensor]
    second: tuple[Tensor, ...]


class Counted:
    """A function that knows how often Python went through it."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self, pair: Pair, factor: Tensor) -> dict[str, Any]:
        self.times += 1
        return {
            "sums": {name: factor * value for name, value in pair.first.items()},
            "same": pair.second,
        }


def given(rows: int, order: str = "ab") -> tuple[Pair, Tensor]:
    values = {
        name: torch.arange(rows, dtype=torch.float64) + len(name) + ord(name) for name in order
    }
    return Pair(values, (torch.ones(2),)), torch.tensor(3.0, dtype=torch.float64)


def test_a_function_is_followed_at_its_second_call_and_never_again() -> None:
    counted = Counted()
    traced = TracedFunction(counted)
    for _ in range(5):
        for rows in (2, 3):
            found, expected = traced(*given(rows)), Counted()(*given(rows))
            assert found["sums"].keys() == expected["sums"].keys()
            assert all(
                torch.equal(a, b)
                for a, b in zip(trees.leaves(found), trees.leaves(expected), strict=True)
            )
    assert counted.times == 4


def test_names_in_another_order_are_another_kind() -> None:
    traced = TracedFunction(Counted())
    for order in ("ab", "ab", "ba", "ba", "ab", "ba"):
        found = traced(*given(2, order))["sums"]
        assert {name: value[0].item() for name, value in found.items()} == {
            "a": 3 * 98.0,
            "b": 3 * 99.0,
        }


def test_other_types_are_another_kind() -> None:
    traced = TracedFunction(torch.neg)
    for dtype in (torch.float32, torch.int64, torch.float32, torch.int64, torch.float32):
        assert traced(torch.ones(2, dtype=dtype)).dtype == dtype


def test_constants_of_a_function_stay_with_it() -> None:
    constant = torch.full((2,), 5.0)
    traced = TracedFunction(lambda x: x + constant)
    for number in range(4):
        assert traced(torch.full((2,), float(number))).tolist() == [5.0 + number] * 2


def _doubled(room: dict[str, Tensor], by: Tensor) -> None:
    room["a"].copy_(room["a"] * by)


@pytest.mark.slow
def test_compiled_code_changes_what_it_was_made_for() -> None:
    room = {"a": torch.ones(3)}
    go_on = bind_compiled(_doubled, (room, torch.tensor(2.0)))
    assert room["a"].tolist() == [1.0] * 3
    for power in (2.0, 4.0, 8.0):
        go_on()
        assert room["a"].tolist() == [power] * 3


def test_code_for_other_devices_is_made_for_fixed_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch._inductor

    shapes: list[torch.Size] = []
    monkeypatch.setattr(
        torch._inductor, "compile", lambda graph, given: shapes.extend(each.shape for each in given)
    )
    given = {"a": torch.ones(3, 28, 28)}, torch.tensor(2.0)
    compile_graph(trace(_doubled, given), trees.leaves(given))
    assert [tuple(map(type, shape)) for shape in shapes] == [(int, int, int), ()]


def test_lists_leave_out_what_nobody_uses_but_not_what_is_written() -> None:
    def function(room: torch.Tensor, other: torch.Tensor) -> None:
        other.exp().sum()
        room.copy_(other * 2)

    operations = [
        str(node.target) for node in trace(function, (torch.ones(3), torch.ones(3))).graph.nodes
    ]
    assert not any("exp" in each or "sum" in each for each in operations)
    assert any("copy_" in each for each in operations)


@pytest.mark.parametrize("operation", [torch.add, torch.sub])
def test_compiled_sums_keep_the_factor_of_a_product_of_matrices(operation: Any) -> None:
    def step(weight: Tensor, a: Tensor, b: Tensor) -> None:
        weight.copy_(operation(weight, a @ b, alpha=0.25))

    draw = torch.Generator().manual_seed(0)
    weight, a, b = (torch.randn(6, 6, dtype=torch.float64, generator=draw) for _ in range(3))
    expected = operation(weight, a @ b, alpha=0.25)
    bind_compiled(step, (weight, a, b))()
    assert (weight - expected).abs().max() < 1e-14
