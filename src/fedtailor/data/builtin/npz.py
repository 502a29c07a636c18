"""Data sets from `.npz` files with arrays x, y and client, and x_server, y_server if need be."""

from math import prod
from pathlib import Path
from typing import BinaryIO, Unpack
from zipfile import ZipFile, ZipInfo, is_zipfile

import numpy as np
from numpy.lib.format import read_array

from fedtailor.data.builtin.arrays import ServerData, SplitOptions, from_arrays
from fedtailor.data.dataset import FederatedDataset
from fedtailor.data.examples import Array
from fedtailor.errors import InputError, is_number, require, summarize_error
from fedtailor.storage.memory import require_memory

NPY_MAGIC = b"\x93NUMPY"
"""First bytes of an array in a file."""


def read_npz(path: str | Path, needed: tuple[str, ...]) -> dict[str, Array]:
    """Return the arrays of a file by name; Python objects in it are never loaded.

    Raise `InputError` if it cannot be read, would not fit into memory, or lacks a needed array.
    """
    try:
        with Path(path).open("rb") as file:
            arrays = _read_arrays(path, file)
    except FileNotFoundError:
        raise InputError(f"There is no file '{path}'.") from None
    except InputError:
        raise
    # Damaged headers and compressed bytes raise errors of many types in NumPy and zipfile.
    except Exception as error:
        reason = summarize_error(error)
        if isinstance(error, OSError) and error.strerror:
            reason = error.strerror
        raise InputError(
            f"'{path}' cannot be read as an .npz file of plain arrays: {reason}."
        ) from None
    has_all = all(name in arrays for name in needed)
    require(
        has_all,
        f"'{path}' must hold arrays {', '.join(needed)}, but has only "
        f"{', '.join(arrays) or 'none'}.",
    )
    return arrays


def _read_arrays(path: str | Path, file: BinaryIO) -> dict[str, Array]:
    """Return the arrays of an open file by name."""
    require(
        is_zipfile(file),
        f"'{path}' cannot be read as an .npz file of plain arrays: it is no zip archive.",
    )
    file.seek(0)
    with ZipFile(file) as archive:
        members = [member for member in archive.infolist() if _is_array(archive, member)]
        for member in members:
            _check_member(path, archive, member)
        return {
            member.filename.removesuffix(".npy"): _read_array(archive, member) for member in members
        }


def _is_array(archive: ZipFile, member: ZipInfo) -> bool:
    with archive.open(member) as content:
        return content.read(len(NPY_MAGIC)) == NPY_MAGIC


def _check_member(path: str | Path, archive: ZipFile, member: ZipInfo) -> None:
    """Raise `InputError` for an array of Python objects, or one that memory cannot hold.

    Args:
        path: File that errors name.
        archive: The file, opened.
        member: One of its arrays.
    """
    name = member.filename.removesuffix(".npy")
    with archive.open(member) as content:
        version = np.lib.format.read_magic(content)
        if version == (1, 0):
            shape, _, dtype = np.lib.format.read_array_header_1_0(content)
        elif version == (2, 0):
            shape, _, dtype = np.lib.format.read_array_header_2_0(content)
        else:
            raise InputError(f"'{path}' must hold arrays of numbers, but '{name}' is of records.")
    require(
        not dtype.hasobject,
        f"'{path}' cannot be read as an .npz file of plain arrays: '{name}' is of Python objects, "
        "which are never loaded.",
    )
    num_bytes = prod(shape) * dtype.itemsize
    require_memory(f"'{path}': array '{name}' of shape {list(shape)}", num_bytes, "make it smaller")
    require(
        min(shape, default=0) >= 0 and num_bytes <= member.file_size,
        f"'{path}' is damaged: array '{name}' of shape {list(shape)} needs {num_bytes} bytes, but "
        f"the file has {member.file_size}.",
    )


def _read_array(archive: ZipFile, info: ZipInfo) -> Array:
    """Return an array of an .npz file, which is read to its end, where its checksum is checked."""
    with archive.open(info) as member:
        array = read_array(member, allow_pickle=False)
        if member.read(1):
            raise ValueError(f"there is more in {info.filename} than an array")
    return np.asarray(array)


def from_npz(
    path: str | Path,
    *,
    server: float | None = 0.0,
    classes: int | None = None,
    seed: int = 0,
    scale: float = 1.0,
    tokens: bool = False,
    overlap: bool = False,
    **split_options: Unpack[SplitOptions],
) -> FederatedDataset:
    """Read a dataset from a file with arrays `x`, `y` and `client`, one entry per example.

    The dataset is named after the file.

    Args:
        path: File with the arrays; if it has `x_server` and `y_server` too, they are the server's.
        server: Share (float) or number (int) of the clients' examples that the server takes;
            without effect if the file has the server's own.
        classes: Number of classes; None: the largest label plus 1 for integer y, and real-valued
            targets for floating y.
        seed: Seed of everything random.
        scale: Factor of integer x when it is converted to floating point.
        tokens: Whether x is token ids, which stay integers.
        overlap: Whether clients may have the server's examples, too, as for `from_arrays`.
        split_options: test_share, validation_clients, unseen_clients, adapt and support, as for
            `from_arrays`.
    """
    arrays = read_npz(path, ("x", "y", "client"))
    is_none = server is None or (is_number(server) and server == 0)
    server_data: ServerData = None if is_none else server
    if "x_server" in arrays or "y_server" in arrays:
        server_arrays = read_npz(path, ("x_server", "y_server"))
        server_data = (server_arrays["x_server"], server_arrays["y_server"])
    return from_arrays(
        arrays["x"],
        arrays["y"],
        arrays["client"],
        name=Path(path).stem,
        classes="auto" if classes is None else classes,
        server=server_data,
        seed=seed,
        scale=scale,
        tokens=tokens,
        overlap=overlap,
        **split_options,
    )
