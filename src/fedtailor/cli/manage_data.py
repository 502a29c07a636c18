"""Data sets put on this machine, or taken away: known ones by name, one's own from a file or folder."""

from pathlib import Path
from typing import Any

from fedtailor.data.sources import CATALOG, add, add_custom, list_installed, read_custom_blocks
from fedtailor.data.sources.download import DownloadCallback
from fedtailor.data.store import remove
from fedtailor.data.store.columns import ProgressCallback
from fedtailor.errors import InputError, require, suggest_name


def add_dataset(
    name: str,
    source: Path | None,
    on_progress: ProgressCallback,
    on_download: DownloadCallback,
    **read_options: Any,
) -> str:
    """Adds a data set, and says what and where it is; `own` says how the user's own is to be read."""
    if name in CATALOG:
        unused_options = [f"--{key}" for key, value in read_options.items() if value is not None]
        require(
            not unused_options,
            f"{name}: {', '.join(unused_options)} is for data of your own, and this set is known; leave it out.",
        )
        dataset = add(name, source, on_progress, on_download)
    else:
        dataset = _add_own_dataset(name, source, on_progress, **read_options)
    clients_text = (
        f" of {dataset.num_clients:,} clients"
        if str(dataset.client_names[0]) or dataset.num_clients > 1
        else ""
    )
    return f"{name}: {dataset.num_rows:,} examples{clients_text} in {dataset.folder}"


def _add_own_dataset(
    name: str,
    source: Path | None,
    on_progress: ProgressCallback,
    x: str | None,
    y: str | None,
    client: str | None,
    classes: int | None,
    scale: float | None,
) -> Any:
    """Data of the user's own; images of a folder are scaled to numbers from 0 to 1."""
    if source is None:
        raise InputError(
            f"There is no data set '{name}'; {suggest_name(name, CATALOG)} Your own data needs --from PATH."
        )
    is_image_folder = source.is_dir() and not any(source.glob("*/x.npy"))
    return add_custom(
        name,
        read_custom_blocks(source, (x or "x").split(","), y or "y", client or "client"),
        classes="auto" if classes is None else classes,
        scale=scale if scale is not None else 1 / 255 if is_image_folder else 1.0,
        about=f"your own, from {source.name}",
        progress=on_progress,
    )


def remove_dataset(name: str) -> str:
    """Removes a data set that has been added, and says so."""
    installed_names = list_installed()
    require(
        name in installed_names,
        f"'{name}' has not been added; {suggest_name(name, installed_names) if installed_names else 'nothing has.'}",
    )
    remove(name)
    return f"{name}: removed"
