"""Functions as the lists of plain operations that they come down to for tensors of certain shapes.

Such a list is found once, by following the function through `vmap` and `grad`. Going through it again costs the host
little; a compiler that is given it need not see through anything, and what has its own derivative, or its own rule for
stacks, keeps it.
"""

from collections.abc import Callable, Hashable, Sequence
from functools import cache, partial
from typing import Any, Literal

import torch
from torch import Tensor
from torch._guards import TracingContext
from torch._guards import tracing as in_context
from torch._subclasses import FakeTensorMode
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import get_proxy_mode, make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from fedtailor import keyed, trees
from fedtailor.engines.rewriting import InPlainOperations
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
    """The same as compiled code, without the checks of what it is given that `torch.compile` would do each time."""
    leaves = trees.leaves(given)
    return partial(_compiled_here(_to_compile(function, given), leaves), *leaves)


def _to_compile(function: Callable[..., None], given: tuple[Tree, ...]) -> GraphModule:
    """A function's list, for a compiler that knows what a draw comes down to."""
    _have_draws_fused()
    _have_writes_wait()
    with InPlainOperations():
        graph = followed(function, given)
    multiply_out_alpha(graph)
    return graph


def multiply_out_alpha(graph: GraphModule) -> None:
    """Replace `add(a, b, alpha)` by `add(a, alpha * b)` throughout a graph.

    Inductor (torch 2.13 and before) drops `alpha` where it turns the sum with a product of matrices into one `addmm`,
    and then the result is wrong without a word.
    """
    for node in graph.graph.nodes:
        alpha = node.kwargs.get("alpha", 1)
        if node.target is not torch.ops.aten.add.Tensor or alpha == 1:
            continue
        first, second = node.args
        with graph.graph.inserting_before(node):
            scaled = graph.graph.call_function(torch.ops.aten.mul.Tensor, (second, alpha))
        node.args = (first, scaled)
        node.kwargs = {}
    graph.recompile()


def _compiled_here(graph: GraphModule, leaves: Sequence[Tensor]) -> Callable[..., object]:
    """A list of operations as code of this process; torch keeps parts of it on disk."""
    import torch._inductor  # here: it takes seconds, which nobody else should wait for

    shapes = FakeTensorMode(shape_env=ShapeEnv())  # without which torch would not keep the code on disk
    with in_context(TracingContext(shapes)):
        alike: list[Any] = [shapes.from_tensor(leaf, static_shapes=True) for leaf in leaves]  # else it is for any shape
        code: Callable[..., object] = torch._inductor.compile(graph, alike)
    return code


@cache
def _have_draws_fused() -> None:
    """Tells the compiler what a draw's one operation comes down to, as it asks for all such knowledge once."""
    from torch._inductor import decomposition

    decomposition.decompositions.setdefault(torch.ops.fedtailor.mixed.default, keyed.mixed_in_full)
    decomposition.fast_random_decomps.cache_clear()


@cache
def _have_writes_wait() -> None:
    """Has torch before 2.13 remember what must have been read before it is written over.

    It forgets that wherever it lays out a CPU's loop anew to join it to another, and then weights may be new before the
    last product with the old ones.
    """
    from torch._inductor.dependencies import StarDep, WeakDep
    from torch._inductor.scheduler import SchedulerNode

    if torch.__version__ >= "2.13":  # which torch compares part by part
        return
    lay_out: Any = SchedulerNode.recompute_size_and_body

    def remembering(self: Any, *given: Any, **named: Any) -> None:
        before = [dep for dep in self.read_writes.reads if isinstance(dep, WeakDep | StarDep)]
        lay_out(self, *given, **named)
        if before:
            self.set_read_writes(self.read_writes.with_read(type(self.read_writes.reads)(before)))

    SchedulerNode.recompute_size_and_body = remembering  # type: ignore[method-assign]


def followed(function: Callable[..., None], given: tuple[Tree, ...]) -> GraphModule:
    """A function's list of operations."""
    return _graph(_Flat(function, given), trees.leaves(given))


def being_followed() -> bool:
    """Whether what is done now is being written down as a list."""
    return get_proxy_mode() is not None


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
            operations, nothing = _graph(flat, trees.leaves(given)).forward, torch.empty(0)
            found = self._lists[kind] = operations, trees.apply(lambda _: nothing, flat.made)
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
    """The operations that count, found without doing them."""
    made: GraphModule = make_fx(function, tracing_mode="fake", _allow_non_fake_inputs=True)(*leaves)
    made.graph.eliminate_dead_code()
    made.recompile()
    return made
