"""A folder for stores of the tests of one room."""

import os
from pathlib import Path

import pytest

from stores import at_once


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder where data is looked for."""
    monkeypatch.setenv("FEDTAILOR_DATA", str(tmp_path))
    monkeypatch.setattr(os, "fsync", at_once)
    return tmp_path
