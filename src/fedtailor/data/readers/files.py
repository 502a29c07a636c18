"""What all readers share: opening files that may be foreign, in pieces, and refusing bad ones with a sentence."""

import tarfile
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from fedtailor.data.examples import Array
from fedtailor.data.reader_blocks import Block
from fedtailor.errors import InputError, require

BLOCK_BYTES = 16 << 20
LABEL_DTYPES = (
    np.uint8,
    np.int16,
    np.int32,
    np.int64,
)  # uint16 and uint32 are left out: few torch operations take them


@contextmanager
def translate_read_errors(path: object, kind: str) -> Iterator[None]:
    """Turns whatever goes wrong inside into an InputError that names the file and the kind it should have been.

    Everything is caught because damaged bytes make the libraries that parse them raise nearly any exception.
    """
    try:
        yield
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError(f"There is no file '{path}'.") from None
    except Exception as problem:
        reason = next(iter(str(problem).strip().splitlines()), "") or type(problem).__name__
        raise InputError(f"'{path}' cannot be read as {kind}: {reason.rstrip('.')}.") from problem


def pick_label_dtype(highest: int) -> type[np.integer[Any]]:
    """The smallest integer type for numbers from 0 to `highest`."""
    return next(kind for kind in LABEL_DTYPES if highest <= np.iinfo(kind).max)


def parse_labels(
    path: object, labels: Any, classes: int, lowest: int = 0, what: str = "labels"
) -> Array:
    """Labels, moved so that they start at 0, in the smallest integer type; refused unless whole and in range."""
    column = np.asarray(labels)
    whole = column.ndim == 1 and (column.dtype.kind in "iu" or column.size == 0)
    require(
        whole,
        f"'{path}' must have whole numbers as {what}, one for each example, got {column.dtype}.",
    )
    if column.size:
        low, high = int(column.min()), int(column.max())
        inside = lowest <= low and high < lowest + classes
        span = f"from {lowest} to {lowest + classes - 1}"
        require(inside, f"'{path}' must have {what} {span}, got {low} to {high}.")
    return (column.astype(np.int64) - lowest).astype(pick_label_dtype(classes - 1))


def parse_pixels(path: object, values: Any, shape: tuple[int, ...]) -> Array:
    """Pixels from 0 to 1 as uint8 [n, *shape], rounded; refused unless they are such numbers and as many."""
    numbers = np.asarray(values)
    good = (
        numbers.dtype.kind in "fiu"
        and numbers.ndim > 0
        and numbers.size == len(numbers) * int(np.prod(shape))
    )
    size = " x ".join(map(str, shape))
    require(
        good,
        f"'{path}' must have images of {size} numbers, got {list(numbers.shape)} of {numbers.dtype}.",
    )
    inside = bool(((numbers >= 0) & (numbers <= 1)).all())  # false for NaN too
    require(inside, f"'{path}' must have pixels from 0 to 1, but some are outside or not numbers.")
    return np.rint(numbers.reshape(len(numbers), *shape) * 255.0).astype(np.uint8)


def require_equal_lengths(path: object, owner: str, **columns: Any) -> None:
    """Refuses columns of one client that are not equally long."""
    lengths = {name: len(column) for name, column in columns.items()}
    require(
        len(set(lengths.values())) <= 1,
        f"'{path}' must have equally long columns, but {owner} has {lengths}.",
    )


def add_test_column(columns: dict[str, Array], is_test: bool) -> dict[str, Array]:
    """Columns with one more that says whether all these examples belong to the canonical test part."""
    return columns | {"testing": np.full(len(columns["x"]), is_test)}


def split_into_blocks(client: str, columns: dict[str, Array]) -> Iterator[Block]:
    """The blocks of one client, none of them much larger than BLOCK_BYTES."""
    count = len(columns["x"])
    size = count_block_rows(
        max(1, sum(column.nbytes for column in columns.values()) // max(1, count))
    )
    for start in range(0, count, size):
        yield Block(
            client, {name: column[start : start + size] for name, column in columns.items()}
        )


def count_block_rows(row_bytes: int) -> int:
    """How many rows of that size make a block."""
    return max(1, min(4096, BLOCK_BYTES // row_bytes))


def read_bytes(path: object, file: IO[bytes], count: int) -> bytes:
    """Up to that many bytes of a file of several that are open, so that the right one is named if it is damaged."""
    with translate_read_errors(path, "bytes"):
        return file.read(count)


def read_fixed_rows(
    path: object, file: IO[bytes], row_bytes: int, count: int | None = None
) -> Iterator[Array]:
    """The rest of a file as uint8 [rows, row_bytes], piece by piece: `count` rows if given, and nothing after them."""
    left, size = count, count_block_rows(row_bytes)
    while left is None or left > 0:
        raw = read_bytes(path, file, row_bytes * (size if left is None else min(size, left)))
        rows, rest = divmod(len(raw), row_bytes)
        require(
            rest == 0 and (rows > 0 or left is None),
            f"'{path}' is cut off: it ends within an example.",
        )
        if rows == 0:
            return
        yield np.frombuffer(raw, np.uint8).reshape(rows, row_bytes)
        left = None if left is None else left - rows
    require(
        not read_bytes(path, file, 1), f"'{path}' must end after {count} examples, but has more."
    )


class FileSource:
    """Files by name, from a folder (or one folder below it) or from a tar archive."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        require(self.path.exists(), f"There is no file '{path}'.")
        self.file_paths: dict[str, str] = {}
        with translate_read_errors(self.path, "a folder or a .tar.gz archive"):
            for file_path in self._list_files():
                self.file_paths.setdefault(Path(file_path).name, file_path)

    def _list_files(self) -> Iterable[str]:
        if self.path.is_dir():
            below = [*self.path.glob("*"), *self.path.glob("*/*")]
            return sorted(
                (str(file_path) for file_path in below if file_path.is_file()),
                key=lambda file_path: (file_path.count("/"), file_path),
            )
        with tarfile.open(self.path) as archive:
            names = [member.name for member in archive.getmembers() if member.isfile()]
            while archive.fileobj.read(BLOCK_BYTES):  # up to its end, where the checksum is
                pass
            return names

    def find_first(self, *choices: tuple[str, ...]) -> tuple[str, ...]:
        """The first choice of file names of which all are there, or a sentence that says which would do."""
        for names in choices:
            if set(names) <= set(self.file_paths):
                return names
        would = " or ".join(", ".join(names) for names in choices)
        raise InputError(
            f"'{self.path}' must hold the files {would}, but has {', '.join(sorted(self.file_paths)) or 'none'}."
        )

    def get_display_path(self, name: str) -> str:
        """What to call a file of this source in a message."""
        return self.file_paths[name] if self.path.is_dir() else f"{self.path}:{name}"

    @contextmanager
    def open(self, name: str, kind: str) -> Iterator[IO[bytes]]:
        """One of the files, opened for reading, with `reading` around it."""
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
