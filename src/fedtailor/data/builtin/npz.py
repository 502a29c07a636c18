"""Data sets from `.npz` files with arrays x, y and client, and x_server, y_server if need be."""

import zlib
from pathlib import Path
from typing import Unpack
from zipfile import BadZipFile

import numpy as np

from fedtailor.data.builtin.arrays import ServerData, SplitOptions, from_arrays
from fedtailor.data.dataset import FederatedDataset
from fedtailor.data.examples import Array
from fedtailor.errors import InputError, require

_READ_ERRORS = (
    OSError,
    ValueError,
    BadZipFile,
    zlib.error,
    EOFError,
    AttributeError,
    TypeError,
    RuntimeError,
)
"""What NumPy raises for files that are damaged or not of plain arrays."""


def read_npz(path: str | Path, needed: tuple[str, ...]) -> dict[str, Array]:
    """Return the arrays of a file by name.

    Raise `InputError` if it cannot be read or one of the needed arrays is missing.
    """
    try:
        with Path(path).open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except FileNotFoundError:
        raise InputError(f"There is no file '{path}'.") from None
    except _READ_ERRORS as error:
        lines = str(error).splitlines()
        reason = lines[0] if lines else type(error).__name__
        raise InputError(
            f"'{path}' cannot be read as an .npz file of plain arrays: {reason}"
        ) from None
    has_all = all(name in arrays for name in needed)
    require(
        has_all,
        f"'{path}' must hold arrays {', '.join(needed)}, but has only "
        f"{', '.join(arrays) or 'none'}.",
    )
    return arrays


def from_npz(
    path: str | Path,
    *,
    server: float = 0.0,
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
    server_data: ServerData = server or None
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
