"""What clients keep between rounds: one tensor per leaf with a row per client, in RAM or in a file.

Pages that no client has written to take no room, so a million clients with a personal head need no million dicts.
"""

import math
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedtailor import trees
from fedtailor.errors import require
from fedtailor.types import Tree

_ENDING = ".memory"


class Memory:
    """Rows of client memory, gathered and scattered by cohort."""

    def __init__(self, clients: int, folder: str | Path | None = None) -> None:
        self.known = torch.zeros(clients, dtype=torch.bool)
        self.changed = torch.zeros(clients, dtype=torch.bool)  # since somebody last looked
        self._folder = None if folder is None else Path(folder).expanduser()
        self._store: Tree | None = None
        self._refuse_used_folder()

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
        self.changed[rows] = bool(trees.leaves(stacked))

    def rows(self, who: np.ndarray) -> list[Tensor]:
        """What some clients remember, leaf by leaf."""
        return [] if self._store is None else [leaf[torch.from_numpy(who)] for leaf in trees.leaves(self._store)]

    def restore(self, who: np.ndarray, leaves: Sequence[Tensor], like: Tree) -> None:
        """Puts back what `rows` gave; `like` is one client's memory, for its shape."""
        self.scatter(who, trees.rebuild(like, leaves))

    def _allocate(self, stacked: Tree) -> Tree:
        self._refuse_used_folder()
        tensors = [
            self._leaf(f"{number}-{_plain(name)}", (len(self.known), *leaf.shape[1:]), leaf.dtype)
            for number, (name, leaf) in enumerate(zip(trees.names(stacked), trees.leaves(stacked), strict=True))
        ]
        return trees.rebuild(stacked, tensors)

    def _leaf(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        numel = math.prod(shape)
        if self._folder is None or numel == 0:
            return torch.empty(shape, dtype=dtype)
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{name}{_ENDING}"
        with path.open("xb") as file:
            file.truncate(numel * dtype.itemsize)
        return torch.from_file(str(path), shared=True, size=numel, dtype=dtype).reshape(shape)

    def _refuse_used_folder(self) -> None:
        used = self._folder is not None and any(self._folder.glob(f"*{_ENDING}"))
        require(not used, f"Memory: folder '{self._folder}' holds another run's memory; choose an empty one.")


def _plain(name: str) -> str:
    """A leaf's name as part of a file's name; the number before it keeps names apart that become the same."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", name)[:100]


def _rows_or(kept: Tensor, rows: Tensor, known: Tensor, fresh: Tensor) -> Tensor:
    has_one = known.reshape(-1, *(1 for _ in fresh.shape)).to(fresh.device)
    return torch.where(has_one, kept[rows].to(fresh.device), fresh)
