"""Convolutions of the same images in a list of operations, as one of them under all their weights.

A derivative along a direction convolves images under a layer's weights and under the weights' direction. What such an
operation costs on a GPU is reading the images, once for every tap, so that both together cost little more than one.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterator
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from fedtailor.engines.zeros import VIEWS, written_over

_ATEN = torch.ops.aten
_CONVOLVE = torch.ops.fedtailor.convolve.default
_MOVABLE = (*VIEWS, _ATEN.clone.default, _ATEN._to_copy.default)


def merge_convolutions(made: GraphModule) -> None:
    """Merges convolutions of the same images, but for those whose weights are only known after the first of them."""
    alike: dict[Hashable, list[Node]] = defaultdict(list)
    written = set(written_over(made))
    for node in made.graph.nodes:
        if node.target is _CONVOLVE:
            alike[_origin(node.args[0], written), *map(tuple, node.args[2:])].append(node)
    for first, *others in alike.values():
        order = {node: place for place, node in enumerate(made.graph.nodes)}
        together = [first, *(node for node in others if _bring_forward(node.args[1], first, order, written))]
        if len(together) > 1:
            _merge(made.graph, together)
    made.graph.eliminate_dead_code()
    made.recompile()


def _origin(node: Any, written: set[Node]) -> Hashable:
    """What a tensor is: a node, or views and copies as what they do to it; what is written over is like nothing."""
    if node in written:
        return object()
    if isinstance(node, Node) and node.target in _MOVABLE:
        given = (tuple(each) if isinstance(each, list) else _origin(each, written) for each in node.args)
        return node.target, *given, *node.kwargs.items()
    return node  # type: ignore[no-any-return]


def _bring_forward(node: Any, to: Node, order: dict[Node, int], written: set[Node]) -> bool:
    """Moves a tensor's views and copies that come later before a node, unless it is made of something else there."""
    late = sorted(set(_late(node, order[to], order)), key=order.__getitem__)
    if any(each.target not in _MOVABLE or _is_written(each, written) for each in late):
        return False
    for each in late:
        to.prepend(each)
    return True


def _is_written(node: Node, written: set[Node]) -> bool:
    """Whether a tensor, or what it is a view or copy of, is written over."""
    made_of = node.all_input_nodes if node.target in _MOVABLE else ()
    return node in written or any(_is_written(each, written) for each in made_of)


def _late(node: Node, than: int, order: dict[Node, int]) -> Iterator[Node]:
    """A tensor, and what it is made of, as far as these come later than a place in the list."""
    if order[node] >= than:
        yield node
        for each in node.all_input_nodes if node.target in _MOVABLE else ():
            yield from _late(each, than, order)


def _merge(graph: Graph, nodes: list[Node]) -> None:
    """Puts one convolution in place of several."""
    first = nodes[0]
    images, _, *how = first.args
    with graph.inserting_before(first):
        weights = graph.call_function(_ATEN.cat.default, ([node.args[1] for node in nodes], 1))
        found = graph.call_function(_CONVOLVE, (images, weights, *how))
        begin = 0
        for node in nodes:
            end = begin + node.meta["val"].shape[4]
            part = graph.call_function(_ATEN.slice.Tensor, (found, 4, begin, end))
            part.meta = node.meta
            node.replace_all_uses_with(part)
            begin = end
