"""Where data and compiled code lie on this machine."""

import os
from pathlib import Path

DATA_DIR_ENV = "FEDTAILOR_DATA"


def data_dir() -> Path:
    """The folder that FEDTAILOR_DATA names, else `.cache/fedtailor-data` in the home folder."""
    named = os.environ.get(DATA_DIR_ENV)
    return Path(named) if named else Path.home() / ".cache" / "fedtailor-data"
