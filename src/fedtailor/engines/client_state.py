"""The states that clients keep between rounds: a row for each client that has one.

Rows are in RAM or in files. A client gets its row when its state is first stored, so memory grows
with the clients that take part and not with the population.
"""

import errno
import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedtailor.core import trees
from fedtailor.core.types import Tree
from fedtailor.errors import require

_SUFFIX = ".memory"
_MIN_CAPACITY = 64
"""Rows that the store has room for at first."""
_NO_ROW = -1
_ZEROS = bytes(1 << 20)
"""What files grow by where the system cannot reserve room for them."""
_NO_RESERVATION_ERRNOS = {errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}
"""Errors of file systems that cannot reserve room."""


class ClientStateStore:
    """Client states by client index, stored as one tensor per leaf with a row per client.

    `initialized` says which clients have a state of their own, `changed` which states have been
    stored since it was last cleared; both are [clients] bool. In a distributed run `initialized`
    covers all ranks, while the state itself may be on another rank.

    Args:
        num_clients: Number of clients in the data set.
        folder: Folder of the states; None keeps them in RAM.
    """

    def __init__(self, num_clients: int, folder: str | Path | None = None) -> None:
        self.initialized = torch.zeros(num_clients, dtype=torch.bool)
        self.changed = torch.zeros(num_clients, dtype=torch.bool)
        self._folder = None if folder is None else Path(folder).expanduser()
        self._rows = torch.full((num_clients,), _NO_ROW, dtype=torch.int64)
        self._num_rows = 0
        self._stored: Tree | None = None
        self._refuse_used_folder()

    def read(self, client: int, initial: Tree) -> Tree:
        """Return the state of one client, or `initial` if it has none yet."""
        if self._stored is None or not self.initialized[client]:
            return initial
        row = self._find_rows(torch.tensor([client]))[0]
        return trees.apply(
            lambda stored, leaf: stored[row].clone().to(leaf.device), self._stored, initial
        )

    def write(self, client: int, state: Tree) -> None:
        """Store the state of one client."""
        self.scatter(np.array([client]), trees.apply(lambda leaf: leaf[None], state))

    def gather(self, client_ids: np.ndarray, initial: Tree) -> Tree:
        """Return the stacked states of some clients, with `initial` for those without one."""
        ids = torch.from_numpy(client_ids)
        if self._stored is None:
            return trees.apply(lambda leaf: leaf.expand(len(ids), *leaf.shape), initial)
        is_initialized = self.initialized[ids]
        rows = torch.zeros(len(ids), dtype=torch.int64)
        rows[is_initialized] = self._find_rows(ids[is_initialized])
        return trees.apply(
            lambda stored, leaf: _select_rows(stored, rows, is_initialized, leaf),
            self._stored,
            initial,
        )

    def scatter(self, client_ids: np.ndarray, states: Tree) -> None:
        """Store the stacked states of some clients."""
        ids = torch.from_numpy(client_ids)
        self.initialized[ids] = True
        if not trees.leaves(states):
            return
        rows = self._add_rows(ids, states)
        for stored, leaf in zip(trees.leaves(self._stored), trees.leaves(states), strict=True):
            stored[rows] = leaf.to(stored.device)
        self.changed[ids] = True

    def read_rows(self, client_ids: np.ndarray) -> list[Tensor]:
        """Return the stacked states of some initialized clients, leaf by leaf."""
        if self._stored is None:
            return []
        rows = self._find_rows(torch.from_numpy(client_ids))
        return [leaf[rows] for leaf in trees.leaves(self._stored)]

    def restore(self, client_ids: np.ndarray, leaves: Sequence[Tensor], like: Tree) -> None:
        """Store the states of some clients as `read_rows` returned them.

        Args:
            client_ids: Indices of the clients, [clients].
            leaves: Stacked states, leaf by leaf.
            like: State of one client, for the structure.
        """
        self.scatter(client_ids, trees.unflatten(like, leaves))

    def _find_rows(self, ids: Tensor) -> Tensor:
        rows = self._rows[ids]
        assert bool((rows != _NO_ROW).all()), "the state of a client is on another rank"
        return rows

    def _add_rows(self, ids: Tensor, states: Tree) -> Tensor:
        """Return the rows of some clients, after adding rows for those that have none."""
        is_new = self._rows[ids] == _NO_ROW
        num_rows = self._num_rows + int(is_new.sum())
        if self._stored is None or num_rows > self._capacity:
            self._grow(num_rows, states)
        self._rows[ids[is_new]] = torch.arange(self._num_rows, num_rows)
        self._num_rows = num_rows
        return self._rows[ids]

    @property
    def _capacity(self) -> int:
        """Number of rows that the store has room for."""
        if self._stored is None:
            return 0
        return len(trees.leaves(self._stored)[0])

    def _grow(self, num_rows: int, states: Tree) -> None:
        """Make room for at least `num_rows` rows, if possible for twice as many as before.

        Raises:
            OSError: The disk has no room; the store and its files are as they were before.
        """
        is_new = self._stored is None
        if is_new:
            self._refuse_used_folder()
        doubled = max(_MIN_CAPACITY, 2 * self._capacity)
        capacity = max(num_rows, min(doubled, len(self._rows)))
        old_leaves = [] if is_new else trees.leaves(self._stored)
        shapes = [(capacity, *leaf.shape[1:]) for leaf in trees.leaves(states)]
        paths = self._list_paths(states, shapes)
        sizes = {
            path: math.prod(shape) * leaf.dtype.itemsize
            for path, shape, leaf in zip(paths, shapes, trees.leaves(states), strict=True)
            if path is not None
        }
        _reserve_room(sizes, is_new)
        leaves = []
        for index, leaf in enumerate(trees.leaves(states)):
            shape = shapes[index]
            path = paths[index]
            if path is None:
                tensor = torch.empty(shape, dtype=leaf.dtype)
                if old_leaves:
                    tensor[: self._num_rows] = old_leaves[index][: self._num_rows]
            else:
                tensor = _map_file(path, shape, leaf.dtype)
            leaves.append(tensor)
        self._stored = trees.unflatten(states, leaves)

    def _list_paths(self, states: Tree, shapes: Sequence[tuple[int, ...]]) -> list[Path | None]:
        """Return the file of each leaf, or None for a leaf that is kept in RAM."""
        paths: list[Path | None] = []
        for index, (name, shape) in enumerate(zip(trees.leaf_names(states), shapes, strict=True)):
            # A file without bytes cannot be mapped.
            if self._folder is None or math.prod(shape) == 0:
                paths.append(None)
            else:
                paths.append(self._folder / f"{index}-{_sanitize_name(name)}{_SUFFIX}")
        return paths

    def _refuse_used_folder(self) -> None:
        if self._folder is None:
            return
        is_used = any(self._folder.glob(f"*{_SUFFIX}"))
        require(
            not is_used,
            f"Client states: folder '{self._folder}' holds another run's states; "
            "choose an empty one.",
        )


def _reserve_room(sizes: Mapping[Path, int], is_new: bool) -> None:
    """Grow files to these sizes in bytes, with room for all of their content on the disk.

    Writing to a mapped file for which the disk has no room would end the process.

    Args:
        sizes: The size of each file, at least as large as before.
        is_new: Whether the files must not exist yet.

    Raises:
        OSError: The disk has no room; files that are new are removed, others as large as before.
    """
    old_sizes: dict[Path, int] = {}
    try:
        for path, size in sizes.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("xb" if is_new else "r+b") as file:
                old_sizes[path] = file.seek(0, os.SEEK_END)
                _extend_file(file.fileno(), old_sizes[path], size)
    except OSError as problem:
        for path, old_size in old_sizes.items():
            if is_new:
                path.unlink()
            else:
                os.truncate(path, old_size)
        problem.filename = str(path)
        raise


def _extend_file(descriptor: int, old_size: int, size: int) -> None:
    """Extend a file, whose position is at its end, by bytes that have room on the disk."""
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(descriptor, 0, size)
            return
        except OSError as problem:
            if problem.errno not in _NO_RESERVATION_ERRNOS:
                raise
    while old_size < size:
        old_size += os.write(descriptor, _ZEROS[: size - old_size])


def _map_file(path: Path, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return a tensor whose memory is a file, which has room for it."""
    numel = math.prod(shape)
    return torch.from_file(str(path), shared=True, size=numel, dtype=dtype).reshape(shape)


def _sanitize_name(name: str) -> str:
    """Return a leaf's name as part of a file name; two leaves may get the same."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", name)[:100]


def _select_rows(stored: Tensor, rows: Tensor, is_initialized: Tensor, initial: Tensor) -> Tensor:
    """Return the stored rows of initialized clients, and `initial` for the others."""
    mask = is_initialized.reshape(-1, *(1 for _ in initial.shape)).to(initial.device)
    return torch.where(mask, stored[rows].to(initial.device), initial)
