"""A phase's steps for a stack of clients as a program on tensors that stay where they are.

A program owns room for what is given, for the carry of every client and for the places of the examples of many steps.
One step reads which step it is, gathers its examples, and writes the carry over itself, so that nothing but the room's
contents changes from step to step: compiled once, or recorded once as a CUDA graph, it is then only told to go on.
"""

import warnings
from collections.abc import Callable, Iterator
from functools import cache, lru_cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from fedtailor import trees
from fedtailor.data.batching import Place, at_once
from fedtailor.engines.base import Site, pinned
from fedtailor.engines.tracing import Bind, Bound, as_it_is, being_followed
from fedtailor.types import Batch, Tree

Step = Callable[[Tree, Tree, tuple[Batch, ...]], Tree]
Decode = Callable[[tuple[Tensor, ...], Place], Batch]
Stretches = Iterator[tuple[int, tuple[Place, ...]]]


class Program:
    """Steps of one kind for a stack of clients, or of uploads that see the same batches (`shared`)."""

    def __init__(
        self,
        step: Step,
        site: Site | None,
        given: Tree,
        carry: Tree,
        draws: tuple[Place, ...],
        shared: bool,
    ) -> None:
        count, device = len(trees.leaves(carry)[0]), trees.leaves(carry)[0].device
        self._given, self._carry = (trees.apply(_room, tree) for tree in (given, carry))
        self._places = tuple(Place(*(_places_room(leaf, each.rows, device) for leaf in each)) for each in draws)
        self._at, self._left = (torch.zeros(size, dtype=torch.int64, device=device) for size in (1, count))
        self._columns = () if site is None else site.columns
        self._function = partial(_advance, step, shared, None if site is None else site.decode)
        self._steps: dict[int, Bound] = {}
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}

    def run(self, given: Tree, carry: Tree, stretches: Stretches, counts: np.ndarray, bind: Bind, into: Tree) -> None:
        """Leaves the carry after all steps somewhere: each client takes its own number of them, the first the most."""
        _load(self._given, given)
        _load(self._carry, carry)
        begin = 0
        for steps, placed in stretches:
            for own, laid in zip(self._places, placed, strict=True):
                for room, leaf in zip(own, laid, strict=True):
                    room[:steps].copy_(pinned(leaf, room.device), non_blocking=True)
            self._left.copy_(pinned(torch.from_numpy(counts - begin), self._left.device), non_blocking=True)
            self._at.zero_()
            for active in (counts[:, None] > np.arange(begin, begin + steps)).sum(0).tolist():
                self._go_on(stack_size(active, len(counts)), bind)
            begin += steps
        _load(into, self._carry)

    def _go_on(self, size: int, bind: Bind) -> None:
        """One step of the first so many clients: done the first time, which warms everything up, and then recorded."""
        if size not in self._steps:
            self._steps[size] = _bound(bind, self._function, (self._columns, *self._first(size)))
        elif self._at.is_cuda:
            if size not in self._graphs:
                self._graphs[size] = _recorded(self._steps[size], self._at.device)
            self._graphs[size].replay()
            return
        self._steps[size]()

    def _first(self, size: int) -> tuple[Tree, ...]:
        """The room of the first so many clients."""
        places = tuple(Place(*(leaf[:, :size] for leaf in place)) for place in self._places)
        return self._given, trees.rows(self._carry, slice(0, size)), places, self._at, self._left[:size]


def _bound(bind: Bind, function: Callable[..., None], given: tuple[Tree, ...]) -> Bound:
    """A step that only has to be called; as it is, if the compiler cannot make anything of it."""
    try:
        return bind(function, given)
    except Exception as problem:
        _tell_once(next(iter(str(problem).splitlines()), type(problem).__name__))
        return as_it_is(function, given)


@cache
def _tell_once(why: str) -> None:
    said = f"torch {torch.__version__} cannot compile a step, which runs uncompiled, with the same results: {why}"
    warnings.warn(said, RuntimeWarning, stacklevel=2)


_FIRST: dict[torch.device, torch.cuda.CUDAGraph] = {}


def _recorded(function: Bound, device: torch.device) -> torch.cuda.CUDAGraph:
    """What a function does, as a graph.

    All graphs of a process share their passing memory: they run one after another, and keep nothing in it. A first one,
    which does next to nothing, is kept, since torch gives the memory up with the last graph that has it.
    """
    if device not in _FIRST:
        _FIRST[device] = _captured(partial(torch.zeros, 1, device=device), None)
    return _captured(function, _FIRST[device].pool())


def _captured(function: Bound, pool: Any) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        function()
    return graph


@lru_cache(4096)
def stack_size(active: int, most: int) -> int:
    """The smallest of some sizes that holds all: few, so that little is compiled, but large ones, which cost, closer.

    They are most, most/2, most/4, ... and 3/4 of the first two of these.
    """
    sizes, size = [], most
    while size > 1:
        sizes += [size, -(-3 * size // 4)] if 2 * size >= most else [size]
        size = -(-size // 2)
    return min((each for each in (*sizes, 1) if each >= active), default=most)


def stepped(step: Step, shared: bool, given: Tree, carry: Tree, batches: tuple[Batch, ...], index: Tensor) -> Tree:
    """One step of a stack. `index` is any tensor of its length: `vmap` needs one, carry and batches may have none.

    On a CPU the step of a stack of one is done as it is: compilers and libraries know less about stacks of operations.
    """
    if len(index) == 1 and index.device.type == "cpu":
        one = step(given, trees.row(carry, 0), batches if shared else trees.row(batches, 0))
        return trees.apply(_as_row, one)
    in_dims = (None, 0, None if shared else 0, 0)
    result: Tree = vmap(partial(_with_index, step), in_dims, randomness="error")(given, carry, batches, index)
    return result


def _as_row(leaf: Tensor) -> Tensor:
    return leaf[None]


def _with_index(step: Step, given: Tree, carry: Tree, batches: tuple[Batch, ...], index: Tensor) -> Tree:
    return step(given, carry, batches)


def _advance(
    step: Step,
    shared: bool,
    decode: Decode | None,
    columns: tuple[Tensor, ...],
    given: Tree,
    carry: Tree,
    places: tuple[Place, ...],
    at: Tensor,
    left: Tensor,
) -> None:
    """One step of everybody, written over the carry; whoever has no steps left stays as it is."""
    now = (Place(*(_current(leaf, at) for leaf in place)) for place in places)
    batches = tuple(decode(columns, place.of(0) if shared else place) for place in now) if decode else ()
    new, going = stepped(step, shared, given, carry, batches, left), at < left
    values = trees.apply(partial(_where, going), new, carry)
    _load(carry, values)
    at.add_(1)


def _current(leaf: Tensor, at: Tensor) -> Tensor:
    """What belongs to a step; in code for CPUs behind a view, so that it is looked up once and not wherever it is read.

    For some reductions torch 2.11 would look it up in an index that it has not read yet, which does not compile.
    """
    found = leaf.index_select(0, at)[0]
    return found.as_strided(found.shape, found.stride()) if being_followed() and not found.is_cuda else found


def _where(going: Tensor, new: Tensor, old: Tensor) -> Tensor:
    return torch.where(going.reshape(-1, *(1 for _ in old.shape[1:])), new, old)


def _room(leaf: Tensor) -> Tensor:
    """Room for a leaf's like."""
    return torch.empty_like(leaf, memory_format=torch.contiguous_format)


def _places_room(leaf: Tensor, rows: Tensor, device: torch.device) -> Tensor:
    """Room for as many steps as are ever laid out at a time."""
    steps = at_once(rows.shape[1], rows.shape[2])
    return torch.empty((steps, *leaf.shape[1:]), dtype=leaf.dtype, device=device)


def _load(room: Tree, tree: Tree) -> None:
    """Fills room with a tree of its shape: in one operation, but leaf by leaf in code that is to be compiled.

    A step's tree is made of what is in the room, and torch.compile, of one operation, makes code that computes later
    leaves from what it has already written over earlier ones.
    """
    rooms, values = trees.leaves(room), trees.leaves(trees.apply(_second, room, tree))
    if being_followed():
        for each, value in zip(rooms, values, strict=True):
            each.copy_(value)
    elif rooms:
        torch._foreach_copy_(rooms, values)


def _second(_: Tensor, leaf: Tensor) -> Tensor:
    return leaf
