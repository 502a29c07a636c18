"""Functions as the lists of plain operations that they come down to for tensors of certain shapes.

Such a list is found once, by following the function through `vmap` and `grad`. Going through it again costs the host
little; a compiler that is given it need not see through anything, and what has its own derivative, or its own rule for
stacks, keeps it.
"""

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from fedtailor import trees
from fedtailor.types import Tree

Bound = Callable[[], object]
Bind = Callable[[Callable[..., None], tuple[Tree, ...]], Bound]
"""Makes of a function and what it is given something that only has to be called."""
Compile = bool | Literal["training"]
"""Whether steps are compiled: all, none, or those of training but not those of personalising and scoring."""


def as_it_is(function: Callable[..., None], given: tuple[Tree, ...]) -> Bound:
    """A function with what it is given."""
    return partial(function, *given)


def compiled(function: Callable[..., None], given: tuple[Tree, ...]) -> Bound:
    """The same as compiled code."""
    graph = _graph(_Flat(function, given), trees.leaves(given))
    return partial(torch.compile(graph, dynamic=False), *trees.leaves(given))


class Traced:
    """A pure function of trees of tensors, followed once for each kind of trees that it is given twice."""

    def __init__(self, function: Callable[..., Tree]) -> None:
        self._function = function
        self._lists: dict[Hashable, tuple[Callable[..., Sequence[Tensor]], Tree] | None] = {}

    def __call__(self, *given: Tree) -> Tree:
        """What the function makes of it."""
        kind = trees.structure(given)
        if kind not in self._lists:
            self._lists[kind] = None
            return self._function(*given)
        found = self._lists[kind]
        if found is None:
            flat = _Flat(self._function, given)
            found = self._lists[kind] = _graph(flat, trees.leaves(given)).forward, flat.made
        operations, made = found
        return trees.rebuild(made, operations(*trees.leaves(given)))


class _Flat:
    """A function of trees as one of their leaves; `made` is the tree that it returned last."""

    def __init__(self, function: Callable[..., Tree], like: tuple[Tree, ...]) -> None:
        self._function, self._like = function, like
        self.made: Tree = ()

    def __call__(self, *leaves: Tensor) -> list[Tensor]:
        self.made = self._function(*trees.rebuild(self._like, leaves))
        return trees.leaves(self.made)


def _graph(function: Callable[..., Any], leaves: Sequence[Tensor]) -> GraphModule:
    """The operations, found without doing them."""
    made: GraphModule = make_fx(function, tracing_mode="fake", _allow_non_fake_inputs=True)(*leaves)
    return made
