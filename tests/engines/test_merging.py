"""Convolutions of the same images as one: lists that do the same, with fewer of them."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.func import grad, jvp, vmap
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from fedtailor.convolution import Window, convolved
from fedtailor.engines.merging import merge_convolutions

Params = tuple[Tensor, ...]
CONVOLVE = torch.ops.fedtailor.convolve.default


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


def count(graph: GraphModule) -> int:
    return sum(node.target is CONVOLVE for node in graph.graph.nodes)


def followed(function: Callable[..., object], *given: object) -> GraphModule:
    graph: GraphModule = make_fx(function, tracing_mode="fake")(*given)
    graph.graph.eliminate_dead_code()
    return graph


def loss(params: Params, x: Tensor, between: Callable[[Tensor], Tensor]) -> Tensor:
    """Of two layers, the second straight behind the first or not."""
    first, second = (each.permute(0, 2, 3, 1)[None] for each in params)
    found = between(convolved(x.permute(0, 2, 3, 1)[None], first, (7, 6), Window()))
    return convolved(found, second, (5, 4), Window()).sin().mean()


@pytest.mark.parametrize("between", [torch.tanh, lambda x: x])
def test_derivatives_along_a_direction_read_images_once(between: Callable[[Tensor], Tensor]) -> None:
    def product(params: Params, along: Params, x: Tensor) -> Params:
        found: Params = jvp(lambda point: grad(loss)(point, x, between), (params,), (along,))[1]
        return found

    shapes = ((3, 4, 2, 3, 3), (3, 5, 4, 3, 3))
    given = tuple(drawn(*shape) for shape in shapes), tuple(drawn(*shape).cos() for shape in shapes)
    graph = followed(vmap(product), *given, drawn(3, 6, 2, 9, 8))
    before, expected = count(graph), graph(*given, drawn(3, 6, 2, 9, 8))
    merge_convolutions(graph)
    assert (before, count(graph)) == (5, 3)  # x under two weights, twice; the second layer's images along the direction
    for own, other in zip(graph(*given, drawn(3, 6, 2, 9, 8)), expected, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-10, atol=1e-12)


def test_weights_that_are_made_of_the_first_outcome_wait_for_it() -> None:
    def twice(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        first = convolved(x, w, (7, 7), Window())
        return first, convolved(x, w * first.mean(), (7, 7), Window())

    graph = followed(twice, drawn(1, 2, 9, 9, 3), drawn(1, 4, 3, 3, 3))
    expected = graph(drawn(1, 2, 9, 9, 3), drawn(1, 4, 3, 3, 3))
    merge_convolutions(graph)
    assert count(graph) == 2
    torch.testing.assert_close(graph(drawn(1, 2, 9, 9, 3), drawn(1, 4, 3, 3, 3)), expected, rtol=0, atol=0)


@pytest.mark.parametrize("pad", [0, 1])
def test_only_what_moves_alike_is_merged(pad: int) -> None:
    def both(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        size = (7 + 2 * pad, 7 + 2 * pad)
        return convolved(x, w, (7, 7), Window()), convolved(x, w.cos(), size, Window(pad=pad))

    graph = followed(both, drawn(1, 2, 9, 9, 3), drawn(1, 4, 3, 3, 3))
    expected = graph(drawn(1, 2, 9, 9, 3), drawn(1, 4, 3, 3, 3))
    merge_convolutions(graph)
    assert count(graph) == 2  # other windows, or weights that something is done to after the first
    torch.testing.assert_close(graph(drawn(1, 2, 9, 9, 3), drawn(1, 4, 3, 3, 3)), expected, rtol=0, atol=0)


@pytest.mark.parametrize("what", ["images", "weights"])
@pytest.mark.parametrize("copied", [True, False])
def test_what_is_written_over_in_between_is_not_the_same(what: str, copied: bool) -> None:
    def twice(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        images, weights = x.view(x.shape), w.view(w.shape)
        first = convolved(images, w, (7, 7), Window())
        (x if what == "images" else w).mul_(2)
        return first, convolved(images, weights.clone() if copied else weights, (7, 7), Window())

    graph = followed(twice, drawn(1, 2, 9, 9, 3), drawn(1, 4, 3, 3, 3))
    expected = twice(drawn(1, 2, 9, 9, 3), drawn(1, 4, 3, 3, 3))
    merge_convolutions(graph)
    torch.testing.assert_close(graph(drawn(1, 2, 9, 9, 3), drawn(1, 4, 3, 3, 3)), expected, rtol=0, atol=0)


def test_later_convolutions_may_share_their_weights_views() -> None:
    def thrice(x: Tensor, w: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        first = convolved(x, w, (7, 7), Window())
        turned = v.permute(0, 3, 1, 2, 4)
        return first, *(convolved(x, each, (7, 7), Window()) for each in (turned.clone(), turned.clone()))

    given = drawn(1, 2, 9, 9, 3), drawn(1, 4, 3, 3, 3), drawn(1, 3, 3, 4, 3)
    graph = followed(thrice, *given)
    merge_convolutions(graph)
    assert count(graph) == 1
    torch.testing.assert_close(graph(*given), thrice(*given), rtol=1e-10, atol=1e-12)


def test_windows_of_other_sizes_with_the_same_places_are_left_alone() -> None:
    def both(x: Tensor, w: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        return tuple(convolved(x, each, (4, 4), Window(2)) for each in (w, v))

    given = drawn(1, 2, 8, 8, 3), drawn(1, 4, 1, 1, 3), drawn(1, 4, 2, 2, 3)
    graph = followed(both, *given)
    merge_convolutions(graph)
    assert count(graph) == 2
    torch.testing.assert_close(graph(*given), both(*given), rtol=0, atol=0)


def test_outcomes_lie_as_whoever_reads_them_expects() -> None:
    def both(x: Tensor, w: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        return tuple(convolved(x, each, (7, 7), Window()).view(2, -1) for each in (w, v))

    given = drawn(1, 2, 9, 9, 3), drawn(1, 4, 3, 3, 3), drawn(1, 5, 3, 3, 3)
    graph = followed(both, *given)
    merge_convolutions(graph)
    assert count(graph) == 1
    torch.testing.assert_close(graph(*given), both(*given), rtol=1e-10, atol=1e-12)
