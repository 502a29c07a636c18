"""The columns of a store while it is being built: gathered in a buffer, checked, written, and counted by client."""

import math
import re
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import accumulate, islice
from pathlib import Path
from typing import Any

import numpy as np

from fedtailor.data.blocks import Block
from fedtailor.data.holders import Array
from fedtailor.data.store import files
from fedtailor.data.store.files import MadeFrom, Writer
from fedtailor.data.store.manifest import Column, Manifest
from fedtailor.errors import InputError, require

Progress = Callable[[int, int], None]
"""Told, now and then and at the end, how many rows and how many bytes of columns have been written."""

Layout = dict[str, tuple[np.dtype[Any], tuple[int, ...]]]
"""The type and the shape of a row of each column."""

LONGEST_ID = 256
_BUFFER = 1 << 23  # bytes of rows that are written together
_IDS = 1 << 14  # names that are written together
_COLUMN = re.compile(r"[a-z][a-z0-9_]*")


@contextmanager
def columns_in(folder: Path, name: str, progress: Progress | None) -> Iterator["Columns"]:
    """Columns to be filled; their files are let go of whatever happens."""
    columns = Columns(name, folder, progress)
    try:
        yield columns
    finally:
        columns.close()


class Columns:
    """The columns of a store that is being written, and whose their rows are."""

    def __init__(self, name: str, folder: Path, progress: Progress | None) -> None:
        self._name, self._folder, self._progress = name, folder, progress
        self._sizes: dict[str, int] = {}  # of the clients, in their order
        self._last: str | None = None
        self._layout: Layout = {}
        self._writers: dict[str, Writer] = {}
        self._buffers: dict[str, Array] = {}
        self._spare: dict[str, Array] = {}  # what is being written while the others are filled
        self._room = self._filled = self._rows = self._bytes = 0
        self._writing = ThreadPoolExecutor(1)
        self._written: Future[None] | None = None

    def add(self, block: Block) -> None:
        """Takes a block over, and writes what has gathered if that is enough."""
        client, columns = block
        layout = {what: (each.dtype, each.shape[1:]) for what, each in columns.items()}
        if not layout or layout != self._layout:
            self._begin(client, columns, layout)
        count = self._length(client, columns)
        self._count(client, count)
        start = 0
        while start < count:
            end = min(count, start + self._room - self._filled)
            filled = self._filled + end - start
            for what, buffer in self._buffers.items():
                buffer[self._filled : filled] = columns[what][start:end]
            self._filled, start = filled, end
            if filled == self._room:
                self._flush()

    def done(self, attributes: dict[str, Any], made_from: MadeFrom) -> Manifest:
        """Everything on the disk but the manifest, which says so."""
        require(bool(self._sizes), f"{self._name}: a store must hold examples, but no block came.")
        if self._filled:
            self._flush()
        with files.trouble(self._name, self._folder.parent):
            self._wait()
            written = {what: writer.done() for what, writer in self._writers.items()}
            offsets, ids = self._write_offsets(), self._write_ids()
        columns = {
            what: Column(dtype.str, (self._rows, *shape), written[what])
            for what, (dtype, shape) in self._layout.items()
        }
        return Manifest(self._name, attributes, made_from, len(self._sizes), self._rows, columns, offsets, ids)

    def close(self) -> None:
        """Lets go of the files."""
        self._writing.shutdown()
        for writer in self._writers.values():
            writer.close()

    def _begin(self, client: str, columns: dict[str, Array], layout: Layout) -> None:
        """Makes files and buffers for the columns of the first block, and refuses those of any other."""
        same = f"{self._name}: all blocks must have columns {_said(self._layout)}"
        require(not self._layout, f"{same}, but one of client {client!r} has {_said(layout)}.")
        require(bool(layout), f"{self._name}: blocks must have columns, but the first has none.")
        for what, column in columns.items():
            _require_column(self._name, what, column)
        self._layout = layout
        row = sum(dtype.itemsize * math.prod(shape) for dtype, shape in layout.values())
        self._room = max(1, _BUFFER // row)
        self._buffers, self._spare = (
            {what: np.empty((self._room, *shape), dtype) for what, (dtype, shape) in layout.items()} for _ in range(2)
        )
        with files.trouble(self._name, self._folder.parent):
            self._writers = {what: Writer(self._folder / f"column-{what}.bin") for what in columns}

    def _length(self, client: str, columns: dict[str, Array]) -> int:
        lengths = {len(each) if each.ndim else 0 for each in columns.values()}
        if len(lengths) != 1 or 0 in lengths:
            said = ", ".join(f"{what} of shape {list(each.shape)}" for what, each in columns.items())
            whose = f"{self._name}: a block of client {client!r}"
            raise InputError(f"{whose} must have equally many rows in all columns, at least one, got {said}.")
        return lengths.pop()

    def _count(self, client: str, rows: int) -> None:
        if client != self._last:
            self._require_new(client)
            self._sizes[client], self._last = 0, client
        self._sizes[client] += rows

    def _require_new(self, client: str) -> None:
        if not (isinstance(client, str) and len(client) <= LONGEST_ID and "\0" not in client):
            good = f"strings of up to {LONGEST_ID} characters without NUL"
            raise InputError(f"{self._name}: clients' names must be {good}, got {client!r}.")
        if client in self._sizes:
            raise InputError(f"{self._name}: client {client!r} comes back after others; sort the blocks by client.")
        if self._sizes and "" in (client, self._last):
            raise InputError(f"{self._name}: either every block must name its client or none, but some do.")

    def _flush(self) -> None:
        """Has the buffers written, which takes place while others are filled."""
        for what, buffer in self._buffers.items():
            if buffer.dtype.kind == "f":
                self._require_finite(what, buffer[: self._filled])
            self._bytes += buffer[: self._filled].nbytes
        with files.trouble(self._name, self._folder.parent):
            self._wait()
        self._written = self._writing.submit(self._write, self._buffers, self._filled)
        self._buffers, self._spare = self._spare, self._buffers
        self._rows, self._filled = self._rows + self._filled, 0
        if self._progress is not None:
            self._progress(self._rows, self._bytes)

    def _write(self, buffers: dict[str, Array], filled: int) -> None:
        for what, buffer in buffers.items():
            self._writers[what].add(buffer[:filled])

    def _wait(self) -> None:
        if self._written is not None:
            self._written.result()

    def _require_finite(self, what: str, rows: Array) -> None:
        good = np.isfinite(rows).reshape(len(rows), -1).all(axis=1)
        if not good.all():
            row, ends = self._rows + int(good.argmin()), accumulate(self._sizes.values())
            whose = next(client for client, end in zip(self._sizes, ends, strict=True) if row < end)
            held = f"example {row}, of client {whose!r}, has a NaN or infinity"
            raise InputError(f"{self._name}: column {what} must be finite, but {held}.")

    def _write_offsets(self) -> Column:
        offsets = np.append(0, np.cumsum(list(self._sizes.values()), dtype=np.int64))
        return Column(offsets.dtype.str, offsets.shape, files.write(self._folder / "offsets.bin", offsets))

    def _write_ids(self) -> Column:
        kind = np.dtype((np.str_, max(1, max(map(len, self._sizes)))))
        writer, clients = Writer(self._folder / "ids.bin"), iter(self._sizes)
        self._writers["ids"] = writer
        while some := list(islice(clients, _IDS)):
            writer.add(np.array(some, kind))
        return Column(kind.str, (len(self._sizes),), writer.done())


def _said(layout: Layout) -> str:
    return ", ".join(f"{what} ({dtype} {list(shape)})" for what, (dtype, shape) in layout.items()) or "none"


def _require_column(name: str, what: str, column: Array) -> None:
    require(bool(_COLUMN.fullmatch(what)), f"{name}: a column's name must be like 'x' or 'part_2', got {what!r}.")
    kind = column.dtype
    usable = kind.kind in "fiub" and kind.itemsize <= 8 and kind.isnative
    require(usable, f"{name}: column {what} must be numbers in this machine's byte order, got {kind.str}.")
    full = column.ndim > 0 and 0 not in column.shape[1:]
    require(full, f"{name}: column {what} must have a number or more in each row, got shape {list(column.shape)}.")
