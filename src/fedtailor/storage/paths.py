"""The folders where data, compiled code and state are kept on this machine."""

import os
from pathlib import Path

DATA_DIR_ENV = "FEDTAILOR_DATA"
STATE_DIR_ENV = "FEDTAILOR_STATE"


def data_dir() -> Path:
    """Return the folder that FEDTAILOR_DATA names, or else `~/.cache/fedtailor-data`."""
    folder = os.environ.get(DATA_DIR_ENV)
    if folder:
        return Path(folder)
    return Path.home() / ".cache" / "fedtailor-data"


def state_dir() -> Path:
    """Return the folder that FEDTAILOR_STATE names, or else `~/.local/state/fedtailor`.

    XDG_STATE_HOME takes the place of `~/.local/state`.
    """
    folder = os.environ.get(STATE_DIR_ENV)
    if folder:
        return Path(folder)
    base_folder = os.environ.get("XDG_STATE_HOME")
    if base_folder:
        return Path(base_folder, "fedtailor")
    return Path.home() / ".local" / "state" / "fedtailor"
