"""Where data and compiled code lie on this machine."""

import os
from pathlib import Path

VARIABLE = "FEDTAILOR_DATA"


def folder() -> Path:
    """The folder that FEDTAILOR_DATA names, else `.cache/fedtailor-data` in the home folder."""
    named = os.environ.get(VARIABLE)
    return Path(named) if named else Path.home() / ".cache" / "fedtailor-data"
