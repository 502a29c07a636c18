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

from fedtailor.core import trees
from fedtailor.core.types import Tree
from fedtailor.errors import require

_SUFFIX = ".memory"


class ClientStateStore:
    """Rows of client memory, gathered and scattered by cohort."""

    def __init__(self, num_clients: int, folder: str | Path | None = None) -> None:
        self.initialized = torch.zeros(num_clients, dtype=torch.bool)
        self.changed = torch.zeros(num_clients, dtype=torch.bool)  # since somebody last looked
        self._folder = None if folder is None else Path(folder).expanduser()
        self._stored: Tree | None = None
        self._refuse_used_folder()

    def gather(self, client_ids: np.ndarray, initial: Tree) -> Tree:
        """The memories of some clients, stacked; whoever has none yet is given `fresh`."""
        rows = torch.from_numpy(client_ids)
        if self._stored is None:
            return trees.apply(lambda leaf: leaf.expand(len(client_ids), *leaf.shape), initial)
        initialized = self.initialized[rows]
        return trees.apply(
            lambda stored, leaf: _select_rows(stored, rows, initialized, leaf),
            self._stored,
            initial,
        )

    def scatter(self, client_ids: np.ndarray, stacked: Tree) -> None:
        """Writes back the memories of some clients."""
        rows = torch.from_numpy(client_ids)
        if self._stored is None:
            self._stored = self._allocate(stacked)
        for stored, leaf in zip(trees.leaves(self._stored), trees.leaves(stacked), strict=True):
            stored[rows] = leaf.to(stored.device)
        self.initialized[rows] = True
        self.changed[rows] = bool(trees.leaves(stacked))

    def read_rows(self, client_ids: np.ndarray) -> list[Tensor]:
        """What some clients remember, leaf by leaf."""
        return (
            []
            if self._stored is None
            else [leaf[torch.from_numpy(client_ids)] for leaf in trees.leaves(self._stored)]
        )

    def restore(self, client_ids: np.ndarray, leaves: Sequence[Tensor], like: Tree) -> None:
        """Puts back what `read_rows` gave; `like` is one client's memory, for its shape."""
        self.scatter(client_ids, trees.unflatten(like, leaves))

    def _allocate(self, stacked: Tree) -> Tree:
        self._refuse_used_folder()
        tensors = [
            self._allocate_leaf(
                f"{index}-{_sanitize_name(name)}",
                (len(self.initialized), *leaf.shape[1:]),
                leaf.dtype,
            )
            for index, (name, leaf) in enumerate(
                zip(trees.leaf_names(stacked), trees.leaves(stacked), strict=True)
            )
        ]
        return trees.unflatten(stacked, tensors)

    def _allocate_leaf(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        numel = math.prod(shape)
        if self._folder is None or numel == 0:
            return torch.empty(shape, dtype=dtype)
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{name}{_SUFFIX}"
        with path.open("xb") as file:
            file.truncate(numel * dtype.itemsize)
        return torch.from_file(str(path), shared=True, size=numel, dtype=dtype).reshape(shape)

    def _refuse_used_folder(self) -> None:
        used = self._folder is not None and any(self._folder.glob(f"*{_SUFFIX}"))
        require(
            not used,
            f"Memory: folder '{self._folder}' holds another run's memory; choose an empty one.",
        )


def _sanitize_name(name: str) -> str:
    """A leaf's name as part of a file's name; the number before it keeps names apart that become the same."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", name)[:100]


def _select_rows(stored: Tensor, rows: Tensor, initialized: Tensor, initial: Tensor) -> Tensor:
    is_initialized = initialized.reshape(-1, *(1 for _ in initial.shape)).to(initial.device)
    return torch.where(is_initialized, stored[rows].to(initial.device), initial)
