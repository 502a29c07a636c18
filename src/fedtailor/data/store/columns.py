"""Writing the columns of a store: blocks are buffered, checked, written, and counted by client."""

import math
import re
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import accumulate, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedtailor.data.arguments import require_memory_for_classes
from fedtailor.data.examples import Array
from fedtailor.data.reader_blocks import Block
from fedtailor.data.store.attributes import DatasetAttributes
from fedtailor.data.store.manifest import ArrayFile, ColumnFile, Manifest, Provenance
from fedtailor.errors import InputError, require
from fedtailor.storage.checksums import FileWriter, write_file
from fedtailor.storage.data_folders import translate_write_errors

ProgressCallback = Callable[[int, int], None]
"""Called after every write with the numbers of rows and of bytes of columns written so far."""

Layout = dict[str, tuple[np.dtype[Any], tuple[int, ...]]]
"""The type of each column, and the shape of its rows."""

MAX_NAME_LENGTH = 256
_BUFFER_BYTES = 1 << 23  # bytes of rows that are written together
_BLOCK_BYTES = 1 << 20  # bytes of rows that have one checksum, unless a single row is larger
_NAMES_PER_WRITE = 1 << 14  # clients' names that are written together
_COLUMN_PATTERN = re.compile(r"[a-z][a-z0-9_]*")


@contextmanager
def open_column_writer(
    folder: Path, name: str, attributes: DatasetAttributes, progress: ProgressCallback | None
) -> Iterator["ColumnWriter"]:
    """Yield a writer of columns, whose files are closed at the end of the block, complete or not.

    Args:
        folder: Folder of the store.
        name: Name of the store.
        attributes: Facts about the examples, which these must not contradict.
        progress: Called after every write.
    """
    columns = ColumnWriter(name, folder, attributes, progress)
    try:
        yield columns
    finally:
        columns.close()


class _Violation(NamedTuple):
    """A row that breaks a rule of data sets."""

    rule: str
    row: int  # among those that were checked
    value: str  # what it has, in words


class ColumnWriter:
    """The columns of a store that is being written, and the number of rows of each client.

    There are two sets of buffers: one is written in a thread while the other is filled.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        attributes: DatasetAttributes,
        progress: ProgressCallback | None,
    ) -> None:
        self._name = name
        self._folder = folder
        self._attributes = attributes
        self._progress = progress
        self._client_sizes: dict[str, int] = {}  # in the order of the clients
        self._last_client: str | None = None
        self._layout: Layout = {}
        self._writers: dict[str, FileWriter] = {}
        self._buffers: dict[str, Array] = {}
        self._spare_buffers: dict[str, Array] = {}
        self._capacity = 0  # rows that a buffer holds
        self._num_buffered = 0
        self._num_rows = 0  # that have left the buffers
        self._num_bytes = 0
        self._num_dropped = 0  # examples that the reader left out
        self._server_blocks: list[dict[str, Array]] = []
        self._executor = ThreadPoolExecutor(1)
        self._pending_write: Future[None] | None = None

    def add(self, block: Block) -> None:
        """Copy a block into the buffers, and write these whenever they are full.

        The server's examples are kept in RAM until the end.
        """
        self._num_dropped += block.num_dropped
        client = block.client
        columns = block.columns
        if block.is_server:
            self._server_blocks.append({name: np.array(columns[name]) for name in ("x", "y")})
            return
        if block.num_dropped > 0 and not columns:
            return
        layout = {name: (column.dtype, column.shape[1:]) for name, column in columns.items()}
        if not layout or layout != self._layout:
            self._init_layout(client, columns, layout)
        num_rows = self._check_lengths(client, columns)
        self._count_rows(client, num_rows)
        start = 0
        while start < num_rows:
            end = min(num_rows, start + self._capacity - self._num_buffered)
            num_filled = self._num_buffered + end - start
            for name, buffer in self._buffers.items():
                buffer[self._num_buffered : num_filled] = columns[name][start:end]
            self._num_buffered = num_filled
            start = end
            if num_filled == self._capacity:
                self._flush()

    def finish(self, provenance: Provenance) -> Manifest:
        """Write what is left, and return the manifest when all other files are on the disk.

        `provenance` is only recorded in it.
        """
        require(
            bool(self._client_sizes),
            f"{self._name}: a store must hold examples, but no block came.",
        )
        if self._num_buffered:
            self._flush()
        server_columns = self._join_server_blocks()
        with translate_write_errors(self._name, self._folder.parent):
            self._wait_for_write()
            columns = {
                name: self._finish_column(self._writers[name], name, self._num_rows)
                for name in self._layout
            }
            server_files = {
                name: self._write_server_column(name, column)
                for name, column in server_columns.items()
            }
            offsets = self._write_offsets()
            client_names = self._write_client_names()
        return Manifest(
            name=self._name,
            attributes=self._attributes,
            provenance=provenance,
            clients=len(self._client_sizes),
            rows=self._num_rows,
            dropped_rows=self._num_dropped,
            columns=columns,
            server_columns=server_files,
            offsets=offsets,
            client_names=client_names,
        )

    def close(self) -> None:
        """Close the files, complete or not."""
        self._executor.shutdown()
        for writer in self._writers.values():
            writer.close()

    def _init_layout(self, client: str, columns: dict[str, Array], layout: Layout) -> None:
        """Make files and buffers for the columns of the first block; refuse those of later ones."""
        require(
            not self._layout,
            f"{self._name}: all blocks must have columns {_format_layout(self._layout)}, "
            f"but one of client {client!r} has {_format_layout(layout)}.",
        )
        require(bool(layout), f"{self._name}: blocks must have columns, but the first has none.")
        for name, column in columns.items():
            _require_column(self._name, name, column)
        self._layout = layout
        if "x" in layout:
            self._require_scale(layout["x"][0])
        if "y" in layout:
            self._require_labels(layout["y"][0])
        row_bytes = sum(_count_row_bytes(dtype, shape) for dtype, shape in layout.values())
        self._capacity = max(1, _BUFFER_BYTES // row_bytes)
        self._buffers = self._make_buffers()
        self._spare_buffers = self._make_buffers()
        with translate_write_errors(self._name, self._folder.parent):
            for name in layout:
                self._writers[name] = self._open_file(f"column-{name}.bin", name)

    def _require_scale(self, dtype: np.dtype[Any]) -> None:
        """Refuse a factor for inputs that are not integers, which is that of their conversion."""
        scale = self._attributes.scale
        is_scaled = dtype.kind != "f" and not self._attributes.tokens
        require(
            scale == 1 or is_scaled,
            f"{self._name}: scale is a factor of integer inputs that are not tokens, but x is "
            f"{'tokens' if self._attributes.tokens else dtype}; leave it out, got {scale}.",
        )

    def _require_labels(self, dtype: np.dtype[Any]) -> None:
        """Refuse targets that are not integers if there is a number of classes."""
        classes = self._attributes.classes
        is_counted = classes is not None and not isinstance(classes, str)
        require(
            not is_counted or dtype.kind != "f",
            f"{self._name}: labels must be whole numbers where classes is given, but y is "
            f"{dtype}; leave it out, got {classes}.",
        )

    def _open_file(self, file_name: str, column_name: str) -> FileWriter:
        """Return the writer of a file with rows like those of a column."""
        dtype, shape = self._layout[column_name]
        block_bytes = _count_block_rows(dtype, shape) * _count_row_bytes(dtype, shape)
        return FileWriter(self._folder / file_name, block_bytes)

    def _finish_column(self, writer: FileWriter, column_name: str, num_rows: int) -> ColumnFile:
        dtype, shape = self._layout[column_name]
        return ColumnFile(
            dtype=dtype.str,
            shape=(num_rows, *shape),
            file=writer.finish(),
            block_rows=_count_block_rows(dtype, shape),
            block_sha256=writer.finish_blocks(),
        )

    def _join_server_blocks(self) -> dict[str, Array]:
        """Return the server's columns after checking them; {}: the server has no examples."""
        if not self._server_blocks:
            return {}
        columns = {
            name: np.concatenate([block[name] for block in self._server_blocks])
            for name in ("x", "y")
        }
        lengths = [len(column) for column in columns.values()]
        require(
            lengths[0] == lengths[1] > 0,
            f"{self._name}: the server's x and y must be equally many examples, one or more, got "
            f"{lengths[0]} and {lengths[1]}.",
        )
        for name, column in columns.items():
            dtype, shape = self._layout.get(name, (None, ()))
            require(
                column.dtype == dtype and column.shape[1:] == shape,
                f"{self._name}: the server's {name} must be {dtype} {list(shape)} as the "
                f"clients', got {column.dtype} {list(column.shape[1:])}.",
            )
            violation = self._find_violation(name, column)
            if violation is not None:
                raise InputError(
                    f"{self._name}: {violation.rule}, but example {violation.row} of the server "
                    f"has {violation.value}."
                )
            self._count_classes(name, column)
        return columns

    def _write_server_column(self, name: str, column: Array) -> ColumnFile:
        writer = self._open_file(f"server-{name}.bin", name)
        self._writers[f"server-{name}"] = writer  # so that `close` closes it, too
        writer.add(column)
        return self._finish_column(writer, name, len(column))

    def _make_buffers(self) -> dict[str, Array]:
        return {
            name: np.empty((self._capacity, *shape), dtype)
            for name, (dtype, shape) in self._layout.items()
        }

    def _check_lengths(self, client: str, columns: dict[str, Array]) -> int:
        """Return the number of rows that all columns of a block have."""
        lengths = {len(column) if column.ndim else 0 for column in columns.values()}
        if len(lengths) != 1 or 0 in lengths:
            shapes = ", ".join(
                f"{name} of shape {list(column.shape)}" for name, column in columns.items()
            )
            raise InputError(
                f"{self._name}: a block of client {client!r} must have equally many rows in all "
                f"columns, at least one, got {shapes}."
            )
        return lengths.pop()

    def _count_rows(self, client: str, num_rows: int) -> None:
        if client != self._last_client:
            self._require_new_client(client)
            self._client_sizes[client] = 0
            self._last_client = client
        self._client_sizes[client] += num_rows

    def _require_new_client(self, client: str) -> None:
        is_name = isinstance(client, str) and len(client) <= MAX_NAME_LENGTH and "\0" not in client
        if not is_name or not _has_utf8(client):
            raise InputError(
                f"{self._name}: clients' names must be strings of up to {MAX_NAME_LENGTH} "
                f"characters of UTF-8 without NUL, got {client!r}."
            )
        if client in self._client_sizes:
            raise InputError(
                f"{self._name}: client {client!r} comes back after others; "
                "sort the blocks by client."
            )
        has_unnamed = "" in (client, self._last_client)
        if has_unnamed and self._client_sizes:
            raise InputError(
                f"{self._name}: either every block must name its client or none, but some do."
            )

    def _flush(self) -> None:
        """Start to write the buffers, and swap them with the spare ones, which are written."""
        for name, buffer in self._buffers.items():
            rows = buffer[: self._num_buffered]
            self._require_valid(name, rows)
            self._count_classes(name, rows)
            self._num_bytes += rows.nbytes
        with translate_write_errors(self._name, self._folder.parent):
            self._wait_for_write()
        self._pending_write = self._executor.submit(self._write, self._buffers, self._num_buffered)
        self._buffers, self._spare_buffers = self._spare_buffers, self._buffers
        self._num_rows += self._num_buffered
        self._num_buffered = 0
        if self._progress is not None:
            self._progress(self._num_rows, self._num_bytes)

    def _write(self, buffers: dict[str, Array], num_rows: int) -> None:
        for name, buffer in buffers.items():
            self._writers[name].add(buffer[:num_rows])

    def _wait_for_write(self) -> None:
        """Wait for the last write and raise its error."""
        if self._pending_write is not None:
            self._pending_write.result()

    def _count_classes(self, column_name: str, rows: Array) -> None:
        """Refuse labels that ask for more classes than a model could have, if they are counted."""
        if column_name == "y" and self._attributes.classes == "auto" and rows.dtype.kind in "iu":
            require_memory_for_classes(self._name, int(rows.max(initial=0)) + 1)

    def _require_valid(self, column_name: str, rows: Array) -> None:
        """Refuse rows of the buffers that no data set may have; the error names the first one."""
        violation = self._find_violation(column_name, rows)
        if violation is None:
            return
        row = self._num_rows + violation.row
        ends = accumulate(self._client_sizes.values())
        owner = next(
            client for client, end in zip(self._client_sizes, ends, strict=True) if row < end
        )
        raise InputError(
            f"{self._name}: {violation.rule}, but example {row}, of client {owner!r}, has "
            f"{violation.value}."
        )

    def _find_violation(self, column_name: str, rows: Array) -> "_Violation | None":
        """Return the first of some rows that is not finite, or has a label out of range."""
        if rows.dtype.kind == "f":
            is_valid = np.isfinite(rows)
            rule = f"column {column_name} must be finite"
        elif column_name == "y" and self._attributes.classes is not None:
            is_valid = rows >= 0
            rule = "labels must be whole numbers from 0 on"
            if not isinstance(self._attributes.classes, str):
                is_valid &= rows < self._attributes.classes
                rule = f"labels must be from 0 to {self._attributes.classes - 1}"
        else:
            return None
        is_valid_row = is_valid.reshape(len(rows), -1).all(axis=1)
        if is_valid_row.all():
            return None
        row = int(is_valid_row.argmin())
        value = "a NaN or infinity"
        if rows.dtype.kind != "f":
            value = str(rows[row][~is_valid[row]].flat[0])
        return _Violation(rule, row, value)

    def _write_offsets(self) -> ArrayFile:
        offsets = np.append(0, np.cumsum(list(self._client_sizes.values()), dtype=np.int64))
        file = write_file(self._folder / "offsets.bin", offsets)
        return ArrayFile(offsets.dtype.str, offsets.shape, file)

    def _write_client_names(self) -> ArrayFile:
        longest = max(len(client) for client in self._client_sizes)
        dtype = np.dtype((np.str_, max(1, longest)))
        writer = FileWriter(self._folder / "client_names.bin")
        self._writers["client_names"] = writer  # so that `close` closes it, too
        clients = iter(self._client_sizes)
        while piece := list(islice(clients, _NAMES_PER_WRITE)):
            writer.add(np.array(piece, dtype))
        return ArrayFile(dtype.str, (len(self._client_sizes),), writer.finish())


def _count_row_bytes(dtype: np.dtype[Any], shape: tuple[int, ...]) -> int:
    return dtype.itemsize * math.prod(shape)


def _count_block_rows(dtype: np.dtype[Any], shape: tuple[int, ...]) -> int:
    """Return the number of rows that have one checksum."""
    return max(1, _BLOCK_BYTES // _count_row_bytes(dtype, shape))


def _has_utf8(text: str) -> bool:
    """Return whether a text can be written, unlike parts of names that could not be decoded."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _format_layout(layout: Layout) -> str:
    columns = [f"{name} ({dtype} {list(shape)})" for name, (dtype, shape) in layout.items()]
    return ", ".join(columns) or "none"


def _require_column(name: str, column_name: str, column: Array) -> None:
    """Refuse a column that the store called `name` cannot hold."""
    require(
        bool(_COLUMN_PATTERN.fullmatch(column_name)),
        f"{name}: a column's name must be like 'x' or 'part_2', got {column_name!r}.",
    )
    dtype = column.dtype
    is_number = dtype.kind in "fiub" and dtype.itemsize <= 8 and dtype.isnative
    require(
        is_number,
        f"{name}: column {column_name} must be numbers in this machine's byte order, "
        f"got {dtype.str}.",
    )
    has_numbers = column.ndim > 0 and 0 not in column.shape[1:]
    require(
        has_numbers,
        f"{name}: column {column_name} must have a number or more in each row, "
        f"got shape {list(column.shape)}.",
    )
