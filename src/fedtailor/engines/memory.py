"""What clients keep between rounds: one tensor per leaf with a row per client, in RAM or in a file.

Pages that no client has written to take no room, so a million clients with a personal head need no million dicts.
"""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedtailor import trees
from fedtailor.errors import require
from fedtailor.types import Tree


class Memory:
    """Rows of client memory, gathered and scattered by cohort."""

    def __init__(self, clients: int, folder: Path | None = None) -> None:
        self.known = torch.zeros(clients, dtype=torch.bool)
        self._folder = folder
        self._store: Tree | None = None

    def gather(self, who: np.ndarray, fresh: Tree) -> Tree:
        """The memories of some clients, stacked; whoever has none yet is given `fresh`."""
        rows = torch.from_numpy(who)
        if self._store is None:
            return trees.apply(lambda leaf: leaf.expand(len(who), *leaf.shape), fresh)
        known = self.known[rows]
        return trees.apply(lambda kept, leaf: _rows_or(kept, rows, known, leaf), self._store, fresh)

    def scatter(self, who: np.ndarray, stacked: Tree) -> None:
        """Writes back the memories of some clients."""
        rows = torch.from_numpy(who)
        if self._store is None:
            self._store = self._allocate(stacked)
        for kept, leaf in zip(trees.leaves(self._store), trees.leaves(stacked), strict=True):
            kept[rows] = leaf.to(kept.device)
        self.known[rows] = True

    def _allocate(self, stacked: Tree) -> Tree:
        tensors = [
            self._leaf(name, (len(self.known), *leaf.shape[1:]), leaf.dtype)
            for name, leaf in zip(trees.names(stacked), trees.leaves(stacked), strict=True)
        ]
        return trees.rebuild(stacked, tensors)

    def _leaf(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        if self._folder is None:
            return torch.empty(shape, dtype=dtype)
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{name}.bin"
        require(not path.exists(), f"Memory: '{path}' holds another run's memory; choose an empty folder.")
        numel = int(np.prod(shape))
        with path.open("wb") as file:
            file.truncate(numel * torch.empty((), dtype=dtype).element_size())
        return torch.from_file(str(path), shared=True, size=numel, dtype=dtype).reshape(shape)


def _rows_or(kept: Tensor, rows: Tensor, known: Tensor, fresh: Tensor) -> Tensor:
    has_one = known.reshape(-1, *(1 for _ in fresh.shape)).to(fresh.device)
    return torch.where(has_one, kept[rows].to(fresh.device), fresh)
