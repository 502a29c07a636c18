"""Your own data in an `.npz` file: arrays `x`, `y`, `client`, and `x_server`, `y_server` if the server has its own."""

import zlib
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from fedtailor.data.builtin.arrays import ServerData, from_arrays
from fedtailor.data.dataset import FederatedDataset
from fedtailor.data.examples import Array
from fedtailor.errors import InputError, require


def read_npz(path: str | Path, needed: tuple[str, ...]) -> dict[str, Array]:
    """The arrays of a file, refused with a sentence if it cannot be read or one of the needed arrays is missing."""
    try:
        with Path(path).open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except FileNotFoundError:
        raise InputError(f"There is no file '{path}'.") from None
    except (
        OSError,
        ValueError,
        BadZipFile,
        zlib.error,
        EOFError,
        AttributeError,
        TypeError,
        RuntimeError,
    ) as problem:
        reason = next(iter(str(problem).splitlines()), type(problem).__name__)
        raise InputError(
            f"'{path}' cannot be read as an .npz file of plain arrays: {reason}"
        ) from None
    missing = [name for name in needed if name not in arrays]
    require(
        not missing,
        f"'{path}' must hold arrays {', '.join(needed)}, but has only {', '.join(arrays) or 'none'}.",
    )
    return arrays


def from_npz(
    path: str | Path,
    *,
    test_share: float = 0.25,
    validation_clients: float = 0.1,
    unseen_clients: float = 0.2,
    adapt: str | float = "train",
    support: float = 0.2,
    server: float = 0.0,
    classes: int | None = None,
    seed: int = 0,
    scale: float = 1.0,
    tokens: bool = False,
    overlap: str = "",
) -> FederatedDataset:
    """A dataset from a file with `x`, `y` and `client`, one entry per example.

    The server has `x_server` and `y_server` if the file holds them, else a share (or count) `server` of the clients'
    examples. `classes` None: counted from integer labels; floating labels are numbers to be predicted.
    """
    arrays = read_npz(path, ("x", "y", "client"))
    server_data: ServerData = server or None
    if "x_server" in arrays or "y_server" in arrays:
        server_data = tuple(
            read_npz(path, ("x_server", "y_server"))[name] for name in ("x_server", "y_server")
        )  # type: ignore[assignment]
    return from_arrays(
        arrays["x"],
        arrays["y"],
        arrays["client"],
        name=Path(path).stem,
        classes="auto" if classes is None else classes,
        test_share=test_share,
        validation_clients=validation_clients,
        unseen_clients=unseen_clients,
        adapt=adapt,
        support=support,
        server=server_data,
        seed=seed,
        scale=scale,
        tokens=tokens,
        overlap=overlap,
    )
