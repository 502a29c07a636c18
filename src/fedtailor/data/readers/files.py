"""What readers share: opening files, reading them in pieces, checking and converting columns.

Whatever is wrong with a file becomes an InputError of one sentence that names the file.
"""

import tarfile
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO, Any, Self

import numpy as np

from fedtailor.data.examples import Array
from fedtailor.data.reader_blocks import Block
from fedtailor.errors import InputError, require, summarize_error

BLOCK_BYTES = 16 << 20
"""Largest size of a block, unless a single row is larger."""

MAX_BLOCK_ROWS = 4096

# uint16 and uint32 are left out: few torch operations take them.
LABEL_DTYPES = (np.uint8, np.int16, np.int32, np.int64)


@contextmanager
def translate_read_errors(path: object, kind: str) -> Iterator[None]:
    """Turn errors of the block into an InputError that names the file and the kind it should be.

    Everything is caught because parsers raise nearly any exception at damaged bytes.
    """
    try:
        yield
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError(f"There is no file '{path}'.") from None
    except Exception as problem:
        reason = summarize_error(problem, has_type=False)
        raise InputError(f"'{path}' cannot be read as {kind}: {reason}.") from problem


def is_present(path: Path) -> bool:
    """Return whether there is a file or folder; names that no disk can hold are of none."""
    try:
        return path.exists()
    except OSError:
        return False


def format_location(path: object, client: str) -> str:
    """Return "PATH' of 'CLIENT", which reads 'PATH' of 'CLIENT' in the quotes of a message."""
    return f"{path}' of '{client}"


def pick_label_dtype(highest: int) -> type[np.integer[Any]]:
    """Return the smallest of `LABEL_DTYPES` that holds the integers from 0 to `highest`."""
    return next(dtype for dtype in LABEL_DTYPES if highest <= np.iinfo(dtype).max)


def parse_labels(
    path: object, labels: Any, classes: int, lowest: int = 0, noun: str = "labels"
) -> Array:
    """Check labels and shift them to start at 0.

    Args:
        path: File that the error names.
        labels: List or array [n] of integers from `lowest` to `lowest + classes - 1`.
        classes: Number of classes.
        lowest: Label of the first class in the file.
        noun: What the error calls the labels.

    Returns:
        Labels [n] from 0 to `classes - 1`, in the smallest integer type that holds them.
    """
    column = np.asarray(labels)
    is_integer = column.dtype.kind in "iu" or column.size == 0  # NumPy makes [] floating
    require(
        column.ndim == 1 and is_integer,
        f"'{path}' must have whole numbers as {noun}, one for each example, got {column.dtype}.",
    )
    if column.size > 0:
        highest = lowest + classes - 1
        low = int(column.min())
        high = int(column.max())
        require(
            lowest <= low and high <= highest,
            f"'{path}' must have {noun} from {lowest} to {highest}, got {low} to {high}.",
        )
    return (column.astype(np.int64) - lowest).astype(pick_label_dtype(classes - 1))


def parse_pixels(path: object, values: Any, shape: tuple[int, ...]) -> Array:
    """Check pixels from 0 to 1 and round them to bytes.

    Args:
        path: File that the error names.
        values: Numbers [n, ...], those of an image in any shape.
        shape: Shape of an image.

    Returns:
        Pixels from 0 to 255, uint8 [n, *shape].
    """
    numbers = np.asarray(values)
    image_size = int(np.prod(shape))
    is_numeric = numbers.dtype.kind in "fiu" and numbers.ndim > 0
    size_text = " x ".join(map(str, shape))
    require(
        is_numeric and numbers.size == len(numbers) * image_size,
        f"'{path}' must have images of {size_text} numbers, "
        f"got {list(numbers.shape)} of {numbers.dtype}.",
    )
    is_inside = (numbers >= 0) & (numbers <= 1)  # false for NaN too
    require(
        bool(is_inside.all()),
        f"'{path}' must have pixels from 0 to 1, but some are outside or not numbers.",
    )
    return np.rint(numbers.reshape(len(numbers), *shape) * 255.0).astype(np.uint8)


def require_equal_lengths(path: object, owner: str, **columns: Any) -> None:
    """Refuse columns that differ in length.

    Args:
        path: File that the error names.
        owner: What the error says has the columns.
        columns: Columns by their names in the error.
    """
    lengths = {name: len(column) for name, column in columns.items()}
    require(
        len(set(lengths.values())) <= 1,
        f"'{path}' must have equally long columns, but {owner} has {lengths}.",
    )


def add_test_column(columns: dict[str, Array], is_test: bool) -> dict[str, Array]:
    """Return the columns and "is_test": whether the examples belong to the canonical test part."""
    return columns | {"is_test": np.full(len(columns["x"]), is_test)}


def split_into_blocks(client: str, columns: dict[str, Array]) -> Iterator[Block]:
    """Yield a client's columns in blocks of at most about `BLOCK_BYTES`, which are views."""
    num_rows = len(columns["x"])
    num_bytes = sum(column.nbytes for column in columns.values())
    row_bytes = max(1, num_bytes // max(1, num_rows))
    block_rows = count_block_rows(row_bytes)
    for start in range(0, num_rows, block_rows):
        end = start + block_rows
        yield Block(client, {name: column[start:end] for name, column in columns.items()})


def count_block_rows(row_bytes: int) -> int:
    """Return the number of rows of `row_bytes` bytes that a block holds, at least 1."""
    return max(1, min(MAX_BLOCK_ROWS, BLOCK_BYTES // row_bytes))


def read_bytes(path: object, file: IO[bytes], count: int) -> bytes:
    """Read up to `count` bytes of a file; an error names this file.

    Readers that have several files open call it, so that the damaged one of them is named.

    Args:
        path: What the error calls the file.
        file: The file, opened and positioned.
        count: Number of bytes; fewer are returned at the end of the file.
    """
    with translate_read_errors(path, "bytes"):
        return file.read(count)


def read_fixed_rows(
    path: object, file: IO[bytes], row_bytes: int, count: int | None = None
) -> Iterator[Array]:
    """Yield the rest of a file piece by piece as uint8 [rows, row_bytes].

    Args:
        path: What errors call the file.
        file: The file, opened and positioned at its first row.
        row_bytes: Bytes of a row.
        count: Number of rows after which the file must end; None: any number.
    """
    block_rows = count_block_rows(row_bytes)
    num_read = 0
    while count is None or num_read < count:
        max_rows = block_rows if count is None else min(block_rows, count - num_read)
        content = read_bytes(path, file, max_rows * row_bytes)
        if count is None and not content:
            return
        is_whole = len(content) > 0 and len(content) % row_bytes == 0
        require(is_whole, f"'{path}' is cut off: it ends within an example.")
        rows = np.frombuffer(content, np.uint8).reshape(-1, row_bytes)
        yield rows
        num_read += len(rows)
    has_more = bool(read_bytes(path, file, 1))
    require(not has_more, f"'{path}' must end after {count} examples, but has more.")


class _StrictTarInfo(tarfile.TarInfo):
    """A header of a tar archive; a damaged one is an error and not the end of the archive."""

    @classmethod
    def fromtarfile(cls, archive: tarfile.TarFile) -> Self:
        """Return the next header of an archive."""
        try:
            return super().fromtarfile(archive)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]  # missing in its stubs
            raise
        except tarfile.HeaderError as problem:
            raise tarfile.ReadError(f"it is cut off or damaged ({problem})") from None


@contextmanager
def open_tar(path: str | Path) -> Iterator[tarfile.TarFile]:
    """Yield a tar archive, and read it to its end after the block.

    The rest of the file is checked then: it must be zeros, and have the checksum of its
    compression. A plain tar has no checksum but those of its headers.
    """
    with tarfile.open(path, tarinfo=_StrictTarInfo) as archive:
        yield archive
        archive.getmembers()
        rest = archive.fileobj
        assert rest is not None  # it is open
        while content := rest.read(BLOCK_BYTES):
            if content.count(0) < len(content):
                raise tarfile.ReadError("there is more after its end")


class FileSource:
    """Files by name, from a folder (or one folder below it) or from a tar archive."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        require(self.path.exists(), f"There is no file '{path}'.")
        self.file_paths: dict[str, str] = {}
        with translate_read_errors(self.path, "a folder or a .tar.gz archive"):
            for file_path in self._list_files():
                self.file_paths.setdefault(Path(file_path).name, file_path)

    def find_first(self, *choices: tuple[str, ...]) -> tuple[str, ...]:
        """Return the first choice of file names that are all there, or refuse the source."""
        for names in choices:
            if set(names) <= set(self.file_paths):
                return names
        expected = " or ".join(", ".join(names) for names in choices)
        present = ", ".join(sorted(self.file_paths)) or "none"
        raise InputError(f"'{self.path}' must hold the files {expected}, but has {present}.")

    def get_display_path(self, name: str) -> str:
        """Return what messages call a file: its path, or ARCHIVE:NAME."""
        return self.file_paths[name] if self.path.is_dir() else f"{self.path}:{name}"

    @contextmanager
    def open(self, name: str, kind: str) -> Iterator[IO[bytes]]:
        """Yield one of the files, opened, with `translate_read_errors` around the block."""
        with translate_read_errors(self.get_display_path(name), kind):
            if self.path.is_dir():
                with Path(self.file_paths[name]).open("rb") as file:
                    yield file
                return
            with tarfile.open(self.path) as archive:
                member = archive.extractfile(self.file_paths[name])
                assert member is not None  # only plain files are listed
                with closing(member):
                    yield member

    def _list_files(self) -> Iterable[str]:
        """Return the paths of all files; among equal names, the one to be used comes first."""
        if self.path.is_dir():
            entries = [*self.path.glob("*"), *self.path.glob("*/*")]
            file_paths = [str(entry) for entry in entries if entry.is_file()]
            return sorted(file_paths, key=lambda file_path: (file_path.count("/"), file_path))
        with open_tar(self.path) as archive:
            return [member.name for member in archive if member.isfile()]
