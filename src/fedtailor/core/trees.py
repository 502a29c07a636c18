"""Arithmetic on trees: nested dicts and tuples with tensors as leaves, treated as one vector.

No function changes its arguments. A "stacked" tree has one more leading dimension, a row per
client.
"""

import math
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

MAX_FLOAT32 = float(torch.finfo(torch.float32).max)
"""The largest finite float32."""


# Structure


def leaves(tree: Tree) -> list[Tensor]:
    """Return the tensors of a tree, in a fixed order."""
    kind = type(tree)
    if kind is Tensor:
        return [tree]
    if kind is dict:
        members = tree.values()
    elif kind is tuple or hasattr(tree, "_fields"):
        members = tree
    else:
        return flatten_tree(tree)
    tensors: list[Tensor] = []
    for member in members:
        if type(member) is Tensor:
            tensors.append(member)
        else:
            tensors.extend(leaves(member))
    return tensors


def signature(tree: Tree) -> Hashable:
    """Return a key that is equal for trees of the same structure, names, shapes and dtypes."""
    if isinstance(tree, Tensor):
        return tree.shape, tree.dtype
    if isinstance(tree, dict):
        return tuple(tree), *(signature(member) for member in tree.values())
    return type(tree), *(signature(member) for member in tree)


def leaf_names(tree: Tree) -> list[str]:
    """Return a readable name for each leaf, in the order of `leaves`: `0.conv1.weight`."""
    return [".".join(path) for path in list_leaf_paths(tree)]


def unflatten(like: T, tensors: Sequence[Tensor]) -> T:
    """Return a tree with the structure of `like` and these tensors, in the order of `leaves`."""
    num_leaves = len(leaves(like))
    if len(tensors) != num_leaves:
        raise ValueError(
            f"unflatten: a tree of {num_leaves} leaves cannot be made of {len(tensors)} tensors."
        )
    result: T = _unflatten(like, iter(tensors))
    return result


def _unflatten(tree: Tree, tensors: Iterator[Tensor]) -> Tree:
    kind = type(tree)
    if kind is Tensor:
        return next(tensors)
    if kind is dict:
        # A call for each leaf would take longer than the rest.
        return {
            name: next(tensors) if type(member) is Tensor else _unflatten(member, tensors)
            for name, member in tree.items()
        }
    if isinstance(tree, tuple):
        return _rebuild_tuple(tree, [_unflatten(member, tensors) for member in tree])
    return map_tree(lambda _: next(tensors), tree)


def _rebuild_tuple(tree: tuple[Tree, ...], members: list[Tree]) -> Tree:
    """Return a tuple of other members, as a NamedTuple of the same class if `tree` is one."""
    if hasattr(tree, "_fields"):
        return type(tree)(*members)
    return tuple(members)


def nbytes(tree: Tree) -> int:
    """Return the size of all leaves in bytes."""
    return sum(leaf.numel() * leaf.element_size() for leaf in leaves(tree))


def to(tree: T, device: torch.device) -> T:
    """Return the tree on another device."""
    return apply(lambda x: x.to(device), tree)


# Leaf by leaf


def apply(function: Callable[..., Tensor], tree: T, *others: Tree) -> T:
    """Apply a function leaf by leaf to one tree or to several of the same structure.

    Args:
        function: Takes one leaf of each tree.
        tree: Determines the structure of the result.
        others: Further trees. Members of dicts are matched by name.
    """
    result: T = _apply(function, tree, others)
    return result


def _apply(function: Callable[..., Tensor], tree: Tree, others: tuple[Tree, ...]) -> Tree:
    if isinstance(tree, Tensor) and all(isinstance(other, Tensor) for other in others):
        return function(tree, *others)
    is_same_node = all(type(other) is type(tree) and len(other) == len(tree) for other in others)
    if type(tree) is dict and is_same_node and _have_names(tree, others):
        return {
            name: _apply(function, member, tuple(other[name] for other in others))
            for name, member in tree.items()
        }
    if isinstance(tree, tuple) and is_same_node:
        rows = zip(tree, *others, strict=True)
        return _rebuild_tuple(tree, [_apply(function, row[0], row[1:]) for row in rows])
    # torch's own function is slower, but takes any other node and raises if trees do not match.
    return map_tree(function, tree, *others)


def _have_names(tree: Params, others: tuple[Params, ...]) -> bool:
    """Return whether each of the other dicts has all names of the first."""
    return all(name in other for other in others for name in tree)


def zeros_like(tree: T) -> T:
    """Return zeros of the same shapes."""
    return apply(torch.zeros_like, tree)


def full_like(tree: T, value: float) -> T:
    """Return a tree of the same shapes that is filled with one value."""
    return apply(lambda x: torch.full_like(x, value), tree)


# Arithmetic


def add(a: T, b: T, alpha: float | Tensor = 1.0) -> T:
    """Return `a` + `alpha` * `b`. A tensor `alpha` does not change the dtype of the leaves.

    A number that float32 does not hold is infinite, as it is where `scale` multiplies by it.
    """
    if isinstance(alpha, Tensor):
        return apply(lambda x, y: x + _cast_like(alpha, y) * y, a, b)
    if abs(alpha) > MAX_FLOAT32:  # torch refuses it, but takes infinity
        alpha = math.copysign(math.inf, alpha)
    if _are_lists(a, b):
        return _from_list(a, add_lists(*_pair_leaves(a, b), alpha))
    return apply(lambda x, y: torch.add(x, y, alpha=alpha), a, b)


def sub(a: T, b: T) -> T:
    """Return `a` - `b`."""
    if _are_lists(a, b):
        return _from_list(a, sub_lists(*_pair_leaves(a, b)))
    return apply(torch.sub, a, b)


def _are_lists(a: Tree, b: Tree) -> bool:
    """Return whether torch's operations on lists of tensors can be used for two trees.

    They need dicts of plain tensors, and have no rules for `torch.func` and for tracing.
    """
    if type(a) is not dict or type(b) is not dict or not a or a.keys() != b.keys():
        return False
    if not all(type(leaf) is Tensor for leaf in (*a.values(), *b.values())):
        return False
    return not is_functorch_active() and not is_tracing()


def _pair_leaves(a: Tree, b: Tree) -> tuple[list[Tensor], list[Tensor]]:
    """Return the tensors of two dicts with the same names, both in the order of the first."""
    return list(a.values()), [b[name] for name in a]


def _from_list(like: T, tensors: Sequence[Tensor]) -> T:
    """Return a dict of the tensors under the names of `like`."""
    params: Tree = dict(zip(cast(Params, like), tensors, strict=True))
    return cast(T, params)


def scale(tree: T, factor: float | Tensor) -> T:
    """Return `factor` * `tree`. A tensor `factor` does not change the dtype of the leaves."""
    return apply(lambda x: _cast_like(factor, x) * x, tree)


def _cast_like(factor: float | Tensor, leaf: Tensor) -> float | Tensor:
    if isinstance(factor, Tensor):
        return factor.to(leaf.dtype)
    return factor


def is_zero(factor: float | Tensor) -> bool:
    """Return whether a factor is a plain 0, so that the term it multiplies can be left out.

    The value of a tensor is never read: `vmap` forbids it, and a GPU would have to be waited for.
    """
    return not isinstance(factor, Tensor) and factor == 0


def dot(a: Tree, b: Tree) -> Tensor:
    """Return the inner product of two trees of the same structure, or 0 if they are empty."""
    return sum(leaves(apply(lambda x, y: (x * y).sum(), a, b)), torch.zeros(()))


def norm(tree: Tree) -> Tensor:
    """Return the Euclidean norm over all leaves."""
    return dot(tree, tree).sqrt()


def is_finite(tree: Tree) -> bool:
    """Return whether no leaf contains a NaN or an infinity."""
    return bool(is_finite_tensor(tree))


def is_finite_tensor(tree: Tree) -> Tensor:
    """Return what `is_finite` does as a tensor, without waiting for the device."""
    floats = [leaf for leaf in leaves(tree) if leaf.is_floating_point()]
    if not floats:
        return torch.ones((), dtype=torch.bool)
    # NaN times 0 and infinity times 0 are NaN. All leaves are handled in a few operations.
    zeros = scale_list(floats, 0.0)
    return (torch.stack(list(sum_magnitudes(zeros))) == 0).all()


# Stacked trees


def stack(trees: Sequence[T]) -> T:
    """Return trees of one structure as the rows of a stacked tree."""
    return apply(lambda *rows: torch.stack(rows), *trees)


def concat(stacks: Sequence[T]) -> T:
    """Return one stacked tree with the rows of all."""
    return apply(lambda *parts: torch.cat(parts), *stacks)


def take_row(stacked: T, index: int) -> T:
    """Return one row of a stacked tree."""
    return apply(lambda x: x[index], stacked)


def take_rows(stacked: T, index: Tensor | slice) -> T:
    """Return some rows of a stacked tree, still stacked."""
    return apply(lambda x: x[index], stacked)


def weighted_sum(stacked: T, weights: Tensor) -> T:
    """Return the sum over the rows, each times its weight in `weights` `[rows]`."""
    return apply(lambda x: _weighted_sum(x, weights[None].to(x.dtype)), stacked)


def _weighted_sum(x: Tensor, weights: Tensor) -> Tensor:
    shape = x.shape[1:]
    return torch.mm(weights, x.reshape(len(x), shape.numel())).reshape(shape)


# Parts of a tree


def select(tree: Tree, names: frozenset[str], should_match: bool) -> Tree:
    """Return the part of a tree whose dict members are in `names`, or the part of all others.

    Args:
        tree: Dicts inside of dicts are not searched: a member is selected as a whole.
        names: Names of parameters.
        should_match: Whether to return the members in `names`. Without it, all others are returned,
            and leaves outside of dicts with them.

    Example:
        >>> params = {"base.weight": torch.ones(2), "head.weight": torch.zeros(1)}
        >>> select(params, frozenset({"head.weight"}), True)
        {'head.weight': tensor([0.])}
        >>> select(params, frozenset({"head.weight"}), False)
        {'base.weight': tensor([1., 1.])}
    """
    if isinstance(tree, dict):
        return {name: value for name, value in tree.items() if (name in names) == should_match}
    if isinstance(tree, tuple):
        return _rebuild_tuple(tree, [select(member, names, should_match) for member in tree])
    return () if should_match else tree


def combine(rest: Tree, selected: Tree, order: Sequence[str] = ()) -> Tree:
    """Return the tree that `select` has split.

    Args:
        rest: The part that was selected with `should_match=False`.
        selected: The part that was selected with `should_match=True`.
        order: Order of the names in the tree's dicts; other names follow.

    Example:
        >>> base = {"base.weight": torch.ones(2)}
        >>> head = {"head.weight": torch.zeros(1)}
        >>> combine(base, head)
        {'base.weight': tensor([1., 1.]), 'head.weight': tensor([0.])}
        >>> combine(base, head, order=("head.weight", "base.weight"))
        {'head.weight': tensor([0.]), 'base.weight': tensor([1., 1.])}
    """
    if isinstance(rest, dict):
        positions = {name: position for position, name in enumerate(order)}
        merged = {**rest, **selected}
        names = sorted(merged, key=lambda name: positions.get(name, len(positions)))
        return {name: merged[name] for name in names}
    if isinstance(rest, tuple):
        pairs = zip(rest, selected, strict=True)
        return _rebuild_tuple(rest, [combine(a, b, order) for a, b in pairs])
    return rest
