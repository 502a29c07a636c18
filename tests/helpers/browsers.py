"""A browser for a file of tests, which asks for it with `pytest_plugins = ["browsers"]`."""

from collections.abc import Iterator

import pytest

from browsing import Browser


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    found = Browser(tmp_path_factory.mktemp("chromium") / "profile")
    yield found
    found.close()
