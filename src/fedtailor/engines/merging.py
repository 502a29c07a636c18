"""Convolutions of the same images in a list of operations, as one of them under all their weights.

A derivative along a direction convolves images under a layer's weights and under the weights' direction. What such an
operation costs on a GPU is reading the images, once for every tap, so that both together cost little more than one.
"""

import itertools
from collections import defaultdict
from collections.abc import Hashable, Iterator
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Graph, GraphModule, Node

from fedtailor.engines.zeros import VIEWS

_ATEN = torch.ops.aten
_CONVOLVE = torch.ops.fedtailor.convolve.default
_MOVABLE = (*VIEWS, _ATEN.clone.default, _ATEN._to_copy.default)


def merge_convolutions(made: GraphModule) -> None:
    """Merges convolutions of the same images, but for those whose weights are only known after the first of them."""
    alike: dict[Hashable, list[Node]] = defaultdict(list)
    for node in made.graph.nodes:
        if node.target is _CONVOLVE:
            window = node.args[1].meta["val"].shape[2:4], *map(tuple, node.args[2:])
            alike[_origin(node.args[0]), window].append(node)
    for first, *others in alike.values():
        together = [first, *(node for node in others if _bring_forward(made.graph, node, first))]
        if len(together) > 1:
            _merge(made.graph, together)
    made.graph.eliminate_dead_code()
    made.recompile()


def _origin(node: Any) -> Hashable:
    """What a tensor is: a node, or views and copies as what they do to it."""
    if isinstance(node, Node) and node.target in _MOVABLE:
        given = (tuple(each) if isinstance(each, list) else _origin(each) for each in node.args)
        return node.target, *given, *node.kwargs.items()
    return node  # type: ignore[no-any-return]


def _bring_forward(graph: Graph, node: Node, to: Node) -> bool:
    """Moves views and copies of a convolution's weights before another one, if they are all that they wait for.

    Where something is written over between the two, they may be of other images or weights, and are left alone.
    """
    order = {each: place for place, each in enumerate(graph.nodes)}
    late = set(_late(node.args[1], order[to], order))
    between = itertools.islice(graph.nodes, order[to], order[node])
    if any(_writes(each) for each in between) or any(each.target not in _MOVABLE for each in late):
        return False
    for each in sorted(late, key=order.__getitem__):
        to.prepend(each)
    return True


def _writes(node: Node) -> bool:
    return isinstance(node.target, OpOverload) and node.target._schema.is_mutable


def _late(node: Any, than: int, order: dict[Node, int]) -> Iterator[Node]:
    """A tensor, and what it is made of, as far as these come later than a place in the list."""
    if order[node] >= than:
        yield node
        for each in node.all_input_nodes if node.target in _MOVABLE else ():
            yield from _late(each, than, order)


def _merge(graph: Graph, nodes: list[Node]) -> None:
    """Puts one convolution in place of several; what each gave lies apart again, as whoever reads it expects."""
    first = nodes[0]
    images, _, *how = first.args
    with graph.inserting_before(first):
        weights = graph.call_function(_ATEN.cat.default, ([node.args[1] for node in nodes], 1))
        found = graph.call_function(_CONVOLVE, (images, weights, *how))
        begin = 0
        for node in nodes:
            end = begin + node.meta["val"].shape[4]
            part = graph.call_function(_ATEN.slice.Tensor, (found, 4, begin, end))
            whole = graph.call_function(_ATEN.clone.default, (part,), {"memory_format": torch.contiguous_format})
            whole.meta = node.meta
            node.replace_all_uses_with(whole)
            begin = end
