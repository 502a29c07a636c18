"""How far two trees are apart."""

import torch

from fedtailor.core import trees
from fedtailor.core.types import Tree


def distance(a: Tree, b: Tree) -> float:
    """The largest difference between two trees of the same shape; NaN counts as different."""
    pairs = zip(trees.leaves(a), trees.leaves(b), strict=True)
    gaps = [float((x.double() - y.double()).abs().max()) for x, y in pairs if x.numel()]
    return float("inf") if any(gap != gap for gap in gaps) else max(gaps, default=0.0)


def clone(tree: Tree) -> Tree:
    """A copy that shares no storage."""
    return trees.apply(torch.clone, tree)
