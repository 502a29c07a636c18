"""What `fedtailor data add` and `fedtailor data remove` do, with messages for the user."""

from pathlib import Path
from typing import NamedTuple

from fedtailor.data.sources import CATALOG, add, add_custom, list_installed, read_custom_blocks
from fedtailor.data.sources.download import DownloadCallback
from fedtailor.data.store import DatasetAttributes, StoredDataset, remove
from fedtailor.data.store.columns import ProgressCallback
from fedtailor.errors import InputError, require, suggest_name


class OwnDataOptions(NamedTuple):
    """Options for reading the user's own data, None by default; known data sets have none."""

    x: str | None = None
    y: str | None = None
    client: str | None = None
    classes: int | None = None
    scale: float | None = None


def add_dataset(
    name: str,
    source: Path | None,
    options: OwnDataOptions,
    on_progress: ProgressCallback,
    on_download: DownloadCallback,
    replace: bool = False,
) -> str:
    """Add a data set, and return a line on its sizes and folder.

    Args:
        name: A name in the catalog, or a new one for data of the user's own.
        source: Local files; None downloads a data set of the catalog.
        options: How data of the user's own is read; must be empty for the catalog.
        on_progress: Called while the store is written.
        on_download: Called while files are downloaded.
        replace: Whether it may take the place of one of this name.
    """
    if name in CATALOG:
        given_flags = [f"--{key}" for key, value in options._asdict().items() if value is not None]
        require(
            not given_flags,
            f"{name}: {', '.join(given_flags)} is for data of your own, but this data set is "
            "known; leave it out.",
        )
        dataset = add(name, source, on_progress, on_download, replace)
    else:
        dataset = _add_own_dataset(name, source, options, on_progress, replace)
    # Examples without a client column are stored as one client without a name.
    has_clients = dataset.num_clients > 1 or str(dataset.client_names[0]) != ""
    clients = f" of {dataset.num_clients:,} clients" if has_clients else ""
    num_server_rows = len(dataset.server_columns["x"]) if dataset.server_columns else 0
    num_read = dataset.num_rows + num_server_rows + dataset.num_dropped
    sizes = [f"{num_read:,} examples read", f"{dataset.num_rows:,}{clients} stored"]
    if num_server_rows:
        sizes.append(f"{num_server_rows:,} of the server's own stored")
    if dataset.num_dropped:
        sizes.append(f"{dataset.num_dropped:,} left out, which came twice")
    return f"{name}: {', '.join(sizes)} in {dataset.folder}"


def _add_own_dataset(
    name: str,
    source: Path | None,
    options: OwnDataOptions,
    on_progress: ProgressCallback,
    replace: bool,
) -> StoredDataset:
    if source is None:
        raise InputError(
            f"There is no data set '{name}'; {suggest_name(name, CATALOG)} "
            "Your own data needs --from PATH."
        )
    columns = (options.x or "x").split(",")
    blocks = read_custom_blocks(source, columns, options.y or "y", options.client or "client")
    scale = options.scale
    if scale is None:
        is_image_folder = source.is_dir() and not any(source.glob("*/x.npy"))
        scale = 1 / 255 if is_image_folder else 1.0  # pixels from 0 to 1
    attributes = DatasetAttributes(
        classes="auto" if options.classes is None else options.classes,
        scale=scale,
        about=f"your own, from {_decode_name(source)}",
    )
    return add_custom(name, blocks, attributes, on_progress, replace)


def _decode_name(path: Path) -> str:
    """Return the name of a file, with a question mark for each byte that is not of UTF-8."""
    return path.name.encode(errors="replace").decode()


def remove_dataset(name: str) -> str:
    """Remove a data set that has been added, and return a sentence that says so."""
    installed_names = list_installed()
    hint = "no data set has."
    if installed_names:
        hint = suggest_name(name, installed_names)
    require(name in installed_names, f"'{name}' has not been added; {hint}")
    remove(name)
    return f"{name}: removed"
