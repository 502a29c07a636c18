"""Arithmetic on trees: nested dicts and tuples with tensors as leaves, treated as one vector.

Functions never change what they are given. "Stacked" trees carry one more leading dimension: a row per client.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import TypeVar, cast

import torch
from torch import Tensor

from fedtailor.compat.torch_internals import (
    add_lists,
    flatten_tree,
    is_functorch_active,
    is_tracing,
    list_leaf_paths,
    map_tree,
    scale_list,
    sub_lists,
    sum_magnitudes,
)
from fedtailor.core.types import Params, Tree

T = TypeVar("T")


def leaves(tree: Tree) -> list[Tensor]:
    """The tensors of a tree, in a fixed order."""
    kind = type(tree)
    if kind is Tensor:
        return [tree]
    if kind is dict or kind is tuple or hasattr(tree, "_fields"):
        members = tree.values() if kind is dict else tree
        return [
            leaf
            for member in members
            for leaf in ((member,) if type(member) is Tensor else leaves(member))
        ]
    return flatten_tree(tree)


def signature(tree: Tree) -> Hashable:
    """What two trees share whose leaves stand for the same things, in the same order, in tensors of the same kind."""
    if isinstance(tree, Tensor):
        return tree.shape, tree.dtype
    if isinstance(tree, dict):
        return tuple(tree), *(signature(member) for member in tree.values())
    return type(tree), *(signature(member) for member in tree)


def leaf_names(tree: Tree) -> list[str]:
    """A readable name for each leaf, in the order of `leaves`: `0.conv1.weight`."""
    return [".".join(path) for path in list_leaf_paths(tree)]


def apply(function: Callable[..., Tensor], tree: T, *others: Tree) -> T:
    """Applies a function leaf by leaf to one tree or to several of the same shape."""
    result: T = _apply(function, tree, others)
    return result


def _apply(function: Callable[..., Tensor], tree: Tree, others: tuple[Tree, ...]) -> Tree:
    """The same; torch's own way, which is slower, is left what is neither tensor, dict nor tuple, and what is wrong."""
    if isinstance(tree, Tensor) and all(isinstance(other, Tensor) for other in others):
        return function(tree, *others)
    same = all(type(other) is type(tree) and len(other) == len(tree) for other in others)
    if type(tree) is dict and same and all(name in other for other in others for name in tree):
        return {
            name: _apply(function, tree[name], tuple(other[name] for other in others))
            for name in tree
        }
    if isinstance(tree, tuple) and same:
        return _rebuild_tuple(
            tree, [_apply(function, each[0], each[1:]) for each in zip(tree, *others, strict=True)]
        )
    return map_tree(function, tree, *others)


def unflatten(like: T, tensors: Sequence[Tensor]) -> T:
    """A tree of the shape of `like` with other leaves."""
    count = len(leaves(like))
    if len(tensors) != count:
        raise ValueError(f"rebuild: a tree of {count} leaves cannot be made of {len(tensors)}.")
    result: T = _unflatten(like, iter(tensors))
    return result


def _unflatten(tree: Tree, tensors: Iterator[Tensor]) -> Tree:
    kind = type(tree)
    if kind is dict:
        return {
            name: next(tensors) if type(member) is Tensor else _unflatten(member, tensors)
            for name, member in tree.items()
        }
    if isinstance(tree, tuple):
        return _rebuild_tuple(tree, [_unflatten(member, tensors) for member in tree])
    return map_tree(lambda _: next(tensors), tree) if kind is not Tensor else next(tensors)


def add(a: T, b: T, alpha: float | Tensor = 1.0) -> T:
    """a + scale * b."""
    if isinstance(alpha, Tensor):
        return apply(lambda x, y: x + _cast_like(alpha, y) * y, a, b)
    if _are_lists(a, b):
        return _from_list(a, add_lists(list(a.values()), [b[name] for name in a], alpha))  # type: ignore[attr-defined, index]
    return apply(lambda x, y: torch.add(x, y, alpha=alpha), a, b)


def sub(a: T, b: T) -> T:
    """a - b."""
    if _are_lists(a, b):
        return _from_list(a, sub_lists(list(a.values()), [b[name] for name in a]))  # type: ignore[attr-defined, index]
    return apply(torch.sub, a, b)


def _are_lists(a: Tree, b: Tree) -> bool:
    """Return whether two trees are dicts of plain tensors, for which torch has operations on whole lists."""
    if type(a) is not dict or type(b) is not dict or not a or a.keys() != b.keys():
        return False
    if not all(type(leaf) is Tensor for leaf in (*a.values(), *b.values())):
        return False
    return not is_functorch_active() and not is_tracing()


def _from_list(like: T, tensors: Sequence[Tensor]) -> T:
    """Return a dict with the names of another one."""
    found: Tree = dict(zip(cast(Params, like), tensors, strict=True))
    return cast(T, found)


def scale(tree: T, factor: float | Tensor) -> T:
    """factor * tree."""
    return apply(lambda x: _cast_like(factor, x) * x, tree)


def _cast_like(factor: float | Tensor, leaf: Tensor) -> float | Tensor:
    """A factor that leaves the leaf's type as it is."""
    return factor.to(leaf.dtype) if isinstance(factor, Tensor) else factor


def is_zero(factor: float | Tensor) -> bool:
    """Whether a factor is known to be 0, so that what it multiplies is not needed; a tensor is never known to be."""
    return not isinstance(factor, Tensor) and factor == 0


def zeros_like(tree: T) -> T:
    """Zeros of the same shapes."""
    return apply(torch.zeros_like, tree)


def full_like(tree: T, value: float) -> T:
    """The same shapes, filled with one value."""
    return apply(lambda x: torch.full_like(x, value), tree)


def dot(a: Tree, b: Tree) -> Tensor:
    """The inner product of two trees of the same shape; 0 if they are empty."""
    return sum(leaves(apply(lambda x, y: (x * y).sum(), a, b)), torch.zeros(()))


def norm(tree: Tree) -> Tensor:
    """The Euclidean norm over all leaves."""
    return dot(tree, tree).sqrt()


def nbytes(tree: Tree) -> int:
    """How many bytes the leaves take."""
    return sum(leaf.numel() * leaf.element_size() for leaf in leaves(tree))


def stack(trees: Sequence[T]) -> T:
    """Puts trees of one shape on top of each other: leaves gain a leading dimension."""
    return apply(lambda *rows: torch.stack(rows), *trees)


def concat(stacks: Sequence[T]) -> T:
    """Joins stacked trees along their rows."""
    return apply(lambda *parts: torch.cat(parts), *stacks)


def take_row(stacked: T, index: int) -> T:
    """One row of a stacked tree."""
    return apply(lambda x: x[index], stacked)


def take_rows(stacked: T, index: Tensor | slice) -> T:
    """Some rows of a stacked tree, still stacked."""
    return apply(lambda x: x[index], stacked)


def weighted_sum(stacked: T, weights: Tensor) -> T:
    """The sum over rows, each times its weight."""
    return apply(lambda x: _weighted_sum(x, weights[None].to(x.dtype)), stacked)


def _weighted_sum(x: Tensor, weights: Tensor) -> Tensor:
    shape = x.shape[1:]
    return torch.mm(weights, x.reshape(len(x), shape.numel())).reshape(shape)


def select(tree: Tree, names: frozenset[str], inside: bool) -> Tree:
    """What in the dicts of a tree has one of these names, or the rest, to which leaves outside of dicts belong."""
    if isinstance(tree, dict):
        return {name: value for name, value in tree.items() if (name in names) == inside}
    if isinstance(tree, tuple):
        return _rebuild_tuple(tree, [select(member, names, inside) for member in tree])
    return () if inside else tree


def combine(rest: Tree, selected: Tree, order: Sequence[str] = ()) -> Tree:
    """The tree whose parts these are; names in its dicts stand in the given order, any others behind them."""
    if isinstance(rest, dict):
        positions = {name: position for position, name in enumerate(order)}
        merged = {**rest, **selected}
        return {
            name: merged[name]
            for name in sorted(merged, key=lambda name: positions.get(name, len(positions)))
        }
    if isinstance(rest, tuple):
        return _rebuild_tuple(
            rest, [combine(a, b, order) for a, b in zip(rest, selected, strict=True)]
        )
    return rest


def _rebuild_tuple(tree: tuple[Tree, ...], members: list[Tree]) -> Tree:
    return type(tree)(*members) if hasattr(tree, "_fields") else tuple(members)


def is_finite(tree: Tree) -> bool:
    """Whether no leaf holds a NaN or an infinity."""
    return bool(is_finite_tensor(tree))


def is_finite_tensor(tree: Tree) -> Tensor:
    """Whether no leaf holds a NaN or an infinity, as a tensor that need not be waited for."""
    found = [leaf for leaf in leaves(tree) if leaf.is_floating_point()]
    if not found:
        return torch.ones((), dtype=torch.bool)
    zeros = scale_list(
        found, 0.0
    )  # but infinity times 0 is a NaN; all leaves at once: a few operations
    return (torch.stack(list(sum_magnitudes(zeros))) == 0).all()


def to(tree: T, device: torch.device) -> T:
    """The same tree on another device."""
    return apply(lambda x: x.to(device), tree)
