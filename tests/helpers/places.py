"""A fixture for tests that add data sets: name this module as a plugin."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from divided import data_folder


@pytest.fixture
def place() -> Iterator[Path]:
    """An empty folder where data is looked for."""
    with data_folder() as path:
        yield path
