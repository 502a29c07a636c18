"""The folder where data and compiled code are kept on this machine."""

import os
from pathlib import Path

DATA_DIR_ENV = "FEDTAILOR_DATA"


def data_dir() -> Path:
    """Return the folder that FEDTAILOR_DATA names, or else `~/.cache/fedtailor-data`."""
    folder = os.environ.get(DATA_DIR_ENV)
    if folder:
        return Path(folder)
    return Path.home() / ".cache" / "fedtailor-data"
