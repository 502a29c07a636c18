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

from fedtailor.data.examples import Array
from fedtailor.data.reader_blocks import Block
from fedtailor.data.store.manifest import ColumnFile, Manifest, Provenance
from fedtailor.errors import InputError, require
from fedtailor.storage.checksums import FileWriter, write_file
from fedtailor.storage.data_folders import translate_write_errors

ProgressCallback = Callable[[int, int], None]
"""Told, now and then and at the end, how many rows and how many bytes of columns have been written."""

Layout = dict[str, tuple[np.dtype[Any], tuple[int, ...]]]
"""The type and the shape of a row of each column."""

MAX_ID_LENGTH = 256
_BUFFER_BYTES = 1 << 23  # bytes of rows that are written together
_IDS_PER_WRITE = 1 << 14  # names that are written together
_COLUMN_PATTERN = re.compile(r"[a-z][a-z0-9_]*")


@contextmanager
def open_column_writer(
    folder: Path, name: str, progress: ProgressCallback | None
) -> Iterator["ColumnWriter"]:
    """Columns to be filled; their files are let go of whatever happens."""
    columns = ColumnWriter(name, folder, progress)
    try:
        yield columns
    finally:
        columns.close()


class ColumnWriter:
    """The columns of a store that is being written, and whose their rows are."""

    def __init__(self, name: str, folder: Path, progress: ProgressCallback | None) -> None:
        self._name, self._folder, self._progress = name, folder, progress
        self._client_sizes: dict[str, int] = {}  # of the clients, in their order
        self._last_client: str | None = None
        self._layout: Layout = {}
        self._writers: dict[str, FileWriter] = {}
        self._buffers: dict[str, Array] = {}
        self._spare_buffers: dict[
            str, Array
        ] = {}  # what is being written while the others are filled
        self._capacity = self._num_buffered = self._num_rows = self._num_bytes = 0
        self._executor = ThreadPoolExecutor(1)
        self._pending_write: Future[None] | None = None

    def add(self, block: Block) -> None:
        """Takes a block over, and writes what has gathered if that is enough."""
        client, columns = block
        layout = {what: (each.dtype, each.shape[1:]) for what, each in columns.items()}
        if not layout or layout != self._layout:
            self._init_layout(client, columns, layout)
        count = self._check_lengths(client, columns)
        self._count_rows(client, count)
        start = 0
        while start < count:
            end = min(count, start + self._capacity - self._num_buffered)
            filled = self._num_buffered + end - start
            for what, buffer in self._buffers.items():
                buffer[self._num_buffered : filled] = columns[what][start:end]
            self._num_buffered, start = filled, end
            if filled == self._capacity:
                self._flush()

    def finish(self, attributes: dict[str, Any], made_from: Provenance) -> Manifest:
        """Everything on the disk but the manifest, which says so."""
        require(
            bool(self._client_sizes),
            f"{self._name}: a store must hold examples, but no block came.",
        )
        if self._num_buffered:
            self._flush()
        with translate_write_errors(self._name, self._folder.parent):
            self._wait()
            written = {what: writer.finish() for what, writer in self._writers.items()}
            offsets, ids = self._write_offsets(), self._write_ids()
        columns = {
            what: ColumnFile(dtype.str, (self._num_rows, *shape), written[what])
            for what, (dtype, shape) in self._layout.items()
        }
        return Manifest(
            self._name,
            attributes,
            made_from,
            len(self._client_sizes),
            self._num_rows,
            columns,
            offsets,
            ids,
        )

    def close(self) -> None:
        """Lets go of the files."""
        self._executor.shutdown()
        for writer in self._writers.values():
            writer.close()

    def _init_layout(self, client: str, columns: dict[str, Array], layout: Layout) -> None:
        """Makes files and buffers for the columns of the first block, and refuses those of any other."""
        same = f"{self._name}: all blocks must have columns {_format_layout(self._layout)}"
        require(
            not self._layout, f"{same}, but one of client {client!r} has {_format_layout(layout)}."
        )
        require(bool(layout), f"{self._name}: blocks must have columns, but the first has none.")
        for what, column in columns.items():
            _require_column(self._name, what, column)
        self._layout = layout
        row = sum(dtype.itemsize * math.prod(shape) for dtype, shape in layout.values())
        self._capacity = max(1, _BUFFER_BYTES // row)
        self._buffers, self._spare_buffers = (
            {
                what: np.empty((self._capacity, *shape), dtype)
                for what, (dtype, shape) in layout.items()
            }
            for _ in range(2)
        )
        with translate_write_errors(self._name, self._folder.parent):
            self._writers = {
                what: FileWriter(self._folder / f"column-{what}.bin") for what in columns
            }

    def _check_lengths(self, client: str, columns: dict[str, Array]) -> int:
        lengths = {len(each) if each.ndim else 0 for each in columns.values()}
        if len(lengths) != 1 or 0 in lengths:
            said = ", ".join(
                f"{what} of shape {list(each.shape)}" for what, each in columns.items()
            )
            prefix = f"{self._name}: a block of client {client!r}"
            raise InputError(
                f"{prefix} must have equally many rows in all columns, at least one, got {said}."
            )
        return lengths.pop()

    def _count_rows(self, client: str, rows: int) -> None:
        if client != self._last_client:
            self._require_new_client(client)
            self._client_sizes[client], self._last_client = 0, client
        self._client_sizes[client] += rows

    def _require_new_client(self, client: str) -> None:
        if not (isinstance(client, str) and len(client) <= MAX_ID_LENGTH and "\0" not in client):
            good = f"strings of up to {MAX_ID_LENGTH} characters without NUL"
            raise InputError(f"{self._name}: clients' names must be {good}, got {client!r}.")
        if client in self._client_sizes:
            raise InputError(
                f"{self._name}: client {client!r} comes back after others; sort the blocks by client."
            )
        if self._client_sizes and "" in (client, self._last_client):
            raise InputError(
                f"{self._name}: either every block must name its client or none, but some do."
            )

    def _flush(self) -> None:
        """Has the buffers written, which takes place while others are filled."""
        for what, buffer in self._buffers.items():
            if buffer.dtype.kind == "f":
                self._require_finite(what, buffer[: self._num_buffered])
            self._num_bytes += buffer[: self._num_buffered].nbytes
        with translate_write_errors(self._name, self._folder.parent):
            self._wait()
        self._pending_write = self._executor.submit(self._write, self._buffers, self._num_buffered)
        self._buffers, self._spare_buffers = self._spare_buffers, self._buffers
        self._num_rows, self._num_buffered = self._num_rows + self._num_buffered, 0
        if self._progress is not None:
            self._progress(self._num_rows, self._num_bytes)

    def _write(self, buffers: dict[str, Array], filled: int) -> None:
        for what, buffer in buffers.items():
            self._writers[what].add(buffer[:filled])

    def _wait(self) -> None:
        if self._pending_write is not None:
            self._pending_write.result()

    def _require_finite(self, column_name: str, rows: Array) -> None:
        good = np.isfinite(rows).reshape(len(rows), -1).all(axis=1)
        if not good.all():
            row, ends = self._num_rows + int(good.argmin()), accumulate(self._client_sizes.values())
            owner = next(
                client for client, end in zip(self._client_sizes, ends, strict=True) if row < end
            )
            held = f"example {row}, of client {owner!r}, has a NaN or infinity"
            raise InputError(f"{self._name}: column {column_name} must be finite, but {held}.")

    def _write_offsets(self) -> ColumnFile:
        offsets = np.append(0, np.cumsum(list(self._client_sizes.values()), dtype=np.int64))
        return ColumnFile(
            offsets.dtype.str, offsets.shape, write_file(self._folder / "offsets.bin", offsets)
        )

    def _write_ids(self) -> ColumnFile:
        kind = np.dtype((np.str_, max(1, max(map(len, self._client_sizes)))))
        writer, clients = FileWriter(self._folder / "ids.bin"), iter(self._client_sizes)
        self._writers["ids"] = writer
        while some := list(islice(clients, _IDS_PER_WRITE)):
            writer.add(np.array(some, kind))
        return ColumnFile(kind.str, (len(self._client_sizes),), writer.finish())


def _format_layout(layout: Layout) -> str:
    return (
        ", ".join(f"{what} ({dtype} {list(shape)})" for what, (dtype, shape) in layout.items())
        or "none"
    )


def _require_column(name: str, column_name: str, column: Array) -> None:
    require(
        bool(_COLUMN_PATTERN.fullmatch(column_name)),
        f"{name}: a column's name must be like 'x' or 'part_2', got {column_name!r}.",
    )
    kind = column.dtype
    usable = kind.kind in "fiub" and kind.itemsize <= 8 and kind.isnative
    require(
        usable,
        f"{name}: column {column_name} must be numbers in this machine's byte order, got {kind.str}.",
    )
    full = column.ndim > 0 and 0 not in column.shape[1:]
    require(
        full,
        f"{name}: column {column_name} must have a number or more in each row, got shape {list(column.shape)}.",
    )
