"""Zeros that know it: they vanish from lists of operations, and what is left gives the same."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from fedtailor.engines.tracing import followed

A, B = torch.arange(6.0).reshape(2, 3), torch.arange(9.0).reshape(3, 3)


def _zeros(like: Tensor) -> Tensor:
    return torch._efficientzerotensor(like.shape, dtype=like.dtype, device=like.device)


def _operations(function: Callable[..., None], *given: Tensor) -> tuple[list[str], Tensor]:
    room = torch.full((2, 3), 7.0)
    made = followed(function, (room, *given))
    made(room, *given)
    return [str(node.target) for node in made.graph.nodes if node.op == "call_function"], room


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda a, b: a + _zeros(a) @ b, A),
        (lambda a, b: _zeros(a) @ b + a * 2, 2 * A),
        (lambda a, b: a - (_zeros(a) * 3).t().t(), A),
        (lambda a, b: a + _zeros(a).sum(0), A),
        (lambda a, b: _zeros(a) - a, -A),
        (lambda a, b: a * 1 + _zeros(a).exp(), A + 1),
        (lambda a, b: _zeros(a) @ b + _zeros(a), 0 * A),
        (lambda a, b: torch.add(_zeros(a), a, alpha=2), 2 * A),
        (lambda a, b: (a + _zeros(a).double()).float(), A),
    ],
    ids=["product", "other side", "views", "smaller", "negative", "exp", "nothing", "alpha", "type"],
)
def test_what_is_done_with_zeros_gives_the_same(function: Callable[[Tensor, Tensor], Tensor], expected: Tensor) -> None:
    operations, room = _operations(lambda room, a, b: room.copy_(function(a, b)), A, B)
    torch.testing.assert_close(room, expected)
    assert not any("_efficientzerotensor" in each or "mm" in each for each in operations)


def test_a_sum_with_zeros_stays_what_it_was_when_its_term_is_written_over() -> None:
    def function(room: Tensor, a: Tensor) -> None:
        kept = room + _zeros(room)
        room.copy_(a)
        room.add_(kept)

    assert _operations(function, A)[1].tolist() == (A + 7.0).tolist()


@pytest.mark.parametrize("write", [Tensor.copy_, lambda to, of: torch._foreach_copy_([to], [of])])
def test_zeros_that_are_written_into_are_none(write: Callable[[Tensor, Tensor], object]) -> None:
    def function(room: Tensor, a: Tensor) -> None:
        filled = torch.zeros_like(a)
        write(filled[0], a[0])
        room.copy_(a * filled + _zeros(a))

    assert _operations(function, A)[1].tolist() == [[0.0, 1.0, 4.0], [0.0, 0.0, 0.0]]


def test_lists_without_such_zeros_stay_as_they_are() -> None:
    operations, _ = _operations(lambda room, a, b: room.copy_(a @ b + a), A, B)
    assert [each.split(".")[1] for each in operations] == ["mm", "add", "copy_"]
