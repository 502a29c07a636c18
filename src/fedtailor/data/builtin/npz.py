"""Data sets from `.npz` files with arrays x, y and client, and x_server, y_server if need be."""

from pathlib import Path
from typing import Unpack
from zipfile import ZipFile, ZipInfo

import numpy as np
from numpy.lib.format import read_array

from fedtailor.data.builtin.arrays import ServerData, SplitOptions, from_arrays
from fedtailor.data.dataset import FederatedDataset
from fedtailor.data.examples import Array
from fedtailor.errors import InputError, require


def read_npz(path: str | Path, needed: tuple[str, ...]) -> dict[str, Array]:
    """Return the arrays of a file by name.

    Raise `InputError` if it cannot be read or one of the needed arrays is missing.
    """
    try:
        with ZipFile(path) as archive:
            arrays = {
                info.filename.removesuffix(".npy"): _read_array(archive, info)
                for info in archive.infolist()
                if info.filename.endswith(".npy")
            }
    except FileNotFoundError:
        raise InputError(f"There is no file '{path}'.") from None
    except Exception as error:  # parsers raise nearly any exception at damaged bytes
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
    server: float = 0.0,
    classes: int | None = None,
    seed: int = 0,
    scale: float = 1.0,
    tokens: bool = False,
    overlap: str = "",
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
        overlap: Reason why server data may overlap clients'; "": it must not, which is checked.
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
