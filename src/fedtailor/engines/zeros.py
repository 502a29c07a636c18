"""Zeros in lists of operations: forward derivatives are full of directions that are zero, and of products with them.

torch has tensors of zeros that know it, and spares some of what is done to them; a list has it all, and compiled code
does not know such tensors. So zeros are followed through lists of forward derivatives here: products with zeros are
zeros, and sums with them are the other term.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import GraphModule, Node

_ATEN = torch.ops.aten
_KNOWING = _ATEN._efficientzerotensor.default
_MAKE = (_KNOWING, _ATEN.zeros.default, _ATEN.zeros_like.default)
_SUMS = (_ATEN.add.Tensor, _ATEN.sub.Tensor)
_PRODUCTS = (_ATEN.mul.Tensor, _ATEN.bmm.default, _ATEN.mm.default)
VIEWS = (
    *(_ATEN.alias.default, _ATEN.detach.default, _ATEN.expand.default, _ATEN.view.default, _ATEN._unsafe_view.default),
    *(_ATEN.permute.default, _ATEN.transpose.int, _ATEN.t.default, _ATEN.unsqueeze.default, _ATEN.squeeze.dim),
    *(_ATEN.select.int, _ATEN.slice.Tensor),
)
_LINEAR = (
    *(*VIEWS, _ATEN.clone.default, _ATEN._to_copy.default, _ATEN.neg.default, _ATEN.div.Tensor, _ATEN.mul.Scalar),
    *(_ATEN.sum.default, _ATEN.sum.dim_IntList, _ATEN.threshold_backward.default),
)
"""Operations that make zeros of zeros, if these are the first that they are given."""


def without_zeros(made: GraphModule) -> None:
    """Removes from a list what is done with zeros, and has the rest meet plain ones; of a list that has derivatives."""
    has_derivatives = any(node.target is _KNOWING for node in made.graph.nodes)
    made.graph.eliminate_dead_code()
    if has_derivatives:
        _remove(made, set(_written(made)))
        made.graph.eliminate_dead_code()
    made.recompile()


def _remove(made: GraphModule, written: set[Node]) -> None:
    zeros: set[Node] = set()
    for node in made.graph.nodes:
        if node not in written and _is_zero(node, zeros):
            zeros.add(node)
        elif node.target in _SUMS:
            _drop_a_term(node, zeros)
    for node in zeros:
        _meet_plain_zeros(made, node, [user for user in node.users if user not in zeros])


def _written(made: GraphModule) -> Iterator[Node]:
    """What something is written into, and what that is a view of."""
    for node in made.graph.nodes:
        if isinstance(node.target, OpOverload):
            for given, said in zip(node.args, node.target._schema.arguments, strict=False):
                if said.alias_info is not None and said.alias_info.is_write:
                    for into in given if isinstance(given, list) else [given]:
                        yield from _bases(into)


def _bases(node: Any) -> Iterator[Node]:
    """A tensor, and all that it is a view of."""
    while isinstance(node, Node):
        yield node
        node = node.args[0] if node.target in VIEWS else None


def _is_zero(node: Node, zeros: set[Node]) -> bool:
    if node.target in _SUMS:
        return all(each in zeros for each in node.args[:2])
    if node.target in _PRODUCTS:
        return any(each in zeros for each in node.args)
    return node.target in _MAKE or (node.target in _LINEAR and node.args[0] in zeros)


def _drop_a_term(node: Node, zeros: set[Node]) -> None:
    """Makes a sum of something and zeros a copy of that: itself would not do, as it may be written over later."""
    ours, other = node.args[:2]
    if ours in zeros and node.target is _ATEN.add.Tensor and not node.kwargs:
        ours, other = other, ours
    if other in zeros and isinstance(ours, Node) and _kind(ours) == _kind(node):
        node.target, node.args, node.kwargs = _ATEN.clone.default, (ours,), {}


def _meet_plain_zeros(made: GraphModule, node: Node, users: list[Node]) -> None:
    if users:
        value = node.meta["val"]
        with made.graph.inserting_after(node):
            options = {"dtype": value.dtype, "device": value.device}
            plain = made.graph.call_function(_ATEN.zeros.default, (list(value.shape),), options)
        plain.meta["val"] = value
        for user in users:
            user.replace_input_with(node, plain)


def _kind(node: Node) -> Any:
    return node.meta["val"].shape, node.meta["val"].dtype
